"""How figures are drawn: styles that are told apart without colours, bytes that do not vary."""

from __future__ import annotations

import hashlib
import io
import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from stochbatch.optional import optional
from stochbatch.report.palette import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)))
MARKED = 10
"""Markers on a line."""
HEIGHT = 2.8
"""Inches of a panel."""
SMALL = 1.5
"""Inches of a panel, either way, where there are many."""
LONGEST = 100
"""Letters of a figure's file name."""
LEGEND_LINE, LEGEND_HANDLE, LEGEND_LETTER = 0.2, 0.75, 0.075
"""Inches of a legend: height of a line, width of a handle with its margins, and of a letter."""
METADATA: dict[str, dict[str, Any]] = {
    # Without dates and versions the same results give the same bytes.
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}

Style = tuple[str, Any, str]
"""Colour, line and marker: lines are told apart without their colours, too."""
Point = tuple[int, float, float, float]
"""Where it is, and the lowest, the mean and the highest number there."""
Panel = Callable[["Axes"], None]
"""Draws what is in one panel."""


@dataclass(frozen=True)
class Sketch:
    """A figure that can be drawn: its data are there, its pixels are not."""

    kind: str
    name: str
    title: str
    panels: Sequence[Panel]
    columns: int = 0
    """If given, each row has so many panels and a scale of its own."""

    def figure(self) -> Figure:
        """Return the figure, drawn and not saved."""
        with _settings():
            return _figure(self.panels, self.columns)

    def saved(self) -> dict[str, bytes]:
        """Return the figure as PNG and PDF."""
        found = {}
        with _settings():
            figure = _figure(self.panels, self.columns)
            for form, metadata in METADATA.items():
                file = io.BytesIO()
                figure.savefig(file, format=form, dpi=120, metadata=metadata)
                found[form] = file.getvalue()
        return found


def file_name(kind: str, labels: Mapping[str, str]) -> str:
    """Return a file name of letters, digits and dashes."""
    parts = (re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-.") for label in labels.values())
    name = "-".join([kind, *parts])
    if len(name) <= LONGEST:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: LONGEST - 9].rstrip('-.')}-{digest}"


def in_brackets(labels: Mapping[str, str]) -> str:
    """Return labels with the names of their axes for the end of a title."""
    text = ", ".join(f"{name} {label}" for name, label in labels.items())
    return f" ({text})" if labels else ""


def style(colour: str, position: int) -> Style:
    """Return the style of a line: its colour, and by its position what else tells it apart."""
    light, _ = COLOURS[colour]
    return light, LINES[position % len(LINES)], MARKERS[position % len(MARKERS)]


def over_trials(curves: Sequence[Sequence[float | None]]) -> list[Point]:
    """Return epoch, lowest, mean and highest of the trials that have a number there.

    Example:
        >>> from stochbatch.report.plotting import over_trials
        >>> over_trials([[1.0, None, 2.0], [3.0]])
        [(1, 1.0, 2.0, 3.0), (3, 2.0, 2.0, 2.0)]
    """
    found = []
    for epoch, column in enumerate(zip_longest(*curves), 1):
        there = [value for value in column if value is not None and not math.isnan(value)]
        if there:
            found.append((epoch, min(there), math.fsum(there) / len(there), max(there)))
    return found


def panel_of(
    lines: Mapping[str, tuple[Style, Sequence[Point]]], band: bool = False, **settings: Any
) -> Panel:
    """Return a panel of lines by label, with a band from the lowest to the highest."""

    def draw(panel: Axes) -> None:
        for label, ((colour, line, marker), points) in lines.items():
            x, low, mean, high = zip(*points, strict=True)
            panel.plot(
                x,
                mean,
                linestyle=line,
                color=colour,
                marker=marker,
                markersize=4,
                markevery=max(1, len(x) // MARKED),
                linewidth=1.4,
                # matplotlib leaves what begins with an underscore out of a legend
                label=f" {label}" if label.startswith("_") else label,
            )
            if band:
                panel.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)
        panel.set(**settings)

    return draw


def _figure(draws: Sequence[Panel], by_row: int = 0) -> Figure:
    # The Figure itself, without pyplot: no window, no display, nothing global.
    for backend in ("agg", "pdf"):
        optional(f"matplotlib.backends.backend_{backend}")
    columns = by_row or min(2, len(draws))
    rows = math.ceil(len(draws) / columns)
    figure: Figure = optional("matplotlib.figure").Figure(layout="constrained")
    grid = figure.subplots(
        rows, columns, squeeze=False, sharex=True, sharey="row" if by_row else True
    )
    panels = [panel for line in grid for panel in line]
    for panel, draw in zip(panels, draws, strict=False):
        draw(panel)
        if panel.lines:
            panel.grid(alpha=0.25)
    for panel in panels[len(draws) :]:
        panel.set_axis_off()
    # Where there is none below, the panel above has the numbers.
    for panel in panels[max(0, len(draws) - columns) : len(draws)]:
        panel.tick_params(labelbottom=True)
    for panel in panels if by_row else ():
        panel.label_outer(remove_inner_ticks=True)
        if panel.get_yscale() == "log":  # whose own labels are formulas
            panel.yaxis.set_major_formatter("{x:g}")
            panel.yaxis.set_minor_formatter("")
    figure.align_ylabels()
    if panels[0].get_xlabel() == "epoch":
        locator = optional("matplotlib.ticker").MaxNLocator(integer=True)
        panels[0].xaxis.set_major_locator(locator)
    width = max(6.4, 1 + SMALL * columns) if by_row else 6.4 if columns == 1 else 9.0
    height = (SMALL if by_row else HEIGHT) * rows
    lines = _add_legend(figure, panels, width)
    figure.set_size_inches(width, 0.6 + height + LEGEND_LINE * lines)
    return figure


def _add_legend(figure: Figure, panels: Sequence[Axes], width: float) -> int:
    """Put one legend under all panels; return of how many lines it is."""
    # A panel may lack a line that another has.
    legend = {
        label: handle
        for panel in panels
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    if not legend:
        return 0
    room = int((width - LEGEND_HANDLE) / LEGEND_LETTER)
    texts = ["\n".join(textwrap.wrap(label, room)) or label for label in legend]
    longest = max(len(line) for text in texts for line in text.split("\n"))
    columns = max(1, min(4, len(legend), int(width / (LEGEND_HANDLE + LEGEND_LETTER * longest))))
    figure.legend(
        legend.values(),
        texts,
        loc="outside lower center",
        ncols=columns,
        fontsize="small",
        frameon=False,
        handlelength=3,
    )
    lines = max(text.count("\n") + 1 for text in texts)
    return lines * math.ceil(len(legend) / columns)


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
