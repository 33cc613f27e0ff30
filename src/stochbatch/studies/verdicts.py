r"""From paired differences to a verdict: t tests over seeds, corrected for their number.

With :math:`n` values of mean :math:`m` and standard deviation :math:`s` the interval of the mean is
:math:`m \pm t_{0.975,\,n-1}\, s / \sqrt n`. Nothing here draws at random.

Few test images are a sample too: where a mean comes with the variance :math:`v` of that sampling,
its squared standard error is also taken to be :math:`s^2 / n + v`, with degrees of freedom by
Welch and Satterthwaite, and whatever decides less counts: the interval is the wider of both, the p
value the larger.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import nctdtr, stdtr, stdtrit

LEVEL = 0.95
"""Of all intervals."""
SIGNIFICANT = 0.05
"""A corrected p value below it decides a claim."""
LOOK = 0.025
"""The same in a study that was extended once: each of its two looks has half."""
POWER = 0.8
"""With which a difference counts as detectable."""
EXACT = 1e-9
"""Percentage points below which a spread is rounding: no test set has so many images."""

BETTER, WORSE, SAME = "better", "worse", "no practical difference"
BEST, NOT_BEST = "best", "not the best"
UNDECIDED = "undecided"


@dataclass(frozen=True)
class Interval:
    """From ``low`` to ``high``, both included."""

    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half the distance of the ends: what stands after a plus-minus sign."""
        return (self.high - self.low) / 2

    def __contains__(self, value: float) -> bool:
        return self.low - EXACT <= value <= self.high + EXACT


def mean(values: Sequence[float]) -> float:
    """Return the mean."""
    return math.fsum(values) / len(values)


def std(values: Sequence[float]) -> float:
    """Return the standard deviation, with n - 1 in the denominator."""
    middle = mean(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1))


def image_variance(differences: Sequence[NDArray[np.float64]]) -> float:
    """Return the variance that the mean of all has because other test images might have been drawn.

    Args:
        differences: an array per seed, of which each has a number per test image.

    What differs by image and by seed alike, as if at random, is left out: it is in the spread over
    seeds, and would be counted twice.
    """
    table = np.array(differences)
    if min(table.shape[0], table.shape[-1]) < 2:
        return 0.0
    (seeds, images), by_image = table.shape, table.mean(axis=0)
    rest = table - by_image - table.mean(axis=1, keepdims=True) + table.mean()
    noise = np.square(rest).sum() / ((seeds - 1) * (images - 1))
    return max(0.0, float((by_image.var(ddof=1) - noise / seeds) / images))


def _spreads(values: Sequence[float], images: float) -> list[tuple[float, float]]:
    """Return the spread over seeds, and that of seeds and images, with their degrees of freedom."""
    spread, freedom = std(values), len(values) - 1
    if not images:
        return [(spread, freedom)]
    both = math.hypot(spread, math.sqrt(len(values) * images))
    return [
        (spread, freedom),
        (both, freedom * (both / spread) ** 4 if spread > EXACT else math.inf),
    ]


def t_interval(values: Sequence[float], others: int = 0, images: float = 0.0) -> Interval | None:
    """Return the 95 % interval of a mean, or None with fewer than two values.

    Args:
        values: the values.
        others: if given, the interval is that of the difference to a mean of so many others, as
            scattered as these, of which only the mean is known.
        images: the variance of the mean by the sampling of test images.

    Example:
        >>> from stochbatch.studies.verdicts import t_interval
        >>> interval = t_interval([1.0, 2.0, 3.0])
        >>> round(interval.low, 4), round(interval.high, 4)
        (-0.4841, 4.4841)
    """
    count = len(values)
    if count < 2:
        return None
    share = math.sqrt(1 / count + (1 / others if others else 0.0))
    half = max(
        float(stdtrit(freedom, (1 + LEVEL) / 2)) * spread * share
        for spread, freedom in _spreads(values, images)
    )
    return Interval(mean(values) - half, mean(values) + half)


def t_test(differences: Sequence[float], images: float = 0.0) -> float | None:
    r"""Return the two-sided p value of a mean of zero, or None with fewer than two values.

    The t test divides by the spread. Where the spread is zero it has no answer, and p is that
    of the exact sign test instead: 1 if all differences are zero, else :math:`2^{1-n}`, the
    probability that :math:`n` fair coins fall alike. On small test sets a few equal
    differences are nothing rare, and must not count as certainty.

    Example:
        >>> from stochbatch.studies.verdicts import t_test
        >>> round(t_test([1.0, 2.0, 3.0]), 4)
        0.0742
        >>> t_test([0.5, 0.5, 0.5])
        0.25
    """
    if len(differences) < 2:
        return None
    return _p(differences, images, abs(mean(differences)), tails=2)


def equivalence_test(
    differences: Sequence[float], margin: float, images: float = 0.0
) -> float | None:
    """Return the p value of a mean at least ``margin`` away from zero; None with too few values.

    It is below 0.05 exactly where the 90 % interval lies within the margin on both sides.
    """
    if len(differences) < 2:
        return None
    return _p(differences, images, margin - abs(mean(differences)), tails=1)


def _p(differences: Sequence[float], images: float, distance: float, tails: int) -> float:
    count = len(differences)

    def p(spread: float, freedom: float) -> float:
        if spread <= EXACT:
            return 2.0 ** (1 - count) if distance > EXACT else 1.0
        return tails * float(stdtr(freedom, -distance * math.sqrt(count) / spread))

    return max(p(*one) for one in _spreads(differences, images))


def detectable(differences: Sequence[float], images: float = 0.0) -> float | None:
    """Return the true difference that one such test would find with 80 %, given their spread.

    Without a spread, or with fewer than two values, it is not known: None.

    Example:
        >>> from stochbatch.studies.verdicts import detectable
        >>> round(detectable([-1.0, 0.0, 1.0]), 2)  # a standard deviation of 1, three pairs
        3.26
    """
    count = len(differences)
    if count < 2:
        return None

    def shift(freedom: float) -> float:
        bound = float(stdtrit(freedom, 1 - SIGNIFICANT / 2))
        # The other tail adds less than a thousandth of the power there.
        most = 2 * bound + 5
        return float(brentq(lambda at: 1 - nctdtr(freedom, at, bound) - POWER, 0.0, most))

    spreads = _spreads(differences, images)
    if max(spreads)[0] <= EXACT:
        return None
    return max(shift(freedom) * spread / math.sqrt(count) for spread, freedom in spreads)


def holm(p_values: Sequence[float | None], count: int = 0) -> list[float | None]:
    """Return p values corrected for their number by Holm's method, in the same order.

    Args:
        p_values: what has none yet keeps none, but counts as one of the comparisons.
        count: comparisons in all, if some are not among these.

    Example:
        >>> from stochbatch.studies.verdicts import holm
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    count = max(count, len(p_values))
    there = [(p, number) for number, p in enumerate(p_values) if p is not None]
    found: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, number) in enumerate(sorted(there)):
        largest = max(largest, min(1.0, (count - rank) * p))
        found[number] = largest
    return found


@dataclass(frozen=True)
class Pairs:
    """What a verdict is made from: differences by seed, and what was planned."""

    differences: Sequence[float]
    planned: int | None
    """Pairs that the study planned; None if it is not this many that were asked for."""
    rivals: Sequence[Pairs] = ()
    """Of a claim to be the best: the pairs with each of the others."""
    images: float = 0.0
    """Variance of the mean difference by the sampling of test images."""

    @property
    def done(self) -> int:
        """Pairs that are over; of a claim to be the best those with each of the others."""
        return min(len(one.differences) for one in (self, *self.rivals))

    @property
    def complete(self) -> bool:
        """Whether all that was planned is over, so that there is a verdict."""
        return self.done == self.planned

    @property
    def p(self) -> float | None:
        """The p value of the claim; of one to be the best that of its weakest comparison."""
        if not self.rivals:
            return t_test(self.differences, self.images)
        found = [rival.p for rival in self.rivals]
        if any(p is None for p in found):
            return None
        if all(mean(rival.differences) > 0 for rival in self.rivals):
            return max(p for p in found if p is not None)
        return 1.0

    @property
    def beaten(self) -> bool:
        """Whether one of the others is better, corrected for their number."""
        return any(
            p is not None and p < SIGNIFICANT and mean(rival.differences) < 0
            for p, rival in zip(corrected(self.rivals, 0), self.rivals, strict=True)
        )


def corrected(family: Sequence[Pairs], count: int) -> list[float | None]:
    """Return the p values of a family, corrected for all its claims."""
    return holm([pairs.p for pairs in family], count)


def decide(family: Sequence[Pairs], count: int, margin: float, level: float) -> list[str]:
    """Return the verdicts of a family of claims.

    Args:
        family: the claims that are corrected together.
        count: how many there are in all, those not looked at included.
        margin: percentage points within which a difference does not matter.
        level: a corrected p value below it decides.
    """
    near = holm(
        [equivalence_test(pairs.differences, margin, pairs.images) for pairs in family], count
    )
    verdicts = []
    for pairs, p, same in zip(family, corrected(family, count), near, strict=True):
        decided = p is not None and p < level
        if pairs.planned is None:
            verdict = f"{pairs.done} pair{'s' if pairs.done != 1 else ''}, not as planned"
        elif not pairs.complete:
            verdict = f"{pairs.done} of {pairs.planned} pairs"
        elif pairs.rivals:
            verdict = BEST if decided else NOT_BEST if pairs.beaten else UNDECIDED
        elif decided and mean(pairs.differences):
            verdict = BETTER if mean(pairs.differences) > 0 else WORSE
        else:
            verdict = SAME if same is not None and same < level else UNDECIDED
        verdicts.append(verdict)
    return verdicts
