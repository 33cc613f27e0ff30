"""The figures to print: curves with bands over trials; of schedules their rates and losses too."""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
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
CROWD = 8
"""More lines than this are shared out among several panels."""
HEIGHT, SMALL = 2.8, 1.5
"""Inches of a panel; of one of many, either way."""
LONGEST = 100
"""Letters of a figure's file name."""
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
    for backend in ("agg", "pdf"):
        optional(f"matplotlib.backends.backend_{backend}")
    figure: Figure = optional("matplotlib.figure").Figure(layout="constrained")
    return figure


def whole_epochs(panel: Axes) -> None:
    """Let ticks of the horizontal axis be whole numbers."""
    panel.xaxis.set_major_locator(optional("matplotlib.ticker").MaxNLocator(integer=True))


def _settings() -> AbstractContextManager[None]:
    # A reader's own matplotlibrc must not change a report.
    matplotlib = optional("matplotlib")
    usual = matplotlib.rcParamsDefault
    settings = {
        **{name: usual[name] for name in usual if not name.startswith("backend")},
        "text.parse_math": False,  # a label with a dollar is a text
    }
    context: AbstractContextManager[None] = matplotlib.rc_context(settings)
    return context


def gallery(layout: Layout) -> list[Sketch]:
    """Return the figures that the results have data for."""
    places = groups(layout)[0]
    curves = [_curves(group, there) for group in places if (there := lines(layout, group))]
    found: dict[str, Sketch] = {}
    for sketch in (*_schedules(layout, places), *curves):
        name = sketch.name
        while name in found:  # two labels make the same one
            name += "-2"
        found[name] = replace(sketch, name=name)
    return list(found.values())


def _file_name(*labels: str) -> str:
    """Return a file name of letters, digits and dashes."""
    parts = (re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-.") for label in labels)
    return "-".join(parts)[:LONGEST].rstrip("-.")


def _curves(group: Group, there: Sequence[Line]) -> Sketch:
    size = math.ceil(len(there) / math.ceil(len(there) / CROWD))
    parts = [there[first : first + size] for first in range(0, len(there), size)]

    def draw(figure: Figure) -> None:
        columns = min(2, len(parts))
        rows = math.ceil(len(parts) / columns)
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        panels = list(grid.flat)
        for number, (panel, part) in enumerate(zip(panels, parts, strict=False)):
            for position, line in enumerate(part, number * size):
                _plot(panel, line.label, line.points, line.colour, position)
            panel.set(xlabel="epoch", ylabel="test accuracy (%)")
            # Where there is none below, a panel has the numbers.
            panel.tick_params(labelbottom=number >= len(parts) - columns)
        for panel in panels[len(parts) :]:
            panel.set_axis_off()
        whole_epochs(panels[0])
        _finish(figure, 6.4 if columns == 1 else 9.0, HEIGHT * rows)

    where = ", ".join(f"{axis} {label}" for axis, label in group.items())
    title = f"test accuracy over the epochs{f' ({where})' if where else ''}"
    return Sketch(_file_name("curves", *group.values()), title, draw)


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
        label=f" {label}" if label.startswith("_") else label,
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
    letters = int(13 * width)  # in a line of the legend
    texts = ["\n".join(textwrap.wrap(label, letters - 10)) or label for label in legend]
    longest = max((len(line) for text in texts for line in text.split("\n")), default=0)
    columns = max(1, min(4, len(legend), letters // (longest + 10)))
    rows = math.ceil(len(legend) / columns) * max((t.count("\n") + 1 for t in texts), default=0)
    figure.set_size_inches(width, 0.6 + height + 0.2 * rows)
    if legend:
        figure.legend(
            handles=legend.values(),
            labels=texts,
            loc="outside lower center",
            ncols=columns,
            fontsize="small",
            frameon=False,
            handlelength=3,
        )
