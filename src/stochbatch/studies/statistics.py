"""What a study's trials say: means with intervals, differences paired by seed, verdicts.

All numbers are of a trial's ``accuracy.mean``, in percent. The rules of verdicts, and why they are
so, are in ``docs/verdicts.md``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stochbatch.data import DATASETS
from stochbatch.studies.cell import Cell
from stochbatch.studies.claim import Claim, Growth
from stochbatch.studies.grid import Study
from stochbatch.studies.outcome import Outcome
from stochbatch.studies.results import CellOutcomes, StudyResults
from stochbatch.studies.verdicts import (
    LOOK,
    SIGNIFICANT,
    UNDECIDED,
    Interval,
    Pairs,
    corrected,
    decide,
    detectable,
    image_variance,
    mean,
    std,
    t_interval,
)
from stochbatch.training import RunError

CellVerdict = Literal["agrees", "higher", "lower", "too few trials"]

FEW = 3
"""With fewer trials a cell is not compared with the article."""
PUBLISHED_TRIALS = 10
"""Behind a mean in the article."""
NEAR_CHANCE = 1.0
"""Percentage points above chance within which a trial has collapsed."""


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
    cell: Cell | None
    """The side that is claimed to be better; None if the row is over the whole table."""
    baseline: Cell | None
    """The other side, of several the one with the highest mean; None if it is not among the cells
    looked at, or over the whole table."""
    pairs: int
    """Seeds with which both have been run."""
    planned: int
    """Pairs that the study plans."""
    by_seed: Mapping[int, float]
    """Differences of the pairs, cell minus baseline, in percentage points."""
    difference: float | None
    """Their mean."""
    interval: Interval | None
    """Not corrected for the number of claims."""
    detectable: float | None
    """The true difference that one such test finds with 80 %."""
    image_error: float
    """Standard error of the difference by the sampling of test images; 0 where they are many."""
    ahead: tuple[int, int] | None
    """Over the whole table: in how many places it is ahead, and how many there are."""
    collapsed: int
    """Pairs of which a trial diverged or ended at chance."""
    family: Literal["primary", "exploratory"]
    p: float | None
    """Two-sided, of the paired t test."""
    corrected_p: float | None
    """After Holm's correction over its family: all claims of the whole study, in all places."""
    verdict: str
    """`better`, `worse`, `no practical difference`, `undecided` and others of
    :mod:`stochbatch.studies.verdicts`; or why there is none yet, such as ``3 of 5 pairs``."""


@dataclass(frozen=True)
class StudyStatistics:
    """All cells, and all claims with the places they are about, in the study's order."""

    cells: tuple[CellStatistics, ...]
    claims: tuple[ClaimStatistics, ...]


def statistics(results: StudyResults) -> StudyStatistics:
    """Return the statistics of a study, as far as it has been run.

    Args:
        results: from `collect`. A correction for many comparisons is over all claims of the study,
            whether their cells are in there and have been run or not: so neither looking at a
            part of it nor looking early makes a verdict.
    """
    return StudyStatistics(
        tuple(_of_cell(cell, results.scale.comparable) for cell in results.cells),
        _of_claims(results),
    )


def cell_verdict(
    published: float | None, values: Sequence[float], comparable: bool
) -> CellVerdict | None:
    """Return how a cell stands to the article's mean; None where it is not comparable.

    That mean has an error of its own: it is taken to be that of ten trials, as scattered as ours.
    """
    if published is None or not comparable:
        return None
    interval = t_interval(values, others=PUBLISHED_TRIALS)
    if len(values) < FEW or interval is None:
        return "too few trials"
    if published in interval:
        return "agrees"
    return "higher" if interval.low > published else "lower"


def accuracies(outcomes: Sequence[Outcome]) -> dict[int, float]:
    """Return ``accuracy.mean`` by seed, of the trials that have one."""
    return {one.seed: one.accuracy.mean for one in outcomes if one.accuracy is not None}


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
    return mean(means) if means else None


def _of_cell(cell: CellOutcomes, comparable: bool) -> CellStatistics:
    values = list(accuracies(cell.outcomes).values())
    bests = [one.accuracy.max for one in cell.outcomes if one.accuracy is not None]
    published = cell.cell.published
    return CellStatistics(
        cell=cell.cell,
        n=len(values),
        diverged=sum(outcome.status == "diverged" for outcome in cell.outcomes),
        mean=mean(values) if values else None,
        std=std(values) if len(values) > 1 else None,
        interval=t_interval(values),
        best=max(bests, default=None),
        mean_best=mean(bests) if bests else None,
        curve_best=_best_of_mean_curve(cell),
        update_probability=_probability_of(cell),
        verdict=cell_verdict(None if published is None else published.mean, values, comparable),
    )


def _best_of_mean_curve(cell: CellOutcomes) -> float | None:
    curves = [outcome.result.curve for outcome in cell.outcomes if outcome.result is not None]
    epochs = zip(*curves, strict=False)
    known = ([value for value in epoch if value is not None] for epoch in epochs)
    return max((mean(values) for values in known if len(values) == len(curves)), default=None)


def _probability_of(cell: CellOutcomes) -> float | None:
    found = []
    for outcome in cell.done:
        with suppress(RunError):  # its metrics cannot be read, as the report says
            found.append(update_probability(outcome.metrics))
    there = [probability for probability in found if probability is not None]
    return mean(there) if there else None


def _of_claims(results: StudyResults) -> tuple[ClaimStatistics, ...]:
    study, planned = results.study, results.study.planned(results.scale)
    whole = [CellOutcomes(cell, ()) for cell in study.cells(results.scale)]
    of_all = [row for claim in study.claims for row in _rows(claim, whole, planned)]
    there = [row for claim in study.claims for row in _rows(claim, results.cells, planned)]
    tables = {row.claim: row.ahead[1] for row in of_all if row.ahead}
    # Places that were picked do not stand for the table.
    rows = [row for row in there if not row.ahead or row.ahead[1] == tables[row.claim]]
    places = Counter(row.claim for row in of_all)

    def is_primary(row: _Row) -> bool:
        return row.claim.primary and (row.ahead is not None or places[row.claim] == 1)

    found: dict[int, ClaimStatistics] = {}
    for primary in (True, False):
        mine = [number for number, row in enumerate(rows) if is_primary(row) == primary]
        count = sum(is_primary(row) == primary for row in of_all)
        decided = _decided([rows[number] for number in mine], count, study)
        family: Literal["primary", "exploratory"] = "primary" if primary else "exploratory"
        for number, (corrected_p, verdict) in zip(mine, decided, strict=True):
            found[number] = rows[number].statistics(planned, family, corrected_p, verdict)
    return tuple(found[number] for number in sorted(found))


def _decided(family: Sequence[_Row], count: int, study: Study) -> list[tuple[float | None, str]]:
    """Return corrected p values and verdicts of a family, which has ``count`` claims in all."""
    level = LOOK if study.extended else SIGNIFICANT
    pairs = [row.pairs() for row in family]
    verdicts = decide(pairs, count, study.margin, level)
    sound = [row.pairs(without_collapsed=True) for row in family]
    for place, verdict in enumerate(decide(sound, count, study.margin, level)):
        # What stands on trials that collapsed is decided only if it is without them too.
        if pairs[place].complete and family[place].collapsed and verdict != verdicts[place]:
            verdicts[place] = UNDECIDED
    return list(zip(corrected(pairs, count), verdicts, strict=True))


class _Gain(NamedTuple):
    """By how much one cell, or a mean of several, is ahead of another, in percentage points."""

    by_seed: Mapping[int, float]
    images: Mapping[str, Mapping[int, NDArray[np.float64]]]
    """By test set and seed: an array over its images, of those that are known."""

    def pairs(self, planned: int | None, out: frozenset[int] = frozenset()) -> Pairs:
        """Return what a verdict is made from, without the seeds that are to stay out."""
        kept = sorted(self.by_seed.keys() - out)
        images = (
            image_variance([known[seed] for seed in kept if seed in known])
            for known in self.images.values()
        )
        return Pairs([self.by_seed[seed] for seed in kept], planned, images=math.fsum(images))


@dataclass(frozen=True)
class _Row:
    """A claim in one place, or over the whole table."""

    claim: Claim
    place: Mapping[str, str]
    gain: _Gain
    planned: int | None
    collapsed: frozenset[int]
    """Seeds of which a trial diverged or ended at chance."""
    cell: Cell | None = None
    baseline: Cell | None = None
    rivals: tuple[_Gain, ...] = ()
    ahead: tuple[int, int] | None = None

    def pairs(self, without_collapsed: bool = False) -> Pairs:
        """Return what a verdict is made from."""
        out = self.collapsed if without_collapsed else frozenset()
        planned = self.planned
        if planned is not None:
            planned -= len(out & self.gain.by_seed.keys())
        rivals = [rival.pairs(planned, out) for rival in self.rivals]
        return replace(self.gain.pairs(planned, out), rivals=rivals)

    def statistics(
        self,
        planned: int,
        family: Literal["primary", "exploratory"],
        corrected_p: float | None,
        verdict: str,
    ) -> ClaimStatistics:
        pairs, by_seed = self.pairs(), self.gain.by_seed
        values = pairs.differences
        return ClaimStatistics(
            claim=self.claim,
            place=self.place,
            cell=self.cell,
            baseline=self.baseline,
            pairs=len(values),
            planned=planned,
            by_seed={seed: by_seed[seed] for seed in sorted(by_seed)},
            difference=mean(values) if values else None,
            interval=t_interval(values, images=pairs.images),
            detectable=detectable(values, pairs.images),
            image_error=math.sqrt(pairs.images),
            ahead=self.ahead,
            collapsed=len(self.collapsed & by_seed.keys()),
            family=family,
            p=pairs.p,
            corrected_p=corrected_p,
            verdict=verdict,
        )


def _rows(claim: Claim, cells: Sequence[CellOutcomes], planned: int) -> list[_Row]:
    """Return what the trials say on a claim, place by place, and over all places."""
    if claim.grows:
        return _growth(claim, claim.grows, cells, planned)
    places: dict[tuple[tuple[str, str], ...], dict[str, CellOutcomes]] = {}
    for cell in cells:
        place = {**cell.cell.coordinates}
        label = place.pop(claim.axis)
        places.setdefault(tuple(place.items()), {})[label] = cell
    rows = []
    for at, there in places.items():
        ours, rivals = there.get(claim.better), [there[one] for one in claim.than if one in there]
        # The best of those that were picked is not the best of all.
        if ours is None or (claim.best and len(rivals) < len(claim.than)):
            continue
        theirs = max(rivals, key=_mean_or_none, default=None)
        as_planned = all(len(cell.outcomes) in (0, planned) for cell in (ours, *rivals))
        rows.append(
            _Row(
                claim,
                dict(at),
                _Gain({}, {}) if theirs is None else _gain(ours, theirs),
                planned if as_planned else None,
                frozenset().union(*(_collapsed(cell) for cell in (ours, *rivals))),
                ours.cell,
                None if theirs is None else theirs.cell,
                tuple(_gain(ours, rival) for rival in rivals) if claim.best else (),
            )
        )
    if len(places) > 1 and rows and not claim.best:
        rows.append(_over_the_table(claim, rows))
    return rows


def _growth(claim: Claim, at: Growth, cells: Sequence[CellOutcomes], planned: int) -> list[_Row]:
    """Return by how much a gain is larger at one label than at another, over all places."""
    gains: dict[tuple[str, ...], dict[str, _Row]] = {}
    for row in _rows(claim.model_copy(update={"grows": None}), cells, planned):
        if row.place and row.baseline:
            place = {**row.place}
            label = place.pop(at.axis)
            gains.setdefault(tuple(place.values()), {})[label] = row
    rows = [
        _sum(claim, [(1, there[at.end]), (-1, there[at.start])])
        for there in gains.values()
        if {at.start, at.end} <= there.keys()
    ]
    return [_over_the_table(claim, rows)] if rows else []


def _over_the_table(claim: Claim, rows: Sequence[_Row]) -> _Row:
    """Return the means of all places' differences, seed by seed.

    Places share seeds and data, so that their differences are not independent; seeds are.
    """
    ahead = sum(math.fsum(row.gain.by_seed.values()) > 0 for row in rows)
    whole = _sum(claim, [(1, row) for row in rows], among=len(rows))
    return replace(whole, ahead=(ahead, len(rows)))


def _sum(claim: Claim, rows: Sequence[tuple[int, _Row]], among: int = 1) -> _Row:
    """Return the weighted sum of rows, divided by a number, of the seeds that are known in all.

    Rows on one test set share its images; different test sets are sampled independently.
    """
    gains = [(weight, row.gain) for weight, row in rows]
    seeds = set.intersection(*(set(gain.by_seed) for _, gain in gains))
    by_seed = {
        seed: math.fsum(weight * gain.by_seed[seed] for weight, gain in gains) / among
        for seed in seeds
    }
    images = {}
    for test_set in dict.fromkeys(name for _, gain in gains for name in gain.images):
        parts = [
            (weight / among, gain.images[test_set])
            for weight, gain in gains
            if test_set in gain.images
        ]
        known = set.intersection(*(set(part) for _, part in parts))
        images[test_set] = {
            seed: np.sum([by * part[seed] for by, part in parts], axis=0) for seed in known
        }
    planned = {row.planned for _, row in rows}
    return _Row(
        claim,
        {},
        _Gain(by_seed, images),
        planned.pop() if len(planned) == 1 else None,
        frozenset().union(*(row.collapsed for _, row in rows)),
    )


def _gain(ours: CellOutcomes, baseline: CellOutcomes) -> _Gain:
    by_seed: dict[int, float] = {}
    images: dict[str, dict[int, NDArray[np.float64]]] = {}
    theirs = {outcome.seed: outcome.result for outcome in baseline.done}
    for outcome in ours.done:
        one, other = outcome.result, theirs.get(outcome.seed)
        if one is None or other is None or one.accuracy is None or other.accuracy is None:
            continue
        by_seed[outcome.seed] = one.accuracy.mean - other.accuracy.mean
        known = images.setdefault(one.data.test_sha256, {})
        shares = one.image_accuracy, other.image_accuracy
        if None not in shares and one.data.test_sha256 == other.data.test_sha256:
            known[outcome.seed] = np.subtract(*shares)  # type: ignore[arg-type]
    return _Gain(by_seed, images)


def _collapsed(cell: CellOutcomes) -> set[int]:
    """Return the seeds with which a trial diverged or ended at chance."""
    if not cell.done:
        return set()
    chance = 100 / len(DATASETS[cell.done[0].trial.dataset].classes)
    low = {seed for seed, value in accuracies(cell.done).items() if value <= chance + NEAR_CHANCE}
    return low | {one.seed for one in cell.done if one.status == "diverged"}


def _mean_or_none(cell: CellOutcomes) -> float:
    """Return a cell's mean accuracy, below all others if it has none."""
    values = list(accuracies(cell.outcomes).values())
    return mean(values) if values else -math.inf
