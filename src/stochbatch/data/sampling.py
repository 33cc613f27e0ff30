"""What is random about data, as functions of a seed: order, subset, crops and flips.

Nothing is a stream: a run that resumes in mid-epoch, or on another number of processes,
sees the same images in the same order, cropped and flipped in the same way.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import torch
from torch import Tensor

from stochbatch.data.catalogue import Augmentation
from stochbatch.optim.coins import UNIFORM_BITS, uniform

# Numbers of streams, counted down from the largest, where no network has a parameter: with
# one seed for both, data and the coins of an optimizer stay independent.
_ORDER, _ORDER_LOW, _SUBSET, _SUBSET_LOW, _ROWS, _COLUMNS, _FLIPS = range(
    (1 << 32) - 1, (1 << 32) - 8, -1
)


def _permutation(seed: int, epoch: int, size: int, streams: tuple[int, int]) -> Tensor:
    # 48 bits a key: two of 100,000 keys agree once in 50,000 permutations, and then the
    # stable sort leaves these two in order.
    high, low = (
        (uniform(seed, epoch, stream, (size,), device="cpu") * (1 << UNIFORM_BITS)).to(torch.int64)
        for stream in streams
    )
    return torch.argsort((high << UNIFORM_BITS) | low, stable=True)


def epoch_order(seed: int, epoch: int, size: int) -> Tensor:
    """Return the order in which an epoch visits ``size`` samples.

    Example:
        >>> from stochbatch.data import epoch_order
        >>> epoch_order(seed=0, epoch=0, size=5).tolist()
        [3, 4, 1, 2, 0]
        >>> epoch_order(seed=0, epoch=1, size=5).tolist()
        [0, 1, 4, 3, 2]
    """
    return _permutation(seed, epoch, size, (_ORDER, _ORDER_LOW))


def subset(seed: int, size: int, share: float | Fraction) -> Tensor:
    """Return the indices, in order, of a uniform subset of ``size`` samples.

    Args:
        seed: another seed draws another subset.
        size: how many samples there are.
        share: how much of them, in (0, 1]; rounded to a whole number, at least one.

    Example:
        >>> from stochbatch.data import subset
        >>> subset(seed=0, size=12, share=1 / 4).tolist()
        [6, 7, 9]
    """
    if isinstance(share, bool) or not isinstance(share, float | int | Fraction):
        raise TypeError(f"share must be a number, got {type(share).__name__}: {share!r}")
    if not 0 < share <= 1:
        raise ValueError(f"share must be in (0, 1], got {share}")
    if share == 1:
        return torch.arange(size, device="cpu")
    count = max(1, round(Fraction(share).limit_denominator(1 << 20) * size))
    return _permutation(seed, 0, size, (_SUBSET, _SUBSET_LOW))[:count].sort().values


class Draws(NamedTuple):
    """What an epoch draws for each position: where the crop begins, and whether it is flipped."""

    rows: Tensor
    columns: Tensor
    flips: Tensor


def epoch_draws(seed: int, epoch: int, size: int, augmentation: Augmentation) -> Draws:
    """Return the crops and flips of an epoch: a crop begins at 0 to twice the padding."""
    places = 2 * augmentation.padding + 1
    rows, columns = (
        (uniform(seed, epoch, stream, (size,), device="cpu") * places).to(torch.int64)
        for stream in (_ROWS, _COLUMNS)
    )
    if augmentation.flip:
        return Draws(rows, columns, uniform(seed, epoch, _FLIPS, (size,), device="cpu") < 0.5)
    return Draws(rows, columns, torch.zeros(size, dtype=torch.bool, device="cpu"))
