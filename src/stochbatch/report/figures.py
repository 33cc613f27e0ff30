"""The figures of a report: curves with bands over trials, rates, batches, batch sizes."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING

from stochbatch.report.batch_sizes import by_kind, by_layer
from stochbatch.report.groups import (
    Group,
    cells_along,
    file_name,
    in_brackets,
    over_trials,
    places,
)
from stochbatch.report.layout import BATCH_SIZE, Layout, joined, number
from stochbatch.report.plotting import Panel, Sketch, draw_line, style
from stochbatch.studies.statistics import accuracies

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MANY = 6
"""With more groups than this, curves are drawn for the first batch size alone."""
MOST = 12
"""No more figures of a kind than this."""

CROWD = 8
"""More lines than this are shared out among several panels."""


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
        ("effective batch sizes", [(group, by_kind(layout, axis, group)) for group in groups]),
        ("batch sizes of layers", by_layer(layout, axis, groups)),
        ("accuracy against batch size", _robustness(layout)),
    ):
        there = [(group, sketch) for group, sketch in found if sketch is not None]
        sketches += [sketch for _, sketch in there[:MOST]]
        if more := there[MOST:]:
            text = f"{len(more)} more figures of {what}: there are never more than {MOST} of a kind"
            left_out.append(LeftOut(text, _options(more[0][0])))
    return Gallery(_named_apart(sketches), left_out)


def _groups(layout: Layout, line_axis: str) -> tuple[list[Group], list[LeftOut]]:
    """Return for which groups there are curves, and which are left out as in the article."""
    groups = [group for group in places(layout, line_axis) if cells_along(layout, line_axis, group)]
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


def _curves(layout: Layout, axis: str, group: Group) -> Sketch | None:
    drawn: list[tuple[str, int, list[list[float | None]]]] = []
    for label, position, cell in cells_along(layout, axis, group):
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
    title = f"Test accuracy over the epochs{in_brackets(group)}"
    return Sketch(
        file_name("curves", group),
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
    for group in places(layout, axis):
        for label, position, cell in cells_along(layout, axis, group):
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


def _robustness(layout: Layout) -> list[tuple[Group, Sketch | None]]:
    if BATCH_SIZE not in layout.axes:
        return []
    axis = _line_axis(layout)
    if axis == BATCH_SIZE:
        others = [name for name in layout.axes if name != BATCH_SIZE]
        axis = others[-1] if others else ""
    groups = places(layout, axis, BATCH_SIZE)
    return [(group, _against_batch_size(layout, axis, group)) for group in groups]


def _against_batch_size(layout: Layout, axis: str, group: Group) -> Sketch | None:
    lines: dict[str, tuple[int, list[tuple[int, float, float, float]]]] = {}
    for position, label in enumerate(layout.labels(axis) if axis else ["all"]):
        points = []
        place = {**group, axis: label} if axis else group
        for _, _, cell in cells_along(layout, BATCH_SIZE, place):
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
    title = f"Test accuracy against batch size{in_brackets(group)}"
    return Sketch(
        file_name("batch-size", group),
        f"{title}. Means over the trials, bars from the lowest to the highest.",
        f"Line chart. {title}. In percent: {numbers}.",
        (draw,),
    )


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
