"""A study's cells as a table: rows of all axes but the last, columns of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, get_args

from stochbatch.report.palette import colours
from stochbatch.report.provenance import cautions
from stochbatch.studies.cell import Cell
from stochbatch.studies.outcome import Outcome, Status
from stochbatch.studies.results import CellOutcomes, StudyResults
from stochbatch.studies.statistics import (
    CellStatistics,
    ClaimStatistics,
    StudyStatistics,
    statistics,
)
from stochbatch.studies.verdicts import mean
from stochbatch.training import RunError

BATCH_SIZE = "batch size"

Group = dict[str, str]
"""Labels on the axes that a figure keeps fixed."""


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
    def varying(self) -> list[str]:
        """Names of the axes that tell cells apart: those with several labels, or else the last."""
        return [axis for axis in self.axes if len(self.labels(axis)) > 1] or self.axes[-1:]

    def key(self, place: Group) -> tuple[str, ...]:
        """Return the labels of a place in the order of the axes."""
        return tuple(place.get(axis, "") for axis in self.axes)

    def where(self, place: Group) -> str:
        """Return a title of a place: its labels on the axes that have several."""
        text = ", ".join(self.told_apart(place))
        return text[:1].upper() + text[1:]

    def told_apart(self, place: Mapping[str, str]) -> list[str]:
        """Return axes and labels of a place, where an axis has several."""
        return [f"{axis} {one}" for axis, one in place.items() if len(self.labels(axis)) > 1]

    @cached_property
    def by_key(self) -> dict[tuple[str, ...], CellStatistics]:
        """Statistics of the cells by their labels."""
        return {found.cell.key: found for found in self.statistics.cells}

    @property
    def claims(self) -> tuple[ClaimStatistics, ...]:
        """What the trials say on the claims, in all their places."""
        return self.statistics.claims

    def under(self, row: ClaimStatistics) -> list[ClaimStatistics]:
        """Return the comparisons in single places that one over all places is made of."""
        return [one for one in self.claims if one.claim == row.claim and one.cell]

    def published(self, row: ClaimStatistics) -> float | None:
        """Return the article's difference of a comparison; None where it lacks one of its cells.

        Of a claim to be the best it is the difference to the article's own next best.
        """
        claim = row.claim
        if row.cell and claim.best:
            others = [self._cell({**row.place, claim.axis: one}) for one in claim.than]
            gains = [_gain(row.cell, other) for other in others]
            return None if None in gains else min(one for one in gains if one is not None)
        if not row.ahead:
            return _gain(row.cell, row.baseline)
        gains = [_gain(one.cell, one.baseline) for one in self.under(row) if one.baseline]
        if at := claim.grows:
            ours, theirs = claim.better, claim.than[0]
            for group in self.places(claim.axis, at.axis):
                pairs = [
                    [self._cell({**group, at.axis: end, claim.axis: one}) for one in (ours, theirs)]
                    for end in (at.end, at.start)
                ]
                if all(cell for pair in pairs for cell in pair):
                    more, less = (_gain(*pair) for pair in pairs)
                    gains.append(None if more is None or less is None else more - less)
        known = [one for one in gains if one is not None]
        return mean(known) if known and known == gains else None

    def _cell(self, place: Group) -> Cell | None:
        found = self.by_key.get(self.key(place))
        return found.cell if found else None

    @cached_property
    def place_axes(self) -> list[str]:
        """Names of the axes that tell the places of a claim apart."""
        about = {claim.axis for claim in self.results.study.claims}
        return [axis for axis in self.axes if about != {axis}]

    @property
    def moving(self) -> list[CellStatistics]:
        """The cells whose weights move at random, each with its update probability."""
        return [found for found in self.statistics.cells if found.update_probability is not None]

    @cached_property
    def line_axis(self) -> str:
        """The axis whose points are compared: that of the first claim, or else the last."""
        claims = self.results.study.claims
        return claims[0].axis if claims else self.axes[-1]

    @cached_property
    def compared(self) -> set[str]:
        """Labels on that axis that the first claim is about; all if it names many or none."""
        claims = self.results.study.claims[:1]
        found = {label for claim in claims for label in (claim.better, *claim.than)}
        return found if len(found) == 2 else set(self.labels(self.line_axis))

    def colours(self, axis: str) -> dict[str, str]:
        """Return by label of an axis the name of its colour in all figures."""
        methods = {
            cell.cell.coordinates[axis]: str(cell.cell.fields.get("method", "sgd"))
            for cell in reversed(self.results.cells)
        }
        return colours({label: methods[label] for label in self.labels(axis)})

    @cached_property
    def trials(self) -> list[Outcome]:
        """The distinct trials."""
        return self.results.trials

    @cached_property
    def unreadable(self) -> dict[str, str]:
        """Why the metrics of a run that is over cannot be read, by its trial's hash."""
        found = {}
        for outcome in self.trials:
            try:
                _ = outcome.result and outcome.metrics
            except RunError as error:
                found[outcome.trial.hash] = str(error)
        return found

    @cached_property
    def _drawn(self) -> dict[tuple[str, ...], CellOutcomes]:
        """The cells by their labels, with the trials that figures are drawn of."""
        out = self.unreadable
        found = {}
        for cell in self.results.cells:
            done = tuple(one for one in cell.done if not out or one.trial.hash not in out)
            if done:
                found[cell.cell.key] = replace(cell, outcomes=done)
        return found

    def places(self, *but: str) -> list[Group]:
        """Return the places on all axes but these, in order."""
        found: dict[tuple[str, ...], Group] = {}
        for cell in self.results.cells:
            group = {name: text for name, text in cell.cell.coordinates.items() if name not in but}
            found.setdefault(tuple(group.values()), group)
        return list(found.values())

    def along(self, axis: str, group: Group) -> dict[str, CellOutcomes]:
        """Return the cells along an axis that can be drawn, by their labels on it."""
        places = {label: self.key({**group, axis: label}) for label in self.labels(axis)}
        return {label: self._drawn[key] for label, key in places.items() if key in self._drawn}

    @cached_property
    def counts(self) -> dict[str, int]:
        """Number of distinct trials by what became of them."""
        counted = Counter(outcome.status for outcome in self.trials)
        return {status: counted[status] for status in get_args(Status)}

    @cached_property
    def cautions(self) -> list[str]:
        """What a reader has to know before the tables: sentences."""
        found = cautions(self.results)
        if self.results.narrowed:
            found.insert(0, f"This is a part of the study: {self.results.narrowed}.")
        if self.unreadable:
            found.append(
                "Runs whose metrics cannot be read count in the tables, but not in figures and "
                f"update probabilities: {'; '.join(self.unreadable.values())}."
            )
        return found

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
            f"{most} trials per cell."
        )

    @property
    def comparable(self) -> str:
        """A sentence on what may be compared with the article."""
        if self.results.study.published is None:
            return "The article has no such table, so there is nothing published to compare with."
        shown = any(cell.cell.published for cell in self.results.cells)
        if self.results.scale.comparable:
            if shown:
                return "Accuracies may be compared with the published ones."
            return "The article did not train like this, so there is nothing to compare with."
        return (
            "Accuracies at this scale are not comparable with the published ones"
            f"{', which are shown only for orientation' if shown else ''}; "
            "only claims have verdicts."
        )


def seconds_of(outcomes: Iterable[Outcome]) -> float:
    """Return the time that these trials took."""
    results = [one.result for one in outcomes if one.result]
    return math.fsum(result.times.get("seconds", 0.0) for result in results)


def _gain(cell: Cell | None, baseline: Cell | None) -> float | None:
    """Return the difference of two published means."""
    means = [one.published.mean for one in (cell, baseline) if one and one.published]
    return means[0] - means[1] if len(means) == 2 else None


def _part(share: float) -> str:
    """Return a share of the data in words: all, a simple fraction, or a number."""
    if share == 1:
        return "all"
    near = Fraction(share).limit_denominator(1000)
    return str(near) if math.isclose(near, share) and near.numerator == 1 else f"{share:g}"
