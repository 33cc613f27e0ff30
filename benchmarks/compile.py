"""How long the compiled step takes to build, and how often it is built."""

from __future__ import annotations

import os
import tempfile
import time

import torch

from benchmarks.models import MODELS, with_gradients
from benchmarks.result import Goal, Result
from stochbatch import SBS
from stochbatch.optim import building


def run(quick: bool) -> Result:
    """Build into an empty cache, look it up again, and count builds over a schedule."""
    result = Result(
        "compile: the native step, built with the C++ compiler", ["what", "seconds or number"]
    )
    before = os.environ.get("XDG_CACHE_HOME")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        try:
            start = time.perf_counter()
            building.build()
            cold = time.perf_counter() - start
            start = time.perf_counter()
            building.build()
            warm = time.perf_counter() - start
            building._load.cache_clear()
            for name in ("VGG11", "ResNet18"):
                model = with_gradients(MODELS[name]())
                optimizer = SBS(model.parameters(), torch.tensor(0.1), steps_per_epoch=5)
                schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
                for _ in range(20):
                    optimizer.step()
                    schedule.step()
            builds = len(list(building.cache_folder().glob("*.so")))
        finally:
            if before is None:
                del os.environ["XDG_CACHE_HOME"]
            else:
                os.environ["XDG_CACHE_HOME"] = before
    result.rows = [
        ["first build, seconds", cold],
        ["found in the cache, seconds", warm],
        ["builds over 2 networks, 20 steps each, a rate that moves, 4 epochs", builds],
    ]
    result.goals = [Goal("first build, seconds", cold, 4.0), Goal("builds", float(builds), 1.0)]
    return result
