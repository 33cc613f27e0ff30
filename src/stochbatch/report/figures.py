"""The figures to print: curves with bands over trials, and learning rates."""

from __future__ import annotations

import math
from dataclasses import replace

from stochbatch.report.charts import groups, lines
from stochbatch.report.layout import Group, Layout
from stochbatch.report.plotting import (
    Point,
    Sketch,
    Style,
    file_name,
    in_brackets,
    over_epochs,
    panel_of,
    style,
)
from stochbatch.report.tried import sketches as tuning_sketches

Lines = dict[str, tuple[Style, list[Point]]]
"""Lines by label."""

CROWD = 8
"""More lines than this are shared out among several panels."""


def gallery(layout: Layout) -> list[Sketch]:
    """Return the figures that the results have data for."""
    curves = [_curves(layout, group) for group in groups(layout)[0]]
    found = [*tuning_sketches(layout), _rates(layout), *curves]
    names: dict[str, Sketch] = {}
    for sketch in found:
        if sketch is not None:
            name = sketch.name
            while name in names:  # two labels make the same one
                name += "-2"
            names[name] = replace(sketch, name=name)
    return list(names.values())


def _curves(layout: Layout, group: Group) -> Sketch | None:
    found: Lines = {
        line.label: (style(line.colour, position), line.points)
        for position, line in enumerate(lines(layout, group))
    }
    if not found:
        return None
    size = math.ceil(len(found) / math.ceil(len(found) / CROWD))
    labels = list(found)
    return Sketch(
        "curves",
        file_name("curves", group),
        f"test accuracy over the epochs{in_brackets(group)}",
        [
            panel_of(
                {label: found[label] for label in labels[first : first + size]},
                band=True,
                xlabel="epoch",
                ylabel="test accuracy (%)",
            )
            for first in range(0, len(found), size)
        ],
    )


def _rates(layout: Layout) -> Sketch | None:
    """Draw the learning rates, if the lines are of different schedules."""
    axis = layout.line_axis
    points = next(one for one in layout.results.study.axes if one.name == axis).expanded()
    if not any("schedule" in point.fields for point in points):
        return None
    colours = layout.colours(axis)
    found: Lines = {}
    for group in layout.places(axis):
        for label, position, cell in layout.along(axis, group):
            rates = over_epochs(float(line["lr"]) for line in cell.done[0].metrics)
            if label not in found and rates:
                found[label] = style(colours[label], position), rates
    if not found:
        return None
    panel = panel_of(found, xlabel="epoch", ylabel="learning rate", yscale="log")
    return Sketch("learning-rates", "learning-rates", "learning rate over the epochs", [panel])
