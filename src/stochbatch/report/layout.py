"""A study's cells laid out as in the article: rows of all axes but the last, columns of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, get_args

from stochbatch.report.provenance import cautions
from stochbatch.studies.cell import Cell
from stochbatch.studies.results import CellOutcomes, Outcome, Status, StudyResults
from stochbatch.studies.statistics import (
    CellStatistics,
    ClaimStatistics,
    Interval,
    StudyStatistics,
    statistics,
)

BATCH_SIZE = "batch size"
NONE = "\N{EN DASH}"
NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True)
class Layout:
    """Results and their statistics, by place."""

    results: StudyResults
    statistics: StudyStatistics

    @classmethod
    def of(cls, results: StudyResults) -> Layout:
        """Return the layout of what a study has left so far."""
        return cls(results, statistics(results))

    @cached_property
    def axes(self) -> list[str]:
        """Names of the axes, the one of the columns last."""
        return [axis.name for axis in self.results.study.axes]

    def labels(self, axis: str) -> list[str]:
        """Return the labels of an axis that are there, in the study's order."""
        return list(dict.fromkeys(cell.cell.coordinates[axis] for cell in self.results.cells))

    @cached_property
    def columns(self) -> list[str]:
        """Labels of the last axis."""
        return self.labels(self.axes[-1])

    @cached_property
    def rows(self) -> list[tuple[str, ...]]:
        """Labels of all other axes; one empty row if there are none."""
        return list(dict.fromkeys(cell.cell.key[:-1] for cell in self.results.cells))

    @cached_property
    def by_key(self) -> dict[tuple[str, ...], CellStatistics]:
        """Statistics of the cells by their labels."""
        return {found.cell.key: found for found in self.statistics.cells}

    @property
    def claims(self) -> tuple[ClaimStatistics, ...]:
        """What the trials say on the claims, in all their places."""
        return self.statistics.claims

    @cached_property
    def place_axes(self) -> list[str]:
        """Names of the axes that tell the places of a claim apart."""
        about = {claim.axis for claim in self.results.study.claims}
        return [axis for axis in self.axes if about != {axis}]

    @property
    def moving(self) -> list[CellStatistics]:
        """The cells whose weights move at random, each with its update probability."""
        return [found for found in self.statistics.cells if found.update_probability is not None]

    def claims_on(self, cell: Cell) -> list[ClaimStatistics]:
        """Return the claims that a cell is claimed to be better in."""
        return [found for found in self.claims if found.cell.key == cell.key]

    @cached_property
    def outcomes_by_key(self) -> dict[tuple[str, ...], CellOutcomes]:
        """The trials of the cells by their labels."""
        return {found.cell.key: found for found in self.results.cells}

    def cell(self, row: tuple[str, ...], column: str) -> CellStatistics | None:
        """Return what stands in a place; None where the grid was narrowed."""
        return self.by_key.get((*row, column))

    @cached_property
    def trials(self) -> list[Outcome]:
        """The distinct trials."""
        return self.results.trials

    @cached_property
    def counts(self) -> dict[str, int]:
        """Number of distinct trials by what became of them."""
        counted = Counter(outcome.status for outcome in self.trials)
        return {status: counted[status] for status in get_args(Status)}

    @property
    def verdicts(self) -> str:
        """How often each verdict was reached; empty if there is none to reach."""
        of_cells: Counter[str] = Counter(
            found.verdict for found in self.statistics.cells if found.verdict
        )
        of_claims: Counter[str] = Counter(found.verdict for found in self.claims)
        return "; ".join(
            f"{what} " + ", ".join(f"{counted[name]} {name}" for name in sorted(counted))
            for what, counted in (("cells", of_cells), ("claims", of_claims))
            if counted
        )

    @cached_property
    def cautions(self) -> list[str]:
        """What a reader has to know before the tables: sentences."""
        found = cautions(self.trials)
        if self.results.narrowed:
            over = ", and p values are corrected over them alone" if self.claims else ""
            found.insert(0, f"This is a part of the study: {self.results.narrowed}{over}.")
        return found

    @property
    def trials_a_cell(self) -> str:
        """How many trials the cells have: a number, or from which to which."""
        counts = sorted({found.n for found in self.statistics.cells})
        return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"

    @property
    def caption(self) -> str:
        """The study's caption, which is about its full scale."""
        text = self.results.study.caption
        if not text or self.results.scale.comparable:
            return text
        return f"{'In the article' if self.results.study.published else 'At full scale'}: {text}"

    @property
    def trained(self) -> str:
        """A sentence on what was trained here, of the trials themselves."""
        trials = [cell.cell.trial(0) for cell in self.results.cells]
        most = max((len(cell.outcomes) for cell in self.results.cells), default=0)

        def several(name: str, text: Callable[[Any], str] = str) -> str:
            values = dict.fromkeys(getattr(trial, name) for trial in trials)
            return ", ".join(map(text, values))

        width = several("width", "{:g}".format)
        return (
            f"Trained here: {several('network')}{'' if width == '1' else f' of width {width}'} on "
            f"{several('share', _part)} of {several('dataset')} for {several('epochs')} epochs, "
            f"{most} trials a cell."
        )

    @property
    def comparable(self) -> str:
        """A sentence on what may be compared with the article."""
        scale = self.results.scale
        if self.results.study.published is None:
            return "The article has no such table, so there is nothing published to compare with."
        if scale.comparable:
            return "Accuracies may be compared with the published ones."
        shown = any(cell.cell.published for cell in self.results.cells)
        return (
            "Accuracies at this scale are not comparable with the published ones"
            f"{', which are shown for orientation alone' if shown else ''}; "
            "only claims have verdicts."
        )


def _part(share: float) -> str:
    """Return a share of the data in words: all, a simple fraction, or a number."""
    if share == 1:
        return "all"
    near = Fraction(share).limit_denominator(1000)
    return str(near) if math.isclose(near, share) and near.numerator == 1 else f"{share:g}"


def number(value: float | None, digits: int = 2) -> str:
    """Return a number for a reader; a dash for none."""
    if value is None:
        return NONE
    text = f"{value:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def signed(value: float | None) -> str:
    """Return a difference with its sign."""
    if value is None:
        return NONE
    text = number(value)
    return f"+{text}" if float(text) > 0 else text


def between(interval: Interval | None) -> str:
    """Return both ends of an interval of differences."""
    if interval is None:
        return NONE
    return f"{signed(interval.low)} to {signed(interval.high)}"


def probability(value: float | None) -> str:
    """Return a p value."""
    if value is None:
        return NONE
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def share(value: float | None) -> str:
    """Return an update probability."""
    return NONE if value is None else f"{value:.3f}"


def ours(found: CellStatistics) -> str:
    """Return a cell's mean, half the width of its interval and its number of trials."""
    if found.mean is None:
        return NONE
    half = f" ± {number(found.interval.half_width)}" if found.interval else ""
    diverged = f", {found.diverged} diverged" if found.diverged else ""
    return f"{number(found.mean)}{half} ({found.n}{diverged})"


def verdict(found: CellStatistics) -> str:
    """Return a cell's verdict in words."""
    return found.verdict or NOT_COMPARABLE


def joined(labels: Sequence[str]) -> str:
    """Return labels of several axes as one name."""
    return ", ".join(labels)
