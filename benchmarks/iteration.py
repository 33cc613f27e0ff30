"""A whole training iteration: forward, backward, step; SBS against SGD."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from benchmarks.models import MODELS
from benchmarks.result import Goal, Result
from benchmarks.timing import in_turn, ratios, times
from stochbatch import SBS, param_groups

LIMITS = {16: 1.10, 128: 1.03}


def _iteration(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: int
) -> Callable[[], None]:
    images = torch.randn(batch, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(10, (batch,))
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def call() -> None:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        torch.autograd.backward(loss)
        optimizer.step()

    return call


def run(quick: bool) -> Result:
    """Time both optimizers on two networks at two batch sizes."""
    result = Result(
        "forward, backward and step in float32, SBS as a ratio to SGD(foreach)",
        ["network", "batch", "SGD ms", "SBS ms", "ratio", "10 % to 90 %"],
    )
    for name in ("VGG11", "ResNet18"):
        for batch, limit in LIMITS.items():
            if quick and (name, batch) == ("ResNet18", 128):
                continue
            one, two = MODELS[name](), MODELS[name]()
            calls = {
                "SGD": _iteration(
                    one, torch.optim.SGD(one.parameters(), 1e-4, foreach=True), batch
                ),
                "SBS": _iteration(two, SBS(param_groups(two), 1e-4), batch),
            }
            rounds = 24 if batch == 16 else 8
            seconds = in_turn(calls, rounds=max(4, rounds // 4) if quick else rounds)
            ratio = ratios(seconds["SBS"], seconds["SGD"])
            both = [1000 * times(seconds[key]).median for key in calls]
            spread = f"{ratio.low:.2f} to {ratio.high:.2f}"
            result.rows.append([name, batch, *both, ratio.median, spread])
            result.goals.append(Goal(f"{name}, batch {batch}, to SGD", ratio.median, limit))
    return result
