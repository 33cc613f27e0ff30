"""The figures to print: curves with bands over trials; of schedules their rates and losses too."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from stochbatch.report.charts import groups, lines
from stochbatch.report.layout import Group, Layout
from stochbatch.report.plotting import (
    Panel,
    Point,
    Sketch,
    Style,
    file_name,
    in_brackets,
    over_trials,
    panel_of,
    style,
)
from stochbatch.report.tried import sketches as tuning_sketches
from stochbatch.studies.results import CellOutcomes

Lines = dict[str, tuple[Style, list[Point]]]
"""Lines by label."""

CROWD = 8
"""More lines than this are shared out among several panels, more columns among several figures."""
RATE = {"learning rate": ("lr", style("other", 0))}
LOSSES = {
    "training loss": ("train_loss", style("sbs", 0)),
    "test loss": ("test_loss", style("adaptive", 1)),
}
ACCURACY = {"test accuracy": ("test_accuracy", style("entropy", 2))}
"""The number of the metrics that a line shows, and its style."""


def gallery(layout: Layout) -> list[Sketch]:
    """Return the figures that the results have data for."""
    curves = [_curves(layout, group) for group in groups(layout)[0]]
    found = [*tuning_sketches(layout), *_schedules(layout), *curves]
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


def _schedules(layout: Layout) -> Iterator[Sketch]:
    """Draw the learning rates, and below them losses and accuracy, a column per schedule."""
    axis = layout.line_axis
    points = next(one for one in layout.results.study.axes if one.name == axis).expanded()
    if not any("schedule" in point.fields for point in points):
        return
    there = [(group, layout.along(axis, group)) for group in groups(layout)[0]]
    ran = {at for _, row in there for at, *_ in row}
    labels = [label for label in layout.labels(axis) if label in ran]
    for first in range(0, len(labels), CROWD):
        columns = labels[first : first + CROWD]
        cells = [(group, {at: cell for at, _, cell in row}) for group, row in there]
        rates = {at: cell for _, row in reversed(cells) for at, cell in row.items()}
        rows = [_row({at: rates[at] for at in columns}, columns, RATE, "learning rate")]
        for group, row in cells:
            rows.append(_row(row, columns, LOSSES, "\n".join(["loss", *group.values()])))
            rows.append(_row(row, columns, ACCURACY, "\n".join(["accuracy (%)", *group.values()])))
        title = "learning rate, losses and accuracy of each schedule"
        panels = [panel for row in rows for panel in row]
        yield Sketch("schedules", "schedules", title, panels, len(columns))


def _row(
    cells: Mapping[str, CellOutcomes],
    columns: Sequence[str],
    numbers: Mapping[str, tuple[str, Style]],
    ylabel: str,
) -> list[Panel]:
    """Return a panel per column, with a line for each of these numbers of the metrics."""
    panels = []
    for place, at in enumerate(columns):
        metrics = [one.metrics for one in cells[at].done] if at in cells else []
        found: Lines = {}
        for label, (name, how) in numbers.items():
            if points := over_trials([[line.get(name) for line in one] for one in metrics]):
                found[label] = how, points
        settings = {"yscale": "log" if numbers is RATE else "linear", "xlabel": "epoch"}
        settings |= {"title": at} if numbers is RATE else {}
        settings |= {} if place else {"ylabel": ylabel}
        panels.append(panel_of(found, band=True, **settings))
    return panels
