"""The figures to print: curves with bands over trials; of schedules their rates and losses too."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stochbatch.optional import optional
from stochbatch.report.charts import Line, Point, groups, lines, over_trials
from stochbatch.report.layout import Group, Layout
from stochbatch.report.palette import COLOURS

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
STROKES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)))
"""Lines are told apart without their colours, too."""
MARKED = 10
"""Markers on a line."""
SMALL = 1.5
"""Inches of a panel that is one of many, either way."""
LONGEST = 100
"""Letters of a figure's file name, and of a label."""
METADATA: dict[str, dict[str, Any]] = {
    # Without dates and versions the same results give the same bytes.
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
LOSSES = {"training loss": ("train_loss", "sbs"), "test loss": ("test_loss", "adaptive")}
ACCURACY = {"test accuracy": ("test_accuracy", "entropy")}
"""The number of the metrics that a line shows, and its colour."""


@dataclass(frozen=True)
class Sketch:
    """A figure that can be drawn: its data are there, its pixels are not."""

    name: str
    title: str
    draw: Callable[[Figure], None]

    def figure(self) -> Figure:
        """Return the figure, drawn and not saved."""
        with _settings():
            figure = new_figure()
            self.draw(figure)
            return figure

    def saved(self) -> dict[str, bytes]:
        """Return the figure as PNG and PDF."""
        found = {}
        with _settings():
            figure = self.figure()
            for form, metadata in METADATA.items():
                file = io.BytesIO()
                figure.savefig(file, format=form, dpi=120, metadata=metadata)
                found[form] = file.getvalue()
        return found


def new_figure() -> Figure:
    """Return an empty figure."""
    # The Figure itself, without pyplot: no window, no display, nothing global.
    figure: Figure = optional("matplotlib.figure").Figure(layout="constrained")
    return figure


def whole_epochs(panel: Axes) -> None:
    """Let ticks of the horizontal axis be whole numbers."""
    panel.xaxis.set_major_locator(optional("matplotlib.ticker").MaxNLocator(integer=True))


def _settings() -> AbstractContextManager[None]:
    # A reader's own matplotlibrc must not change a report; a label with a dollar is a text.
    style = optional("matplotlib.style")
    context: AbstractContextManager[None] = style.context(["default", {"text.parse_math": False}])
    return context


def gallery(layout: Layout) -> list[Sketch]:
    """Return the figures that the results have data for."""
    places = groups(layout)[0]
    curves = [(group, there) for group in places if (there := lines(layout, group))]
    drawn = [_curves(number, *one) for number, one in enumerate(curves, 1)]
    return [*_schedules(layout, places), *drawn]


def _curves(number: int, group: Group, there: Sequence[Line]) -> Sketch:
    def draw(figure: Figure) -> None:
        panel = figure.subplots()
        for position, line in enumerate(there):
            _plot(panel, line.label, line.points, line.colour, position)
        panel.set(xlabel="epoch", ylabel="test accuracy (%)")
        whole_epochs(panel)
        _finish(figure, 6.4, 2.8)

    labels = (re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-.") for label in group.values())
    name = "-".join(["curves", str(number), *labels])[:LONGEST].rstrip("-.")
    where = ", ".join(f"{axis} {label}" for axis, label in group.items())
    return Sketch(name, f"test accuracy over the epochs{f' ({where})' if where else ''}", draw)


def _schedules(layout: Layout, places: Sequence[Group]) -> Iterator[Sketch]:
    """Draw the learning rates, and below them losses and accuracy, a column per schedule."""
    axis = layout.line_axis
    points = next(one for one in layout.results.study.axes if one.name == axis).expanded()
    cells = [layout.along(axis, group) for group in places]
    first = {label: cell for row in reversed(cells) for label, cell in row.items()}
    columns = [label for label in layout.labels(axis) if label in first]
    if not columns or not any("schedule" in point.fields for point in points):
        return
    rows: list[tuple[str, Mapping[str, tuple[str, str]], Mapping[str, Any]]]
    rows = [("learning rate", {"learning rate": ("lr", "other")}, first)]
    for group, row in zip(places, cells, strict=True):
        rows.append(("\n".join(["loss", *group.values()]), LOSSES, row))
        rows.append(("\n".join(["accuracy (%)", *group.values()]), ACCURACY, row))

    def draw(figure: Figure) -> None:
        grid = figure.subplots(len(rows), len(columns), squeeze=False, sharex=True, sharey="row")
        for panels, (what, numbers, row) in zip(grid, rows, strict=True):
            for panel, label in zip(panels, columns, strict=True):
                metrics = [one.metrics for one in row[label].done] if label in row else []
                for position, (name, (number, colour)) in enumerate(numbers.items()):
                    curves = [[line.get(number) for line in one] for one in metrics]
                    _plot(panel, name, over_trials(curves), colour, position)
            panels[0].set_ylabel(what)
        for panel, label in zip(grid[0], columns, strict=True):
            panel.set(title=label, yscale="log")
            panel.yaxis.set_major_formatter("{x:g}")  # whose own labels are formulas
            panel.yaxis.set_minor_formatter("")
        for panel in grid.flat:
            panel.set_xlabel("epoch")
            panel.label_outer(remove_inner_ticks=True)
        whole_epochs(grid[0][0])
        _finish(figure, max(6.4, 1 + SMALL * len(columns)), SMALL * len(rows))

    title = "learning rate, losses and accuracy of each schedule"
    yield Sketch("schedules", title, draw)


def _plot(panel: Axes, label: str, points: Iterable[Point], colour: str, position: int) -> None:
    """Draw a line with a band from the lowest to the highest trial, if it has any point."""
    if not (columns := list(zip(*points, strict=True))):
        return
    x, low, mean, high = columns
    light, _ = COLOURS[colour]
    panel.plot(
        x,
        mean,
        linestyle=STROKES[position % len(STROKES)],
        color=light,
        marker=MARKERS[position % len(MARKERS)],
        markersize=4,
        markevery=max(1, len(x) // MARKED),
        linewidth=1.4,
        # matplotlib leaves what begins with an underscore out of a legend
        label=f" {label}"[:LONGEST] if label.startswith("_") else label[:LONGEST],
    )
    panel.fill_between(x, low, high, color=light, alpha=0.12, linewidth=0)


def _finish(figure: Figure, width: float, height: float) -> None:
    """Add grids and one legend under all panels, and set the size."""
    legend: dict[str, Artist] = {}  # of all panels, since one may lack a line that another has
    for panel in figure.axes:
        if panel.lines:
            panel.grid(alpha=0.25)
        handles, labels = panel.get_legend_handles_labels()
        legend.update(zip(labels, handles, strict=True))
    figure.align_ylabels()
    columns = max(1, min(4, int(13 * width) // (max(map(len, legend), default=0) + 10)))
    figure.set_size_inches(width, 0.6 + height + 0.2 * math.ceil(len(legend) / columns))
    if legend:
        figure.legend(
            handles=legend.values(),
            labels=legend.keys(),
            loc="outside lower center",
            ncols=columns,
            fontsize="small",
            frameon=False,
            handlelength=3,
        )
