"""The figures of a report: curves with bands over trials, rates, batches, batch sizes."""

from __future__ import annotations

import hashlib
import math
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING

from stochbatch.report.curve import batches_by_kind
from stochbatch.report.drawing import Sketch, draw_line, style, style_at
from stochbatch.report.layout import BATCH_SIZE, Layout, joined, number
from stochbatch.studies.results import CellOutcomes, Outcome
from stochbatch.studies.statistics import accuracies

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MANY = 6
"""With more groups than this, curves are drawn for the first batch size alone."""
MOST = 12
"""No more figures of a kind than this."""

LONGEST = 100
"""Letters of a figure's file name."""
CROWD = 8
"""More lines than this are shared out among several panels."""

Panel = Callable[["Axes"], None]
"""Draws the lines of one panel."""
Group = dict[str, str]
"""Labels on the axes that a figure keeps fixed."""


@dataclass(frozen=True)
class LeftOut:
    """Figures that are not drawn."""

    text: str
    """How many, of which kind, and why."""
    options: str
    """With these a report draws the first of them."""


@dataclass(frozen=True)
class Gallery:
    """The figures of a report, ready to be drawn."""

    sketches: list[Sketch]
    left_out: list[LeftOut]


def gallery(layout: Layout) -> Gallery:
    """Return the figures that the results have data for, and which of them are left out."""
    axis = _line_axis(layout)
    groups, left_out = _groups(layout, axis)
    rates = _rates(layout, axis)
    sketches = [] if rates is None else [rates]
    for what, found in (
        ("accuracy over the epochs", [(group, _curves(layout, axis, group)) for group in groups]),
        ("effective batch sizes", [(group, _batches(layout, axis, group)) for group in groups]),
        ("accuracy against batch size", _robustness(layout)),
    ):
        there = [(group, sketch) for group, sketch in found if sketch is not None]
        sketches += [sketch for _, sketch in there[:MOST]]
        if more := there[MOST:]:
            text = f"{len(more)} more figures of {what}: there are never more than {MOST} of a kind"
            left_out.append(LeftOut(text, _options(more[0][0])))
    return Gallery(_named_apart(sketches), left_out)


def over_trials(
    curves: Sequence[Sequence[float | None]],
) -> list[tuple[int, float, float, float]]:
    """Return epoch, lowest, mean and highest of the trials that have a number there.

    Example:
        >>> from stochbatch.report.figures import over_trials
        >>> over_trials([[1.0, None, 2.0], [3.0]])
        [(1, 1.0, 2.0, 3.0), (3, 2.0, 2.0, 2.0)]
    """
    found = []
    for epoch in range(max(map(len, curves), default=0)):
        column = [curve[epoch] for curve in curves if epoch < len(curve)]
        if there := [value for value in column if value is not None]:
            found.append((epoch + 1, min(there), math.fsum(there) / len(there), max(there)))
    return found


def _groups(layout: Layout, line_axis: str) -> tuple[list[Group], list[LeftOut]]:
    """Return for which groups there are curves, and which are left out as in the article."""
    groups = [group for group in _fixed(layout, line_axis) if _cells(layout, line_axis, group)]
    if len(groups) <= MANY or BATCH_SIZE not in groups[0]:
        return groups, []
    first = groups[0][BATCH_SIZE]
    others = [group for group in groups if group[BATCH_SIZE] != first]
    if not others:
        return groups, []
    text = (
        f"curves of other batch sizes than {first}: of more than {MANY} groups those of one "
        "batch size are drawn, as in the article"
    )
    left_out = LeftOut(text, _options({BATCH_SIZE: others[0][BATCH_SIZE]}))
    return [group for group in groups if group[BATCH_SIZE] == first], [left_out]


def _options(group: Group) -> str:
    return " ".join(f"--only {shlex.quote(f'{axis}={label}')}" for axis, label in group.items())


def _line_axis(layout: Layout) -> str:
    claims = layout.results.study.claims
    return claims[0].axis if claims else layout.axes[-1]


def _fixed(layout: Layout, *but: str) -> list[Group]:
    """Return the places on all axes but these, in order."""
    found: dict[tuple[str, ...], Group] = {}
    for cell in layout.results.cells:
        group = {name: text for name, text in cell.cell.coordinates.items() if name not in but}
        found.setdefault(tuple(group.values()), group)
    return list(found.values())


def _cells(layout: Layout, axis: str, group: Group) -> list[tuple[str, int, CellOutcomes]]:
    """Return label, position and trials of the cells along an axis."""
    found = []
    for position, label in enumerate(layout.labels(axis)):
        place = {**group, axis: label}
        cell = layout.outcomes_by_key.get(tuple(place[name] for name in layout.axes))
        if cell is not None and any(outcome.result for outcome in cell.outcomes):
            found.append((label, position, cell))
    return found


def _where(group: Group) -> str:
    return joined([f"{name} {label}" for name, label in group.items()])


def _curves(layout: Layout, axis: str, group: Group) -> Sketch | None:
    drawn: list[tuple[str, int, list[list[float | None]]]] = []
    for label, position, cell in _cells(layout, axis, group):
        curves = [outcome.result.curve for outcome in cell.done if outcome.result]
        if over_trials(curves):
            drawn.append((label, position, curves))
    if not drawn:
        return None

    def panel_of(part: Sequence[tuple[str, int, list[list[float | None]]]]) -> Panel:
        def draw(panel: Axes) -> None:
            for label, position, curves in part:
                how = style(label, position)
                epochs, low, mean, high = zip(*over_trials(curves), strict=True)
                draw_line(panel, epochs, mean, how, label)
                panel.fill_between(epochs, low, high, color=how.color, alpha=0.12, linewidth=0)
            panel.set(xlabel="epoch", ylabel="test accuracy (%)")

        return draw

    size = math.ceil(len(drawn) / math.ceil(len(drawn) / CROWD))
    ends = joined([f"{label} {number(over_trials(curves)[-1][2])}" for label, _, curves in drawn])
    title = f"Test accuracy over the epochs{_of(group)}"
    return Sketch(
        _name("curves", group),
        f"{title}. Lines are means over the trials, bands reach from the lowest to the highest; "
        "a trial that diverged counts as far as it went.",
        f"Line chart. {title}, a line for each {axis}. In the last epoch, in percent: {ends}.",
        tuple(panel_of(drawn[first : first + size]) for first in range(0, len(drawn), size)),
    )


def _rates(layout: Layout, axis: str) -> Sketch | None:
    """Draw the learning rates, if the lines are of different schedules."""
    points = next(one for one in layout.results.study.axes if one.name == axis).expanded()
    if not any("schedule" in point.fields for point in points):
        return None
    found: dict[str, tuple[int, list[float]]] = {}
    for group in _fixed(layout, axis):
        for label, position, cell in _cells(layout, axis, group):
            lines = cell.done[0].metrics
            if label not in found and lines:
                found[label] = position, [float(line["lr"]) for line in lines]
    if not found:
        return None

    def draw(panel: Axes) -> None:
        for label, (position, rates) in found.items():
            draw_line(panel, range(1, len(rates) + 1), rates, style(label, position), label)
        panel.set(xlabel="epoch", ylabel="learning rate", yscale="log")

    ends = joined([f"{label} {rates[0]:g} to {rates[-1]:g}" for label, (_, rates) in found.items()])
    return Sketch(
        "learning-rates",
        "Learning rate over the epochs.",
        f"Line chart. Learning rate over the epochs, a line for each {axis}: {ends}.",
        (draw,),
    )


def _batches(layout: Layout, axis: str, group: Group) -> Sketch | None:
    """Draw for SBS how many images a weight's gradient is the mean of."""
    panels: dict[str, dict[str, list[float]]] = {}
    for label, _, cell in _cells(layout, axis, group):
        kinds = _kinds(cell.done)
        if kinds:
            panels[label] = kinds
    if not panels:
        return None
    names = list(dict.fromkeys(kind for kinds in panels.values() for kind in kinds))

    def panel_of(label: str) -> Panel:
        def draw(panel: Axes) -> None:
            for position, kind in enumerate(names):
                if values := panels[label].get(kind):
                    how = style_at(position)
                    draw_line(panel, range(1, len(values) + 1), values, how, kind)
            panel.set(xlabel="epoch", ylabel="images", title=label)

        return draw

    ends = "; ".join(
        f"{label}: " + joined([f"{kind} {values[-1]:.0f}" for kind, values in kinds.items()])
        for label, kinds in panels.items()
    )
    title = f"Effective batch size by kind of layer{_of(group)}"
    return Sketch(
        _name("batches", group),
        f"{title}: images in the average gradient of a weight, mean over weights and trials.",
        f"Line chart. {title}, over the epochs. In the last epoch, in images: {ends}.",
        tuple(panel_of(label) for label in panels),
    )


def _kinds(outcomes: Iterable[Outcome]) -> dict[str, list[float]]:
    by_kind: dict[str, list[list[float]]] = {}
    for outcome in outcomes:
        for kind, batches in batches_by_kind(outcome.metrics).items():
            images = [count * outcome.trial.batch_size for count in batches]
            by_kind.setdefault(kind, []).append(images)
    return {
        kind: [mean for _, _, mean, _ in over_trials(curves)] for kind, curves in by_kind.items()
    }


def _robustness(layout: Layout) -> list[tuple[Group, Sketch | None]]:
    if BATCH_SIZE not in layout.axes:
        return []
    axis = _line_axis(layout)
    if axis == BATCH_SIZE:
        others = [name for name in layout.axes if name != BATCH_SIZE]
        axis = others[-1] if others else ""
    groups = _fixed(layout, axis, BATCH_SIZE)
    return [(group, _against_batch_size(layout, axis, group)) for group in groups]


def _against_batch_size(layout: Layout, axis: str, group: Group) -> Sketch | None:
    lines: dict[str, tuple[int, list[tuple[int, float, float, float]]]] = {}
    for position, label in enumerate(layout.labels(axis) if axis else ["all"]):
        points = []
        for _, _, cell in _cells(layout, BATCH_SIZE, {**group, axis: label} if axis else group):
            values = list(accuracies(cell.outcomes).values())
            if values:
                size = cell.outcomes[0].trial.batch_size
                points.append((size, min(values), math.fsum(values) / len(values), max(values)))
        if points:
            lines[label] = position, sorted(points)
    sizes = sorted({point[0] for _, points in lines.values() for point in points})
    if len(sizes) < 2:
        return None

    def draw(panel: Axes) -> None:
        for label, (position, points) in lines.items():
            how = style(label, position)
            x, low, mean, high = zip(*points, strict=True)
            draw_line(panel, x, mean, how, label)
            panel.vlines(x, low, high, color=how.color, alpha=0.4)
        panel.set_xscale("log", base=2)
        panel.set_xticks(sizes, [str(size) for size in sizes])
        panel.minorticks_off()
        panel.set(xlabel="batch size", ylabel="test accuracy (%)")

    numbers = "; ".join(
        f"{label}: " + joined([f"{number(mean)} at {size}" for size, _, mean, _ in points])
        for label, (_, points) in lines.items()
    )
    title = f"Test accuracy against batch size{_of(group)}"
    return Sketch(
        _name("batch-size", group),
        f"{title}. Means over the trials, bars from the lowest to the highest.",
        f"Line chart. {title}. In percent: {numbers}.",
        (draw,),
    )


def _of(group: Group) -> str:
    return f" ({_where(group)})" if group else ""


def _name(kind: str, group: Group) -> str:
    """Return a file name of letters, digits and dashes."""
    parts = (re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-.") for label in group.values())
    name = "-".join([kind, *parts])
    if len(name) <= LONGEST:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: LONGEST - 9].rstrip('-.')}-{digest}"


def _named_apart(found: list[Sketch]) -> list[Sketch]:
    """Return the figures with a number where two labels make the same file name."""
    taken = {sketch.name for sketch in found}
    seen: set[str] = set()
    result = []
    for sketch in found:
        names = (f"{sketch.name}-{number}" for number in count(2))
        free = (name for name in names if name not in taken | seen)
        name = next(free) if sketch.name in seen else sketch.name
        seen.add(name)
        result.append(replace(sketch, name=name))
    return result
