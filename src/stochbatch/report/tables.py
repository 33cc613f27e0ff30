"""The tables of a report, made from a layout for any writer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from stochbatch.report.formatting import (
    NONE,
    NOT_COMPARABLE,
    best_epochs,
    between,
    mean,
    mean_of_trials,
    number,
    p_value,
    published_max,
    published_mean,
    side,
    signed,
    verdict,
)
from stochbatch.report.layout import Layout
from stochbatch.studies.cell import Cell
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
    "with 80 %. Intervals are not corrected. There is a verdict when all planned pairs are over."
)
FEW_IMAGES = (
    "Test sets below 2,000 images are a sample too: there intervals and p count in that other "
    "images might have been drawn."
)
CHOICE = (
    "Of a side with several labels the one with the highest mean accuracy over its trials so far "
    "stands for it. It was chosen on the same trials as are compared here, so such a claim has no "
    "verdict: only fresh seeds could give it one."
)
UNEQUAL = "Where one side has more labels to choose from than the other, that favours it."
MARKS = {"agrees": "\N{SUPERSCRIPT EQUALS SIGN}", "higher": "↑", "lower": "↓"}


@dataclass(frozen=True)
class Table:
    """A table for any writer."""

    caption: str
    """Sentences that explain what is in it."""
    head: Sequence[str]
    rows: Sequence[Sequence[Any]]
    """Texts; numbers where a writer gives all their digits; cells where it picks what to show."""
    labels: int = 0
    """How many of the first columns name the row."""
    texts: int = 0
    """How many of those after them hold words instead of numbers."""

    def without(self, *names: str) -> Table:
        """Return the table without these columns; those that name the row stay."""
        kept = [n for n, name in enumerate(self.head) if n < self.labels or name not in names]
        rows = [[row[n] for n in kept] for row in self.rows]
        return replace(self, head=[self.head[n] for n in kept], rows=rows)


def grid(
    layout: Layout,
    caption: str = "",
    entry: Callable[[CellStatistics], Any] = lambda found: found,
    cells: Iterable[CellStatistics] | None = None,
) -> Table:
    """Return the cells, by default all, a column per label of the last axis; dashes for gaps."""
    keys = [found.cell.key for found in (layout.statistics.cells if cells is None else cells)]
    columns = [name for name in layout.labels(layout.axes[-1]) if any(k[-1] == name for k in keys)]
    rows = []
    for place in dict.fromkeys(key[:-1] for key in keys):
        there = [layout.by_key.get((*place, name)) for name in columns]
        rows.append([*place, *(NONE if found is None else entry(found) for found in there)])
    left = layout.axes[:-1]
    return Table(caption, [*left, *columns], rows, labels=len(left))


def cells_in_text(layout: Layout) -> Table:
    """Return the accuracies with everything in one line."""
    published = bool(layout.results.study.published)

    def entry(found: CellStatistics) -> str:
        parts = [mean_of_trials(found)]
        return "; ".join([*parts, published_mean(found), verdict(found)] if published else parts)

    more = "; published mean; verdict" if published else ""
    caption = f"Each cell: mean ± half of the 95 % interval (trials){more}."
    return grid(layout, caption, entry)


def cells_in_print(layout: Layout) -> Table:
    """Return the accuracies with signs for verdicts, and all that a caption has to say."""
    study, scale = layout.results.study, layout.results.scale

    def entry(found: CellStatistics) -> str:
        if found.mean is None:
            return NONE
        mark = MARKS.get(found.verdict or "", "") + ("†" if found.diverged else "")
        published = f" ({published_mean(found)})" if found.cell.published else ""
        return f"{mean(found)}{mark}{published}"

    brackets = ", in brackets the published mean" if study.published else ""
    caption = (
        f"{layout.caption} Mean ± half of the 95 % interval over the "
        f"trials{brackets}. Trials per cell: {layout.trials_a_cell}. {scale.summary} "
        f"{' '.join([layout.trained, layout.comparable, *layout.cautions])}"
    )
    if any(found.diverged for found in layout.statistics.cells):
        caption += " Dagger: some of its trials diverged, and count as they ended."
    if study.published and scale.comparable:
        caption += " Equal sign: it agrees with the article; arrows: ours is higher, or lower."
    return grid(layout, caption, entry)


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
    maxima = has_maxima(layout)
    head = [*layout.axes, "any trial", "mean of trials", "mean curve"]
    rows = [
        [
            *found.cell.key,
            *map(number, (found.best, found.mean_best, found.curve_best)),
            *([published_max(found)] if maxima else []),
        ]
        for found in layout.statistics.cells
    ]
    head += ["published"] if maxima else []
    return Table(READINGS, head, rows, labels=len(layout.axes))


def spread(layout: Layout) -> Table:
    """Return standard deviations and best epochs."""
    maxima = has_maxima(layout)

    def entry(found: CellStatistics) -> str:
        if found.mean is None:
            return NONE
        bracket = f" ({published_max(found)})" if maxima else ""
        return f"{number(found.std)}; {best_epochs(found)}{bracket}"

    bracket = " In brackets the published maximum." if maxima else ""
    caption = f"Standard deviation over the trials. {READINGS}{bracket}"
    return grid(layout, caption, entry)


def update_probabilities(layout: Layout) -> Table:
    """Return the update probabilities of the cells whose weights move at random."""
    table = grid(
        layout,
        UPDATE_PROBABILITY,
        lambda found: number(found.update_probability, 3),
        layout.moving,
    )
    if len(layout.labels(layout.axes[-1])) > 1:
        return table
    # A single column's label says what the study's cells are, not these.
    return replace(table, head=[*table.head[:-1], "update probability"])


def claims(layout: Layout) -> Table:
    """Return the claims with their verdicts; what is the same in all rows has no column."""
    made, found = layout.results.study.claims, layout.claims
    study = layout.results.study
    caption = [TESTED.format(level=LOOK if study.extended else SIGNIFICANT, margin=study.margin)]
    if any(row.image_error for row in found):
        caption.append(FEW_IMAGES)
    if any(claim.chooses for claim in made):
        caption.append(CHOICE)
    if any(row.among != row.baseline_among for row in found if row.claim.chooses):
        caption.append(UNEQUAL)
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
    claim, axis = row.claim, row.claim.axis
    if row.ahead:
        ours, theirs = claim.sides
        more = "larger" if claim.grows else "ahead"
        return [f"{ours} ({more} in {row.ahead[0]} of {row.ahead[1]})", theirs]
    return [
        side(claim.better, row.cell, axis, row.among, row.present),
        side(claim.than, row.baseline, axis, row.baseline_among, row.baseline_present),
    ]


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
        *("claim", "axis", *layout.place_axes, "better", "better_among", "than", "than_among"),
        *("pairs", "difference", "difference_low", "difference_high"),
        *("planned", "detectable", "collapsed", "p", "corrected_p", "family", "verdict"),
        "published_difference",
    ]
    rows = [
        [
            *(_name(layout, row.claim), row.claim.axis),
            *(row.place.get(axis, "") for axis in layout.place_axes),
            *(_label(row.cell, row, row.claim.better), row.among),
            *(_label(row.baseline, row, row.claim.than), row.baseline_among),
            *(row.pairs, row.difference, *_ends(row.interval)),
            *(row.planned, row.detectable, row.collapsed),
            *(row.p, row.corrected_p, row.family, row.verdict, layout.published(row)),
        ]
        for row in layout.claims
    ]
    return Table("", head, rows)


def _label(cell: Cell | None, row: ClaimStatistics, labels: Sequence[str]) -> str | None:
    """Return the label of one side of a claim; None if it was left out."""
    if row.ahead:
        return row.claim.sides[0 if labels == row.claim.better else 1]
    return None if cell is None else cell.coordinates[row.claim.axis]


def _ends(interval: Interval | None) -> tuple[float | None, float | None]:
    return (None, None) if interval is None else (interval.low, interval.high)


def has_maxima(layout: Layout) -> bool:
    """Return whether the article has a maximum for any of the cells."""
    cells = (found.cell.published for found in layout.statistics.cells)
    return any(published and published.max for published in cells)
