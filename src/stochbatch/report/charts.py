"""What the page draws: places of marks, in percent of a width and in pixels of a height."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

from stochbatch.report.answer import Kind, kind, named
from stochbatch.report.formatting import minus, number, signed
from stochbatch.report.layout import BATCH_SIZE, Group, Layout
from stochbatch.studies.statistics import CellStatistics, ClaimStatistics, accuracies

MANY = 9
"""No more panels of a kind than this, those of Figure 2; of more groups the first batch size is
drawn."""
HEIGHT, LABEL = 232, 17
"""Pixels of a panel, and of a label beside a line."""
BRIEF = 15
"""Letters of a label and its number where there is little room."""

Point = tuple[int, float, float, float]
"""An epoch, and the lowest, the mean and the highest number of the trials there."""


@dataclass(frozen=True)
class Span:
    """What an axis shows."""

    low: float
    high: float
    log: bool = False

    def at(self, value: float) -> float:
        """Return where a value is: 0 at the low end, 1 at the high one."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = map(math.log, (low, high, value))
        return (value - low) / (high - low) if high > low else 0.5

    def x(self, value: float) -> str:
        """Return where a value is, in percent of the width."""
        return f"{100 * min(1.0, max(0.0, self.at(value))):.2f}%"

    def y(self, value: float, height: float = HEIGHT) -> float:
        """Return how far below the top a value is; it may be outside."""
        return round(height * (1 - self.at(value)), 1)

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def ticks(self, count: int = 5) -> list[float]:
        """Return round numbers within it, about as many as asked for."""
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            digits = (1, 2, 5) if self.high / self.low < 100 else (1,)
            found = [d * 10.0**e for e in range(first, last + 1) for d in digits]
            return [float(f"{one:g}") for one in found if one in self]
        step = _step((self.high - self.low) / count)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [round(place * step, 10) for place in range(first, last + 1)]


def _step(size: float) -> float:
    """Return 1, 2 or 5 times a power of ten, not below a size."""
    if size <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(size))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= size * 0.999)


def around(values: Iterable[float], least: float = 1.0) -> Span:
    """Return a span with round ends that holds these values and a tenth more, within 0 to 100."""
    there = sorted(values)
    low, high = (there[0], there[-1]) if there else (0.0, 100.0)
    room = max(0.1 * (high - low), least / 2)
    step = _step((high - low + 2 * room) / 5)
    low, high = step * math.floor((low - room) / step), step * math.ceil((high + room) / step)
    return Span(max(0.0, low), min(100.0, high))


def short(label: str, value: str) -> tuple[str, str]:
    """Return a label and its number for little room, the number without its epoch."""
    value = value.partition(",")[0]
    room = BRIEF - len(value)
    return label if len(label) <= room else f"{label[: room - 1].rstrip(' ,-')}…", value


# Differences: a forest plot.


@dataclass(frozen=True)
class Comparison:
    """A row of the forest plot."""

    row: ClaimStatistics
    name: str
    note: str
    published: float | None

    @property
    def kind(self) -> Kind:
        """The kind of its verdict."""
        return kind(self.row)

    @property
    def tip(self) -> str:
        """All its numbers in words."""
        row, seeds = self.row, ", ".join(map(signed, self.row.by_seed.values()))
        lines = [f"By seed: {seeds}" if seeds else "No pair of trials is done yet"]
        if row.interval is not None:
            low, high = signed(row.interval.low), signed(row.interval.high)
            lines.append(f"Mean {signed(row.difference)}, 95 % interval {low} to {high}")
        if self.published is not None:
            lines.append(f"Published: {signed(self.published)}")
        return minus("\n".join([self.name, *lines]))


@dataclass(frozen=True)
class Forest:
    """All comparisons, by claim."""

    groups: list[tuple[str, list[Comparison]]]
    span: Span
    """The same number on both sides of zero."""

    @property
    def published(self) -> bool:
        """Whether the article prints any of the differences."""
        return any(one.published is not None for _, rows in self.groups for one in rows)


def forest(layout: Layout) -> Forest:
    """Return the comparisons of all claims with the range that they are drawn in."""
    groups = []
    for claim in layout.results.study.claims:
        rows = [comparison(layout, row) for row in layout.claims if row.claim == claim]
        rows.sort(key=lambda one: not one.row.ahead)  # the whole before its places
        if rows:
            title = f"Claim: {str(claim).removesuffix(', all else being equal.')}"
            groups.append((title, rows))
    return drawn(groups)


def drawn(groups: list[tuple[str, list[Comparison]]]) -> Forest:
    """Return comparisons with the range that they are drawn in."""
    return Forest(groups, _both_sides([one for _, rows in groups for one in rows]))


def comparison(layout: Layout, row: ClaimStatistics) -> Comparison:
    """Return a row of the plot."""
    claim, note = row.claim, ""
    if row.baseline and row.pairs and claim.best:
        note = f"{claim.better} against {row.baseline.coordinates[claim.axis]}"
    elif row.ahead and row.ahead[1] > 1:
        more = "larger" if claim.grows else "ahead"
        note = f"{more} in {row.ahead[0]} of {row.ahead[1]}"
        done = sum(one.difference is not None for one in layout.under(row))
        if not claim.grows and done < row.ahead[1]:
            note = f"{done} of {row.ahead[1]} run"
    name = named(layout, row, under_claim=True)
    return Comparison(row, name, note, layout.published(row))


def _both_sides(rows: Sequence[Comparison]) -> Span:
    """Return a range around zero that most comparisons fit in; others become arrows."""
    sizes = sorted(abs(one.row.difference) for one in rows if one.row.difference is not None)
    wanted = [abs(one.published) for one in rows if one.published is not None]
    sizes = [size for size in sizes if size <= 6 * sizes[len(sizes) // 2] + 1]
    sizes = sizes or [max(wanted, default=1.0)]
    wanted.append(sizes[-1])
    for one in rows:
        if one.row.interval is not None:
            wanted += [abs(one.row.interval.low), abs(one.row.interval.high)]
    half = 1.1 * min(max(wanted), 2.5 * sizes[-1] + 1)
    step = _step(half / 3)
    half = step * math.ceil(half / step)
    return Span(-half, half)


# Results: dots by seed.


@dataclass(frozen=True)
class Strip:
    """The trainings of one cell."""

    label: str
    colour: str
    statistics: CellStatistics
    seeds: Mapping[int, float]
    missing: int
    """Trials that are not over."""

    def outside(self, span: Span) -> str:
        """Return the results that are not drawn."""
        return ", ".join(f"{value:.1f}" for value in self.seeds.values() if value not in span)

    @property
    def tip(self) -> str:
        """Its numbers in words."""
        found = self.statistics
        seeds = ", ".join(map(number, self.seeds.values())) or "none is done yet"
        lines = [self.label, f"By seed, in percent: {seeds}"]
        if found.mean is not None:
            lines.append(f"Mean {number(found.mean)}")
        if found.diverged:
            lines.append(f"{found.diverged} diverged")
        if found.cell.published:
            lines.append(f"Published mean: {number(found.cell.published.mean)}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Strips:
    """Cells that differ on one axis only."""

    title: str
    rows: list[Strip]


def strips(layout: Layout) -> tuple[list[Strips], Span]:
    """Return the results by place, and the range that they are drawn in."""
    axis = layout.line_axis
    colours = layout.colours(axis)
    outcomes = {cell.cell.key: cell for cell in layout.results.cells}
    found = []
    for group in layout.places(axis):
        rows = []
        for label in layout.labels(axis):
            key = layout.key({**group, axis: label})
            if cell := outcomes.get(key):
                seeds = accuracies(cell.outcomes)
                missing = len(cell.outcomes) - len(cell.done)
                rows.append(Strip(label, colours[label], layout.by_key[key], seeds, missing))
        if any(row.seeds for row in rows):
            found.append(Strips(layout.where(group), rows))
    every = [row for one in found for row in one.rows]
    values = [v for row in every if row.label in layout.compared for v in row.seeds.values()]
    return found, around(values or [v for row in every for v in row.seeds.values()])


# Curves.


@dataclass(frozen=True)
class Line:
    """Accuracy over the epochs, mean over the trials."""

    label: str
    colour: str
    hero: bool
    """Whether the study compares it."""
    points: list[Point]
    ends: list[float]
    """By trial, in its last epoch."""


@dataclass(frozen=True)
class Curves:
    """Lines of one place."""

    title: str
    lines: list[Line]
    epochs: int
    height: int

    @property
    def x(self) -> Span:
        """The epochs as an axis."""
        return Span(1, max(2, self.epochs))

    def path(self, line: Line, span: Span) -> str:
        """Return a line as the path of a drawing that is 1000 wide."""
        at = [
            f"{1000 * self.x.at(epoch):.1f} {span.y(mean, self.height):g}"
            for epoch, _, mean, _ in line.points
        ]
        return f"M{'L'.join(at if len(at) > 1 else at * 2)}"

    def ticks(self) -> list[tuple[int, str]]:
        """Return some epochs with their places in percent."""
        step = int(max(1, _step(self.epochs / 4)))
        found = {1, *range(step, self.epochs - step // 2, step), self.epochs}
        return [(epoch, self.x.x(epoch)) for epoch in sorted(found)]

    def labels(self, span: Span) -> list[tuple[Line, str, float, float]]:
        """Return for each line its value, where it ends, and where its label stands."""
        found = []
        for line in self.lines:
            epoch, _, value, _ = line.points[-1]
            text = f"{'' if value >= span.low else '↓ '}{value:.1f}"
            end = min(max(span.y(value, self.height), 0.0), float(self.height))
            found.append((line, text if epoch == self.epochs else f"{text}, ep. {epoch}", end))
        found.sort(key=lambda one: (one[2], -one[0].points[-1][2]))
        places = apart([end for _, _, end in found], self.height)
        return [(*one, place) for one, place in zip(found, places, strict=True)]


def apart(wanted: Sequence[float], height: float) -> list[float]:
    """Return places near the wanted ones, in their order, with room for a label at each.

    Example:
        >>> from stochbatch.report.charts import apart
        >>> apart([5.0, 6.0, 100.0], 100)
        [8.5, 25.5, 95.0]
    """
    found: list[float] = []
    for place in wanted:
        found.append(max(place, found[-1] + LABEL if found else LABEL / 2))
    below = height - 5.0
    for at, place in reversed(list(enumerate(found))):
        found[at] = min(place, below)
        below = found[at] - LABEL
    return found


def lines(layout: Layout, group: Group) -> list[Line]:
    """Return the curves of one place."""
    axis = layout.line_axis
    colours = layout.colours(axis)
    found = []
    for label, cell in layout.along(axis, group).items():
        curves = [one.result.curve for one in cell.done if one.result]
        if points := over_trials(curves):
            known = [[value for value in curve if value is not None] for curve in curves]
            ends = [curve[-1] for curve in known if curve]
            found.append(Line(label, colours[label], label in layout.compared, points, ends))
    return found


def over_trials(curves: Sequence[Sequence[float | None]]) -> list[Point]:
    """Return epoch, lowest, mean and highest of the trials that have a number there.

    Example:
        >>> from stochbatch.report.charts import over_trials
        >>> over_trials([[1.0, None, 2.0], [3.0]])
        [(1, 1.0, 2.0, 3.0), (3, 2.0, 2.0, 2.0)]
    """
    found = []
    for epoch, column in enumerate(zip_longest(*curves), 1):
        there = [value for value in column if value is not None and not math.isnan(value)]
        if there:
            found.append((epoch, min(there), math.fsum(there) / len(there), max(there)))
    return found


def curves(layout: Layout) -> tuple[list[Curves], Span]:
    """Return curves by place, nine at most, and the range of accuracies that they share."""
    found: list[Curves] = []
    values: list[float] = []
    for group in groups(layout)[0]:
        if there := lines(layout, group):
            epochs = max(line.points[-1][0] for line in there)
            height = max(HEIGHT, LABEL * len(there) + 16)
            found.append(Curves(layout.where(group), there, epochs, height))
            for line in [one for one in there if one.hero] or there:
                values += line.ends
                values += [mean for epoch, _, mean, _ in line.points if 2 * epoch > epochs]
    return found, around(values)


class LeftOut(NamedTuple):
    """Figures that are not drawn: which and why, and options that draw the first of them."""

    text: str
    options: str


def groups(layout: Layout) -> tuple[list[Group], list[LeftOut]]:
    """Return for which places there are curves, and which are left out as in the article."""
    axis = layout.line_axis
    found = [group for group in layout.places(axis) if layout.along(axis, group)]
    left_out = []
    if len(found) > MANY and BATCH_SIZE in found[0]:
        first = found[0][BATCH_SIZE]
        if others := [group for group in found if group[BATCH_SIZE] != first]:
            text = f"curves of other batch sizes than {first}, as in the article"
            left_out.append(LeftOut(text, options({BATCH_SIZE: others[0][BATCH_SIZE]})))
            found = [group for group in found if group[BATCH_SIZE] == first]
    if more := found[MANY:]:
        left_out.append(LeftOut(f"curves of {len(more)} more places", options(more[0])))
    return found[:MANY], left_out


def options(group: Group) -> str:
    """Return the options of a command that keep only these labels."""
    return " ".join(f"--only {shlex.quote(f'{axis}={label}')}" for axis, label in group.items())
