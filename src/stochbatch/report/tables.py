"""The tables of a report, made from a layout for any writer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from stochbatch.report.formatting import (
    NONE,
    NOT_COMPARABLE,
    between,
    mean,
    number,
    p_value,
    published_mean,
    signed,
    verdict,
)
from stochbatch.report.layout import Layout
from stochbatch.studies.claim import Claim
from stochbatch.studies.outcome import Status
from stochbatch.studies.statistics import CellStatistics, ClaimStatistics
from stochbatch.studies.verdicts import LOOK, SIGNIFICANT, Interval

READINGS = (
    "Three readings of a maximum, in percent: the best epoch of any trial; the mean over the "
    "trials of each one's best epoch; the best epoch of the mean curve."
)
UPDATE_PROBABILITY = (
    "Mean update probability: with which a weight moves in a step, over weights, epochs and trials."
)
TESTED = (
    "Differences in percentage points, paired by seed. p: paired t test, two-sided; corrected by "
    "Holm's method over all claims of the study, primary and exploratory ones apart. Better or "
    "worse: corrected p below {level:g}. No practical difference: the 90 % interval lies within "
    "{margin:g} of zero, corrected likewise. Detectable: the difference that one such test finds "
    "with probability 0.8. Intervals are not corrected. There is a verdict when all planned pairs "
    "are done."
)
FEW_IMAGES = (
    "Test sets below 2,000 images are a sample too: there intervals and p count in that other "
    "images might have been drawn."
)


@dataclass(frozen=True)
class Table:
    """A table for any writer."""

    caption: str
    """Sentences that explain what is in it."""
    head: Sequence[str]
    rows: Sequence[Sequence[Any]]
    """Texts; or numbers, where a writer gives all their digits."""
    labels: int = 0
    """How many of the first columns name the row."""
    texts: int = 0
    """How many of those after them hold words instead of numbers."""

    def without(self, *names: str) -> Table:
        """Return the table without these columns; those that name the row stay."""
        kept = [n for n, name in enumerate(self.head) if n < self.labels or name not in names]
        rows = [[row[n] for n in kept] for row in self.rows]
        return replace(self, head=[self.head[n] for n in kept], rows=rows)


def cells(layout: Layout) -> Table:
    """Return the accuracies for a text: a column per label of the last axis, dashes for gaps."""
    *left, last = layout.axes
    columns = layout.labels(last)
    rows = []
    for place in layout.places(last):
        there = [layout.by_key.get(layout.key({**place, last: label})) for label in columns]
        rows.append([*place.values(), *(NONE if one is None else _in_full(one) for one in there)])
    words = ["mean ± half of the 95 % interval (trials)"]
    words += ["published mean"] * any(one.cell.published for one in layout.statistics.cells)
    words += ["verdict"] * any(one.verdict for one in layout.statistics.cells)
    return Table(f"Each cell: {'; '.join(words)}.", [*left, *columns], rows, labels=len(left))


def _in_full(found: CellStatistics) -> str:
    if found.mean is None:
        return NONE
    diverged = f", {found.diverged} diverged" if found.diverged else ""
    published = published_mean(found) if found.cell.published else None
    parts = [f"{mean(found)} ({found.n}{diverged})", published, found.verdict]
    return "; ".join(part for part in parts if part)


def accuracy(layout: Layout) -> Table:
    """Return a row per cell for the page; what is the same in all rows stands in the caption."""
    axes = layout.varying
    fixed = [f"{axis} {layout.labels(axis)[0]}" for axis in layout.axes if axis not in axes]
    cells = layout.statistics.cells
    columns: dict[str, Callable[[CellStatistics], str]] = {
        "accuracy, %": mean,
        "trials": lambda found: (
            str(found.n) + (f", {found.diverged} diverged" * bool(found.diverged))
        ),
        "std": lambda found: number(found.std),
    }
    if any(found.cell.published for found in cells):
        columns["published"] = published_mean
    if layout.moving:
        columns["update probability"] = lambda found: number(found.update_probability, 3)
    caption = [f"In all rows: {', '.join(fixed)}."] if fixed else []
    caption.append(
        "Test accuracy over the last 10 % of the epochs: mean over the trials, diverged ones "
        "included, ± half of the 95 % interval; standard deviation over the trials."
    )
    if any(found.verdict for found in cells):
        columns["verdict"] = verdict
    elif layout.results.study.published:
        caption.append(f"Cells are {NOT_COMPARABLE} with the article at this scale.")
    if layout.moving:
        caption.append(UPDATE_PROBABILITY)
    rows = [
        [*(found.cell.coordinates[axis] for axis in axes), *(of(found) for of in columns.values())]
        for found in cells
    ]
    return Table(" ".join(caption), [*axes, *columns], rows, labels=len(axes))


def best(layout: Layout) -> Table:
    """Return the best epochs, a row per cell, for the page."""
    cells = layout.statistics.cells
    head = [*layout.axes, "any trial", "mean of trials", "mean curve"]
    rows = [
        [*one.cell.key, *map(number, (one.best, one.mean_best, one.curve_best))] for one in cells
    ]
    if any(one.cell.published and one.cell.published.max for one in cells):
        head.append("published")
        for row, one in zip(rows, cells, strict=True):
            row.append(number(one.cell.published.max if one.cell.published else None))
    return Table(READINGS, head, rows, labels=len(layout.axes))


def claims(layout: Layout) -> Table:
    """Return the claims with their verdicts; what is the same in all rows has no column."""
    made, found = layout.results.study.claims, layout.claims
    study = layout.results.study
    caption = [TESTED.format(level=LOOK if study.extended else SIGNIFICANT, margin=study.margin)]
    if any(row.image_error for row in found):
        caption.append(FEW_IMAGES)
    if printed := any(layout.published(row) is not None for row in found):
        caption.append("Published: the same difference in the article's table.")
    axes = [axis for axis in layout.place_axes if len(layout.labels(axis)) > 1]
    several = len(made) > 1
    head = [
        *(["claim"] if several else []),
        *(*axes, "better", "than", "pairs", "difference"),
        *(["published"] if printed else []),
        *("95 % interval", "detectable", "p", "p corrected", "family", "verdict"),
    ]
    rows = [
        [
            *([_name(layout, row.claim)] if several else []),
            *(row.place.get(axis, _all_places(row, axis)) for axis in axes),
            *_sides(row),
            *(f"{row.pairs} of {row.planned}", signed(row.difference)),
            *([signed(layout.published(row))] if printed else []),
            *(between(row.interval), number(row.detectable), p_value(row.p)),
            *(p_value(row.corrected_p), row.family, row.verdict),
        ]
        for row in found
    ]
    return Table(" ".join(caption), head, rows, labels=len(axes) + several, texts=2)


def _all_places(row: ClaimStatistics, axis: str) -> str:
    """Return what stands for the place of a row that is over the whole table."""
    return "all" if row.ahead and axis != row.claim.axis else NONE


def _sides(row: ClaimStatistics) -> list[str]:
    claim = row.claim
    if row.ahead:
        ours, theirs = claim.sides
        more = "larger" if claim.grows else "ahead"
        return [f"{ours} ({more} in {row.ahead[0]} of {row.ahead[1]})", theirs]
    if row.baseline is None:
        return [claim.better, f"{claim.than[0]} (left out)"]
    theirs = row.baseline.coordinates[claim.axis]
    return [claim.better, f"{theirs} (best of {len(claim.than)})" if claim.best else theirs]


def _name(layout: Layout, claim: Claim) -> str:
    return claim.name or f"claim {layout.results.study.claims.index(claim) + 1}"


def cells_in_full(layout: Layout) -> Table:
    """Return one row per cell with all its numbers."""
    head = [
        *(*layout.axes, "n", *get_args(Status), "mean", "std", "low", "high"),
        *("best", "mean_best", "curve_best", "update_probability"),
        *("published_mean", "published_max", "verdict"),
    ]
    rows = [
        [
            *(*found.cell.key, found.n),
            *(sum(one.status == status for one in cell.outcomes) for status in get_args(Status)),
            *(found.mean, found.std, *_ends(found.interval)),
            *(found.best, found.mean_best, found.curve_best, found.update_probability),
            *(found.cell.published or (None, None)),
            verdict(found),
        ]
        for cell, found in zip(layout.results.cells, layout.statistics.cells, strict=True)
    ]
    return Table("", head, rows)


def claims_in_full(layout: Layout) -> Table:
    """Return one row per claim and place, with all its numbers."""
    head = [
        *("claim", "axis", *layout.place_axes, "better", "than"),
        *("pairs", "difference", "difference_low", "difference_high"),
        *("planned", "detectable", "collapsed", "p", "corrected_p", "family", "verdict"),
        "published_difference",
    ]
    rows = [
        [
            *(_name(layout, row.claim), row.claim.axis),
            *(row.place.get(axis, "") for axis in layout.place_axes),
            *_labels(row),
            *(row.pairs, row.difference, *_ends(row.interval)),
            *(row.planned, row.detectable, row.collapsed),
            *(row.p, row.corrected_p, row.family, row.verdict, layout.published(row)),
        ]
        for row in layout.claims
    ]
    return Table("", head, rows)


def _labels(row: ClaimStatistics) -> Sequence[str | None]:
    """Return the labels of both sides of a claim; None if one was left out."""
    if row.ahead:
        return row.claim.sides
    cells = row.cell, row.baseline
    return [None if cell is None else cell.coordinates[row.claim.axis] for cell in cells]


def _ends(interval: Interval | None) -> tuple[float | None, float | None]:
    return (None, None) if interval is None else (interval.low, interval.high)
