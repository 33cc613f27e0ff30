"""The figures of a report: curves with bands over trials, rates, batches, batch sizes."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stochbatch.report.batch_sizes import by_kind, by_layer
from stochbatch.report.formatting import number
from stochbatch.report.layout import BATCH_SIZE, Group, Layout
from stochbatch.report.plotting import (
    Point,
    Sketch,
    Style,
    file_name,
    in_brackets,
    over_epochs,
    over_trials,
    panel_of,
    style,
)
from stochbatch.report.tried import sketches as tuning_sketches
from stochbatch.studies.statistics import accuracies

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Lines = dict[str, tuple[Style, list[Point]]]
"""Lines by label."""

MANY = 6
"""With more groups than this, curves are drawn for the first batch size only."""
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
    tuning: list[Sketch]
    """Those of what was tried, which stand with it."""

    @property
    def all(self) -> list[Sketch]:
        """All of them."""
        return [*self.tuning, *self.sketches]


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
    tuned = tuning_sketches(layout)
    apart = _named_apart([*tuned, *sketches])
    return Gallery(apart[len(tuned) :], left_out, apart[: len(tuned)])


def _groups(layout: Layout, line_axis: str) -> tuple[list[Group], list[LeftOut]]:
    """Return for which groups there are curves, and which are left out as in the article."""
    groups = [group for group in layout.places(line_axis) if layout.along(line_axis, group)]
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
    found: Lines = {}
    for label, position, cell in layout.along(axis, group):
        if points := over_trials([one.result.curve for one in cell.done if one.result]):
            found[label] = style(label, position), points
    if not found:
        return None
    size = math.ceil(len(found) / math.ceil(len(found) / CROWD))
    labels = list(found)
    ends = ", ".join(f"{label} {number(points[-1][2])}" for label, (_, points) in found.items())
    title = f"Test accuracy over the epochs{in_brackets(group)}"
    return Sketch(
        file_name("curves", group),
        f"{title}. Lines are means over the trials, bands reach from the lowest to the highest; "
        "a trial that diverged counts as far as it went.",
        f"Line chart. {title}, a line for each {axis}. In the last epoch, in percent: {ends}.",
        [
            panel_of(
                {label: found[label] for label in labels[first : first + size]},
                "band",
                xlabel="epoch",
                ylabel="test accuracy (%)",
            )
            for first in range(0, len(found), size)
        ],
    )


def _rates(layout: Layout, axis: str) -> Sketch | None:
    """Draw the learning rates, if the lines are of different schedules."""
    points = next(one for one in layout.results.study.axes if one.name == axis).expanded()
    if not any("schedule" in point.fields for point in points):
        return None
    found: Lines = {}
    for group in layout.places(axis):
        for label, position, cell in layout.along(axis, group):
            rates = over_epochs(float(line["lr"]) for line in cell.done[0].metrics)
            if label not in found and rates:
                found[label] = style(label, position), rates
    if not found:
        return None
    ends = ", ".join(f"{label} {at[0][2]:g} to {at[-1][2]:g}" for label, (_, at) in found.items())
    return Sketch(
        "learning-rates",
        "Learning rate over the epochs.",
        f"Line chart. Learning rate over the epochs, a line for each {axis}: {ends}.",
        [panel_of(found, xlabel="epoch", ylabel="learning rate", yscale="log")],
    )


def _robustness(layout: Layout) -> list[tuple[Group, Sketch | None]]:
    """Draw accuracy against batch size, if that is an axis."""
    if BATCH_SIZE not in layout.axes:
        return []
    axis = _line_axis(layout)
    if axis == BATCH_SIZE:
        axis = next((name for name in reversed(layout.axes) if name != BATCH_SIZE), "")
    groups = layout.places(axis, BATCH_SIZE)
    return [(group, _against_batch_size(layout, axis, group)) for group in groups]


def _against_batch_size(layout: Layout, axis: str, group: Group) -> Sketch | None:
    found: Lines = {}
    for position, label in enumerate(layout.labels(axis) if axis else ["all"]):
        points = []
        for _, _, cell in layout.along(BATCH_SIZE, {**group, axis: label} if axis else group):
            if values := list(accuracies(cell.outcomes).values()):
                size = cell.outcomes[0].trial.batch_size
                points.append((size, min(values), math.fsum(values) / len(values), max(values)))
        if points:
            found[label] = style(label, position), sorted(points)
    sizes = sorted({point[0] for _, points in found.values() for point in points})
    if len(sizes) < 2:
        return None

    def draw(panel: Axes) -> None:
        panel_of(found, "bars")(panel)
        panel.set_xscale("log", base=2)
        panel.set_xticks(sizes, [str(size) for size in sizes])
        panel.minorticks_off()
        panel.set(xlabel="batch size", ylabel="test accuracy (%)")

    numbers = "; ".join(
        f"{label}: " + ", ".join(f"{number(mean)} at {size}" for size, _, mean, _ in points)
        for label, (_, points) in found.items()
    )
    title = f"Test accuracy against batch size{in_brackets(group)}"
    return Sketch(
        file_name("batch-size", group),
        f"{title}. Means over the trials, bars from the lowest to the highest.",
        f"Line chart. {title}. In percent: {numbers}.",
        [draw],
    )


def _named_apart(found: list[Sketch]) -> list[Sketch]:
    """Return the figures with another name where two labels make the same one."""
    names: dict[str, Sketch] = {}
    for sketch in found:
        name = sketch.name
        while name in names:
            name += "-2"
        names[name] = replace(sketch, name=name)
    return list(names.values())
