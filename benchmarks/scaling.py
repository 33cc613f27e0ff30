"""Time of a step against the number of scalars, and against the number of tensors."""

from __future__ import annotations

import os

import torch

from benchmarks.result import Goal, Result
from benchmarks.timing import in_turn, times
from stochbatch import SBS

STREAMS = 8  # four-byte reads and writes a scalar: g twice, w, mean and batches in and out
TENSORS_TOTAL = 1 << 24
BYTES = 18  # a scalar: weight, gradient, mean, batches, and something to spare


def _free_memory() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _optimizer(tensors: int, scalars: int) -> SBS:
    weights = [torch.nn.Parameter(torch.zeros(scalars // tensors)) for _ in range(tensors)]
    generator = torch.Generator().manual_seed(0)
    for weight in weights:
        weight.grad = torch.empty(weight.shape).normal_(0.0, 0.01, generator=generator)
    return SBS(weights, 1e-6, fused=True)


def run(quick: bool) -> Result:
    """Time steps of growing size beside copies that move as many bytes."""
    result = Result(
        "scaling: fused step, momentum 0; bandwidth as a share of a plain copy of the same bytes",
        ["scalars", "tensors", "ms", "ns a scalar", "GB/s", "copy GB/s", "share"],
    )
    sizes = [10**n for n in range(4, 9 if quick else 10) if BYTES * 10**n < _free_memory()]
    shapes = [(size, 1) for size in sizes]
    shapes += [(TENSORS_TOTAL, count) for count in (1, 16, 161, 1024)]
    for scalars, tensors in shapes:
        optimizer = _optimizer(tensors, scalars)
        source = torch.zeros(min(STREAMS // 2 * scalars, 10**8))
        target = torch.empty_like(source)

        def copy(source: torch.Tensor = source, target: torch.Tensor = target) -> None:
            target.copy_(source)

        rounds = 60 if scalars <= 10**6 else 20 if scalars <= 10**7 + TENSORS_TOTAL else 4
        seconds = in_turn({"step": optimizer.step, "copy": copy}, rounds=rounds)
        step, plain = (times(seconds[key]).median for key in ("step", "copy"))
        speed = STREAMS * 4 * scalars / step / 1e9
        limit = 2 * 4 * source.numel() / plain / 1e9
        row = [scalars, tensors, 1e3 * step, 1e9 * step / scalars, speed, limit, speed / limit]
        result.rows.append(row)
        del optimizer, source, target
    by_shape = {(row[0], row[1]): row for row in result.rows}
    for scalars in [size for size in sizes if size >= 10**7]:
        share = float(by_shape[scalars, 1][6])
        result.goals.append(Goal(f"{scalars:,} scalars, share of a copy", share, 0.6, True))
    one, many = (float(by_shape[TENSORS_TOTAL, count][2]) for count in (1, 161))
    result.goals.append(Goal("161 tensors to 1 tensor of as many scalars", many / one, 1.5))
    return result
