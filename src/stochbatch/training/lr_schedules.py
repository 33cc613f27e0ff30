"""Learning-rate schedules by name: the article's, and the usual ones of torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch.optim.lr_scheduler import (
    ConstantLR,
    CosineAnnealingLR,
    ExponentialLR,
    LinearLR,
    LRScheduler,
    MultiStepLR,
    SequentialLR,
)
from torch.optim.optimizer import Optimizer

from stochbatch.checks import check_count, check_not_negative, check_positive, check_real
from stochbatch.optim.schedules import SigmoidLR
from stochbatch.registry import SCHEDULES

Schedule = Callable[..., LRScheduler]
"""Takes an optimizer, the number of epochs (or steps), and settings by keyword."""


def sigmoid(
    optimizer: Optimizer, total: int, *, end_lr: float = 1e-3, steepness: float = 10.0
) -> SigmoidLR:
    """Return the article's sigmoid."""
    return SigmoidLR(optimizer, total, end_lr, steepness)


def exponential(optimizer: Optimizer, total: int, *, decay: float = 5.0) -> ExponentialLR:
    """Return a schedule that falls by a factor of exp(decay) over the whole training."""
    check_count("total", total)
    check_not_negative("decay", decay)
    return ExponentialLR(optimizer, math.exp(-decay / total))


def staircase(
    optimizer: Optimizer,
    total: int,
    *,
    milestones: Sequence[float] = (0.5, 0.75),
    factor: float = 0.1,
) -> MultiStepLR:
    """Return a schedule that is multiplied by ``factor`` at each share of the training."""
    check_count("total", total)
    check_positive("factor", factor)
    for share in milestones:
        check_real("a milestone", share)
        if not 0 <= share <= 1:
            raise ValueError(f"a milestone must be a share of the training in [0, 1], got {share}")
    # 0.55 * 100 is a little more than 55, and means 55.
    places = [math.ceil(share * total - 1e-9) for share in milestones]
    return MultiStepLR(optimizer, places, factor)


def constant(optimizer: Optimizer, total: int) -> ConstantLR:
    """Return a schedule that changes nothing."""
    check_count("total", total)
    return ConstantLR(optimizer, factor=1.0, total_iters=0)


def cosine(optimizer: Optimizer, total: int, *, end_lr: float = 0.0) -> CosineAnnealingLR:
    """Return half a cosine, which would reach ``end_lr`` after the last epoch."""
    check_count("total", total)
    check_not_negative("end_lr", end_lr)
    return CosineAnnealingLR(optimizer, total, end_lr)


def warmup_cosine(
    optimizer: Optimizer,
    total: int,
    *,
    warmup: float = 0.05,
    start_factor: float = 0.1,
    end_lr: float = 0.0,
) -> LRScheduler:
    """Return a rise over a share of the training, at least one epoch, and a cosine after it."""
    check_count("total", total)
    check_positive("start_factor", start_factor)
    check_real("warmup", warmup)
    if not 0 < warmup < 1:
        raise ValueError(f"warmup must be a share of the training in (0, 1), got {warmup}")
    if total == 1:
        return cosine(optimizer, total, end_lr=end_lr)
    rising = min(total - 1, max(1, round(warmup * total)))
    parts = [
        LinearLR(optimizer, start_factor, total_iters=rising),
        cosine(optimizer, total - rising, end_lr=end_lr),
    ]
    return SequentialLR(optimizer, parts, [rising])


for _schedule in (sigmoid, exponential, staircase, constant, cosine, warmup_cosine):
    SCHEDULES.provide(_schedule.__name__.replace("_", "-"), _schedule)
