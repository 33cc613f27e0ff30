"""Bytes of state for each scalar, and the largest temporaries of a step."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.models import MODELS, with_gradients
from benchmarks.result import Goal, Result
from benchmarks.step import OPTIMIZERS

LIMITS = {"SBS": 5.0, "SBS eager": 25.0}
"""Of temporaries, in percent."""


def peak_of(call: Callable[[], object]) -> int:
    """Return the most bytes that torch holds, at any time of a call, beyond those from before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    found = profiler.profiler.kineto_results.events()
    events = [event for event in found if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    sizes: list[int] = [event.nbytes() for event in events]
    return max(itertools.accumulate(sizes, initial=0))


def run(quick: bool) -> Result:
    """Measure state, and the temporaries that torch allocates."""
    result = Result(
        "ResNet18, bytes per float32 weight; temporaries in percent of the parameters",
        ["optimizer", "state", "moved in a step, at least", "temporaries %"],
    )
    adam = None
    for key, maker in OPTIMIZERS.items():
        model = with_gradients(MODELS["ResNet18"]())
        optimizer = maker(model)
        optimizer.step()
        weights = sum(p.numel() for p in model.parameters())
        state = round(sum(map(_size, optimizer.state.values())) / weights, 2)
        share = round(100 * peak_of(optimizer.step) / (4 * weights), 2)
        # Weight and state are read and written, the gradient is read, by SBS for its mean before.
        moved = 2 * (4 + state) + 4 * (1 + key.startswith("SBS"))
        result.rows.append([key, state, moved, share])
        adam = adam or state
        if key == "SBS":
            result.goals.append(Goal("SBS, bytes of state (goal: Adam's)", state, adam))
        if key in LIMITS:
            result.goals.append(Goal(f"{key}, temporaries %", share, LIMITS[key]))
    return result


def _size(entry: dict[str, Any]) -> int:
    tensors = [value for value in entry.values() if isinstance(value, torch.Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
