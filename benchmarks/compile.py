"""How long the compiled step takes to build, and to find again."""

from __future__ import annotations

import os
import tempfile
import time

from benchmarks.result import Goal, Result
from stochbatch.optim.kernels import build as building


def run(quick: bool) -> Result:
    """Build into an empty cache, and look it up again."""
    result = Result("compile: the native step, built with the C++ compiler", ["what", "seconds"])
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
        finally:
            if before is None:
                del os.environ["XDG_CACHE_HOME"]
            else:
                os.environ["XDG_CACHE_HOME"] = before
    result.rows = [
        ["first build", cold],
        ["found in the cache", warm],
    ]
    result.goals = [Goal("first build, seconds", cold, 4.0)]
    return result
