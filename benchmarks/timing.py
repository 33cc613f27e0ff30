"""Times of several things, taken in turn, so that a busy machine disturbs all of them alike."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch


class Times(NamedTuple):
    """Median, 10th and 90th percentile of repeated timings, in seconds."""

    median: float
    low: float
    high: float


class Ratios(NamedTuple):
    """Median, 10th and 90th percentile of a time divided by its neighbour's time."""

    median: float
    low: float
    high: float


def wait() -> None:
    """Wait until a GPU, if there is one, has done what was asked of it."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def _spread(values: list[float]) -> tuple[float, float, float]:
    tenths = statistics.quantiles(values, n=10, method="inclusive")
    return statistics.median(values), tenths[0], tenths[-1]


def in_turn(
    candidates: Mapping[str, Callable[[], object]], rounds: int, warmup: int = 2
) -> dict[str, list[float]]:
    """Return the seconds of each candidate in each round; a round calls every one once.

    In random order, so that none always comes after the same, which may leave caches full or cold.
    """
    draw = random.Random(0)
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    gc.collect()
    gc.disable()
    try:
        for turn in range(warmup + rounds):
            for name, call in draw.sample([*candidates.items()], len(candidates)):
                wait()
                start = time.perf_counter()
                call()
                wait()
                elapsed = time.perf_counter() - start
                if turn >= warmup:
                    seconds[name].append(elapsed)
    finally:
        gc.enable()
    return seconds


def times(seconds: list[float]) -> Times:
    """Return the summary of a candidate's times."""
    return Times(*_spread(seconds))


def ratios(seconds: list[float], peer: list[float]) -> Ratios:
    """Return the summary of the ratios, round by round."""
    return Ratios(*_spread([own / other for own, other in zip(seconds, peer, strict=True)]))
