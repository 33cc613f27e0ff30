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
_ORDER, _ORDER_LOW, _SUBSET, _SUBSET_LOW, _ROWS, _COLUMNS, _FLIPS, _HELD, _HELD_LOW = range(
    (1 << 32) - 1, (1 << 32) - 10, -1
)

HELD_OUT_PER_CLASS = 10
"""So many validation images of each class come first, the others in proportion to its size."""


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


def hold_out(seed: int, labels: Tensor, used: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the indices, in order, of the samples to train on and of those to validate on.

    Samples to validate on are drawn from those that are not used, if there are enough of them;
    else they are held out of the used ones, at most half of each class. All classes are drawn from.

    Args:
        seed: another seed draws other samples.
        labels: of all samples.
        used: indices of the samples that may be trained on.
        count: how many to validate on.

    Example:
        >>> import torch
        >>> from stochbatch.data import hold_out
        >>> labels = torch.tensor([0, 1] * 4)
        >>> hold_out(0, labels, torch.arange(8), count=2)
        (tensor([0, 1, 4, 5, 6, 7]), tensor([2, 3]))
    """
    outside = torch.ones(len(labels), dtype=torch.bool)
    outside[used] = False
    inside = int(outside.sum()) < count
    pool = ~outside if inside else outside
    order = _permutation(seed, 0, len(labels), (_HELD, _HELD_LOW))
    order = order[pool[order]]
    places = torch.empty(len(order), dtype=torch.float64)
    for label in set(labels[order].tolist()):
        mine = (labels[order] == label).nonzero().flatten()
        size, rank = len(mine), torch.arange(len(mine), dtype=torch.float64)
        place = (rank + 0.5) / size
        place[: min(HELD_OUT_PER_CLASS, size // 2)] = 0.0
        if inside:
            place[size // 2 :] = torch.inf
        places[mine] = place
    first = torch.argsort(places, stable=True)[:count]
    if len(first) < count or not bool(places[first].isfinite().all()):
        raise ValueError(f"{count} validation samples are too many for {len(used)} that are used")
    held = order[first].sort().values
    return (used[~torch.isin(used, held)] if inside else used), held


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
