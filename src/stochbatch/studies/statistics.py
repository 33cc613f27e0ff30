r"""What a study's trials say: means with intervals, differences paired by seed, verdicts.

All numbers are of a trial's ``accuracy.mean``, in percent. With :math:`n` trials of mean
:math:`m` and standard deviation :math:`s` the interval is
:math:`m \pm t_{0.975,\,n-1}\, s / \sqrt n`. Nothing here draws at random but for
the bootstrap, whose generator has a fixed seed: the same results give the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from scipy.special import stdtr, stdtrit

from stochbatch.studies.cell import Cell
from stochbatch.studies.claim import Claim
from stochbatch.studies.outcome import Outcome
from stochbatch.studies.results import CellOutcomes, StudyResults
from stochbatch.training import RunError

CellVerdict = Literal["agrees", "higher", "lower", "too few trials"]
ClaimVerdict = Literal["confirmed", "contradicted", "undecided", "too few trials"]

LEVEL = 0.95
"""Of all intervals."""
SIGNIFICANT = 0.05
"""A corrected p value below it decides a claim."""
FEW = 3
"""With fewer trials, or pairs of trials, there is no verdict."""
RESAMPLES = 10_000
SEED = 20_200_406
EXACT = 1e-9
"""Percentage points below which a spread is rounding: no test set has so many images."""


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


@dataclass(frozen=True)
class CellStatistics:
    """A cell over its trials that are over.

    A diverged trial is an outcome of its method, so its accuracy counts like any other's, and
    ``diverged`` says how many there are. One that broke before its first evaluation has no
    accuracy: it is counted in ``diverged``, not in ``n``.
    """

    cell: Cell
    n: int
    """Trials with an accuracy."""
    diverged: int
    mean: float | None
    """None without a trial."""
    std: float | None
    """With n - 1 in the denominator; None with fewer than two trials."""
    interval: Interval | None
    best: float | None
    """One reading of a table's "max": the best epoch of any trial."""
    mean_best: float | None
    """Another: the mean over the trials of each one's best epoch."""
    curve_best: float | None
    """A third: the best epoch of the mean curve, over epochs that all trials evaluated."""
    update_probability: float | None
    """With which a weight moves in a step: mean over weights, epochs and trials.
    None where the method is not SBS."""
    verdict: CellVerdict | None
    """Against the article; None where it is not comparable."""


@dataclass(frozen=True)
class ClaimStatistics:
    """What the trials say on a claim in one place of the grid."""

    claim: Claim
    place: Mapping[str, str]
    """Labels on all axes but the claim's."""
    cell: Cell
    """The side that is claimed to be better. Of several labels the one with the highest mean."""
    among: int
    """Labels of that side with trials enough, from which it was chosen."""
    present: int
    """Labels of that side among the cells looked at."""
    baseline: Cell | None
    """The other side; None if it is not among the cells looked at."""
    baseline_among: int
    baseline_present: int
    pairs: int
    """Seeds with which both have been run."""
    difference: float | None
    """Mean of the pairs' differences, cell minus baseline, in percentage points."""
    interval: Interval | None
    bootstrap: Interval | None
    """Percentiles of the mean over resampled pairs, beside the t interval."""
    p: float | None
    """Two-sided, of the paired t test."""
    corrected_p: float | None
    """After Holm's correction over all claims of the study, in all their places."""
    verdict: ClaimVerdict


@dataclass(frozen=True)
class StudyStatistics:
    """All cells, and all claims with the places they are about, in the study's order."""

    cells: tuple[CellStatistics, ...]
    claims: tuple[ClaimStatistics, ...]


def statistics(results: StudyResults) -> StudyStatistics:
    """Return the statistics of a study, as far as it has been run.

    Args:
        results: from `collect`. A correction for many comparisons is over the cells in there,
            so a study that was narrowed is corrected for what was looked at; cells that have
            not been run yet count, so that a verdict does not fade as they come in.
    """
    return StudyStatistics(
        tuple(_of_cell(cell, results.scale.comparable) for cell in results.cells),
        _of_claims(results),
    )


def t_interval(values: Sequence[float]) -> Interval | None:
    """Return the 95 % interval of a mean, or None with fewer than two values.

    Example:
        >>> from stochbatch.studies.statistics import t_interval
        >>> interval = t_interval([1.0, 2.0, 3.0])
        >>> round(interval.low, 4), round(interval.high, 4)
        (-0.4841, 4.4841)
    """
    count = len(values)
    if count < 2:
        return None
    mean, std = _mean(values), _std(values)
    half = float(stdtrit(count - 1, (1 + LEVEL) / 2)) * std / math.sqrt(count)
    return Interval(mean - half, mean + half)


def t_test(differences: Sequence[float]) -> float | None:
    r"""Return the two-sided p value of a mean of zero, or None with fewer than two values.

    The t test divides by the spread. Where the spread is zero it has no answer, and p is that
    of the exact sign test instead: 1 if all differences are zero, else :math:`2^{1-n}`, the
    probability that :math:`n` fair coins fall alike. On small test sets a few equal
    differences are nothing rare, and must not count as certainty.

    Example:
        >>> from stochbatch.studies.statistics import t_test
        >>> round(t_test([1.0, 2.0, 3.0]), 4)
        0.0742
        >>> t_test([0.5, 0.5, 0.5])
        0.25
    """
    count = len(differences)
    if count < 2:
        return None
    mean, std = _mean(differences), _std(differences)
    if std <= EXACT:
        return 1.0 if abs(mean) <= EXACT else 2.0 ** (1 - count)
    return 2 * float(stdtr(count - 1, -abs(mean) * math.sqrt(count) / std))


def bootstrap_interval(values: Sequence[float]) -> Interval | None:
    """Return the percentile-bootstrap interval of a mean, or None with fewer than two values.

    With a handful of values it is too narrow, as it cannot know of what it has not seen; it
    is there to be looked at beside the t interval, and decides nothing.
    """
    if len(values) < 2:
        return None
    means = np.asarray(values, dtype=np.float64)[_resamples(len(values))].mean(axis=1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(high))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return p values corrected for their number by Holm's method, in the same order.

    What has no p value yet keeps none, but counts as one of the comparisons.

    Example:
        >>> from stochbatch.studies.statistics import holm
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    order = sorted(
        (number for number, p in enumerate(p_values) if p is not None),
        key=lambda number: p_values[number] or 0.0,
    )
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, number in enumerate(order):
        p = p_values[number]
        assert p is not None
        largest = max(largest, min(1.0, (len(p_values) - rank) * p))
        corrected[number] = largest
    return corrected


def cell_verdict(
    published: float | None, interval: Interval | None, n: int, comparable: bool
) -> CellVerdict | None:
    """Return how a cell stands to the article's mean; None where it is not comparable."""
    if published is None or not comparable:
        return None
    if n < FEW or interval is None:
        return "too few trials"
    if published in interval:
        return "agrees"
    return "higher" if interval.low > published else "lower"


def claim_verdict(difference: float | None, corrected_p: float | None, pairs: int) -> ClaimVerdict:
    """Return whether the trials decide a claim, and how."""
    if pairs < FEW or difference is None or corrected_p is None:
        return "too few trials"
    if corrected_p < SIGNIFICANT and difference != 0:
        return "confirmed" if difference > 0 else "contradicted"
    return "undecided"


def accuracies(outcomes: Sequence[Outcome]) -> dict[int, float]:
    """Return ``accuracy.mean`` by seed, of the trials that have one."""
    return {
        outcome.seed: outcome.result.accuracy.mean
        for outcome in outcomes
        if outcome.result is not None and outcome.result.accuracy is not None
    }


def update_probability(metrics: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the mean update probability of a run over its weights and epochs.

    As printed (``lr_scaling="none"``) SBS moves a weight at the learning rate, but only with its
    probability. If that is fixed, SGD has the same mean step at the rate times it; under the
    global scheme it differs from layer to layer, and SGD has the same mean step at no rate.

    Args:
        metrics: the lines of ``metrics.jsonl``.

    Returns:
        The mean, in which every weight and every epoch counts alike; None without layers.

    Example:
        >>> from stochbatch.studies.statistics import update_probability
        >>> layers = [{"size": 3, "probability": 0.5}, {"size": 1, "probability": 0.1}]
        >>> round(update_probability([{"epoch": 0, "layers": layers}]), 3)
        0.4
    """
    means = []
    for line in metrics:
        layers = [
            (layer["size"], layer["probability"])
            for layer in line.get("layers") or ()
            if layer.get("probability") is not None
        ]
        if size := sum(size for size, _ in layers):
            means.append(math.fsum(size * probability for size, probability in layers) / size)
    return _mean(means) if means else None


def _probability_of(cell: CellOutcomes) -> float | None:
    found = []
    for outcome in cell.done:
        with suppress(RunError):  # its metrics cannot be read, as the report says
            found.append(update_probability(outcome.metrics))
    there = [probability for probability in found if probability is not None]
    return _mean(there) if there else None


def _best_of_mean_curve(cell: CellOutcomes) -> float | None:
    curves = [outcome.result.curve for outcome in cell.outcomes if outcome.result is not None]
    epochs = zip(*curves, strict=False)
    whole = [[value for value in epoch if value is not None] for epoch in epochs]
    return max((_mean(values) for values in whole if len(values) == len(curves)), default=None)


def _of_cell(cell: CellOutcomes, comparable: bool) -> CellStatistics:
    values = list(accuracies(cell.outcomes).values())
    bests = [
        outcome.result.accuracy.max
        for outcome in cell.outcomes
        if outcome.result is not None and outcome.result.accuracy is not None
    ]
    interval = t_interval(values)
    published = cell.cell.published
    return CellStatistics(
        cell=cell.cell,
        n=len(values),
        diverged=sum(outcome.status == "diverged" for outcome in cell.outcomes),
        mean=_mean(values) if values else None,
        std=_std(values) if len(values) > 1 else None,
        interval=interval,
        best=max(bests, default=None),
        mean_best=_mean(bests) if bests else None,
        curve_best=_best_of_mean_curve(cell),
        update_probability=_probability_of(cell),
        verdict=cell_verdict(
            None if published is None else published.mean, interval, len(values), comparable
        ),
    )


def _of_claims(results: StudyResults) -> tuple[ClaimStatistics, ...]:
    found = [row for claim in results.study.claims for row in _rows(claim, results.cells)]
    corrected = holm([row["p"] for row in found])
    return tuple(
        ClaimStatistics(
            **row, corrected_p=p, verdict=claim_verdict(row["difference"], p, row["pairs"])
        )
        for row, p in zip(found, corrected, strict=True)
    )


def _rows(claim: Claim, cells: Sequence[CellOutcomes]) -> Iterator[dict[str, Any]]:
    """Yield what the trials say on a claim, place by place."""
    places: dict[tuple[str, ...], dict[str, CellOutcomes]] = {}
    for cell in cells:
        place = tuple(label for axis, label in cell.cell.coordinates.items() if axis != claim.axis)
        places.setdefault(place, {})[cell.cell.coordinates[claim.axis]] = cell
    for there in places.values():
        better, than = (
            [there[label] for label in labels if label in there]
            for labels in (claim.better, claim.than)
        )
        (ours, among), (theirs, baseline_among) = best_of(better), best_of(than)
        if ours is None:
            continue
        coordinates = ours.cell.coordinates.items()
        yield {
            "claim": claim,
            "place": {axis: label for axis, label in coordinates if axis != claim.axis},
            "among": among,
            "present": len(better),
            "baseline_among": baseline_among,
            "baseline_present": len(than),
            **_compared(ours, theirs),
        }


def best_of(cells: Sequence[CellOutcomes]) -> tuple[CellOutcomes | None, int]:
    """Return the cell with the highest mean accuracy, and among how many it was chosen.

    If some have the trials that a verdict needs, the choice is among those: a lucky trial of
    another may not take the place of a mean. Of equal means the first is taken, and so is the
    first cell if none has a trial yet.
    """
    found = [list(accuracies(cell.outcomes).values()) for cell in cells]
    enough = FEW if any(len(values) >= FEW for values in found) else 1
    means = [_mean(values) if len(values) >= enough else -math.inf for values in found]
    best = max(range(len(cells)), key=means.__getitem__, default=None)
    return (None if best is None else cells[best]), sum(mean > -math.inf for mean in means)


def _compared(cell: CellOutcomes, baseline: CellOutcomes | None) -> dict[str, Any]:
    ours = accuracies(cell.outcomes)
    theirs = accuracies(baseline.outcomes) if baseline is not None else {}
    differences = [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
    return {
        "cell": cell.cell,
        "baseline": None if baseline is None else baseline.cell,
        "pairs": len(differences),
        "difference": _mean(differences) if differences else None,
        "interval": t_interval(differences),
        "bootstrap": bootstrap_interval(differences),
        "p": t_test(differences),
    }


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _std(values: Sequence[float]) -> float:
    mean = _mean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


# A table has many cells and few numbers of trials.
@lru_cache(maxsize=8)
def _resamples(count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.random.default_rng(SEED).integers(count, size=(RESAMPLES, count))
