"""What tuning tried, for a report: every setting with its seeds, and what another budget gives."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stochbatch.report.charts import Span, around
from stochbatch.report.formatting import NONE, number
from stochbatch.report.heat_maps import steps_of
from stochbatch.report.layout import Layout, seconds_of
from stochbatch.report.tables import Table
from stochbatch.studies.outcome import Outcome
from stochbatch.studies.tuning import Range, Tuned, Tuning

TRIED = (
    "Accuracy in percent on validation images, which are training images held out, drawn anew for "
    "each seed. The best by the first seed got the other seeds; the highest mean was chosen. A "
    "setting that diverged counts as the worst."
)


def tried(layout: Layout) -> Table:
    """Return a row per setting that was tried."""
    tuning = layout.results.study.tuning
    assert tuning is not None
    rows = []
    for one in layout.results.tuned:
        edges = ", ".join(one.at_edge(tuning))
        edge = f", at the edge of what was tried ({edges})" if edges else ""
        for place, setting in enumerate(one.tried if tuning.spaces[one.label] else ()):
            notes = [f"chosen{edge}"] * (place == one.chosen)
            notes += ["diverged"] * any(one.status == "diverged" for one in setting.outcomes)
            whole = setting.mean if len(setting.scores) == len(setting.outcomes) else None
            mean = None if whole is None or math.isinf(whole) else whole
            seeds = ", ".join(map(_score, setting.outcomes))
            rows.append([*_named(layout, one), str(setting), number(mean), seeds, "; ".join(notes)])
    head = [*layout.varying, "setting", "mean", "by seed", ""]
    return Table(TRIED, head, rows, labels=len(layout.varying), texts=1)


def _named(layout: Layout, one: Tuned) -> list[str]:
    """Return the labels of what was tuned, for the first columns of a table."""
    return [one.cell.coordinates[axis] for axis in layout.varying]


def _score(outcome: Outcome) -> str:
    result = outcome.result
    if result is None:
        return outcome.status
    return "diverged" if result.status == "diverged" else number(_accuracy(outcome))


def _accuracy(outcome: Outcome) -> float | None:
    result = outcome.result
    return None if result is None or result.accuracy is None else result.accuracy.mean


@dataclass(frozen=True)
class Dot:
    """A training with one value of a tuned number."""

    value: float
    accuracy: float | None
    """None if it diverged."""
    tip: str


@dataclass(frozen=True)
class Panel:
    """What was tried for one method."""

    label: str
    colour: str
    dots: list[Dot]
    chosen: Dot | None
    """The mean of the chosen setting."""
    note: str


@dataclass(frozen=True)
class Chart:
    """Accuracy against one tuned number, by method."""

    name: str
    where: str
    panels: list[Panel]
    x: Span
    y: Span

    @property
    def what(self) -> str:
        """The number's name for a reader."""
        return "learning rate" if self.name == "lr" else self.name


def charts(layout: Layout) -> list[Chart]:
    """Return a chart for each place and each number that was tuned there."""
    tuning = layout.results.study.tuning
    found: list[Chart] = []
    if tuning is None:
        return found
    colours = layout.colours(tuning.axis)
    tuned = [one for one in layout.results.tuned if tuning.spaces[one.label]]
    for group in layout.places(tuning.axis):
        there = [one for one in tuned if group.items() <= one.cell.coordinates.items()]
        names = {name for one in there for name in tuning.spaces[one.label]}
        for name in sorted(names, key=lambda name: (name != "lr", name)):
            panels = [_panel(tuning, name, one, colours[one.label]) for one in there]
            if panels := [panel for panel in panels if panel.dots]:
                found.append(_chart(tuning, name, layout.where(group), panels))
    return found


def _chart(tuning: Tuning, name: str, place: str, panels: list[Panel]) -> Chart:
    spaces = [tuning.spaces[panel.label].get(name) for panel in panels]
    ranges = [space for space in spaces if isinstance(space, Range)]
    dots = [dot for panel in panels for dot in panel.dots]
    ends = [end for space in ranges for end in space.ends] + [dot.value for dot in dots]
    low, high = min(ends), max(ends)
    log = any(space.log for space in ranges) and low > 0
    if low == high:
        low, high = low - 1, high + 1
    room = 0 if ranges else 0.08 * (high - low)
    known = [dot.accuracy for dot in dots if dot.accuracy is not None]
    upper = sorted(known)[len(known) // 2 :]  # settings that fail must not hide how the rest differ
    least = 3 * (upper[-1] - upper[0]) if upper else 1.0
    return Chart(name, place, panels, Span(low - room, high + room, log), around(upper, least))


def _panel(tuning: Tuning, name: str, one: Tuned, colour: str) -> Panel:
    dots, chosen = [], None
    for place, setting in enumerate(one.tried):
        value = setting.settings.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        over = [outcome for outcome in setting.outcomes if outcome.result]
        known = []
        for outcome in over:
            broken = outcome.status == "diverged"
            accuracy = None if broken else _accuracy(outcome)
            known += [] if accuracy is None else [accuracy]
            tip = f"{one.label}, {setting}: {_score(outcome)}{'' if broken else ' %'}"
            dots.append(Dot(float(value), accuracy, tip))
        if place == one.chosen and known:
            chosen = Dot(float(value), sum(known) / len(known), str(setting))
    text = f"{chosen.value:g} was chosen" if chosen else "nothing was chosen yet"
    if name in one.at_edge(tuning):
        text += ", at the edge of what was tried: a wider range may be better"
    if name not in tuning.spaces[one.label]:
        text = "not tuned"
    return Panel(one.label, colour, dots, chosen, f"{text}.")


def by_budget(layout: Layout) -> Table | None:
    """Return the accuracy to expect of smaller budgets, where all settings got all seeds."""
    tuning = layout.results.study.tuning
    if tuning is None or tuning.seeds < 2:
        return None
    rows = []
    for one in layout.results.tuned:
        scores = [list(map(_accuracy, tried.outcomes)) for tried in one.tried]
        whole = [[value for value in row if value is not None] for row in scores]
        if len(whole) > 1 and all(len(row) == tuning.seeds for row in whole):
            curves = [expected_best(whole, seed) for seed in range(tuning.seeds)]
            means = [sum(column) / len(column) for column in zip(*curves, strict=True)]
            rows.append([*_named(layout, one), *map(number, means)])
    if not rows:
        return None
    labels, most = len(layout.varying), max(map(len, rows))
    caption = (
        "Accuracy to expect had fewer settings been tried, over all choices of so many. One seed "
        "chooses the best and the others score it, in turn, all on validation images."
    )
    head = [*layout.varying, *(f"{count} tried" for count in range(1, most - labels + 1))]
    padded = [row + [NONE] * (most - len(row)) for row in rows]
    return Table(caption, head, padded, labels=labels)


def expected_best(scores: list[list[float]], seed: int) -> list[float]:
    """Return the expected score of the best of b settings, for b from 1 to all of them.

    Args:
        scores: by setting and seed. The best is the one that is highest with ``seed``; it counts
            with its mean over the other seeds.
        seed: the seed to choose by.

    Example:
        >>> from stochbatch.report.tried import expected_best
        >>> expected_best([[1.0, 10.0], [2.0, 20.0], [3.0, 60.0]], seed=0)
        [30.0, 46.66..., 60.0]
    """
    ordered = sorted(scores, key=lambda row: row[seed])
    others = [(sum(row) - row[seed]) / (len(row) - 1) for row in ordered]
    return [
        sum(y * math.comb(i, size - 1) for i, y in enumerate(others)) / math.comb(len(others), size)
        for size in range(1, len(others) + 1)
    ]


def costs(layout: Layout) -> Table:
    """Return what each method cost: trainings, steps and time."""
    rows = []
    for one, cell in zip(layout.results.tuned, layout.results.cells, strict=True):
        done = [outcome for outcome in (*one.trials, *cell.outcomes) if outcome.result]
        steps = sum(steps_of(outcome) * outcome.result.epochs for outcome in done if outcome.result)
        each = f"{seconds_of(cell.done) / len(cell.done):.1f}" if cell.done else NONE
        counts = [f"{len(done)}", f"{steps:,}", f"{seconds_of(done):.0f}"]
        rows.append([*_named(layout, one), *counts, each])
    names = ["trainings", "batches", "seconds in all", "seconds of a training"]
    caption = "Tuning and verdict together; the last column is of the verdict's trainings."
    return Table(caption, [*layout.varying, *names], rows, labels=len(layout.varying))
