"""How figures are drawn: styles that are told apart without colours, bytes that do not vary."""

from __future__ import annotations

import base64
import io
import math
import textwrap
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stochbatch.optional import optional
from stochbatch.report.curve import COLOURS, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKED = 10
"""Markers on a line."""
LEGEND_LINE, LEGEND_HANDLE, LEGEND_LETTER = 0.2, 0.75, 0.075
"""Inches of a legend: height of a line, width of a handle with its margins, and of a letter."""
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)))
METADATA: dict[str, dict[str, Any]] = {
    # Without dates and versions the same results give the same bytes.
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


Panel = Callable[["Axes"], None]
"""Draws what is in one panel."""


@dataclass(frozen=True)
class Style:
    """How a line is drawn: told apart without its colour, too."""

    color: str
    line: Any
    marker: str


ARTICLE = {
    "sgd": Style("#000000", "-", "o"),
    "dropout": Style("#B08A00", "--", "s"),
    "adaptive dropout": Style("#0040FF", "-.", "^"),
    "entropy-sgd": Style("#D000D0", ":", "D"),
    "accelerated-sgd": Style("#008A1E", (0, (5, 1)), "v"),
    "sbs": Style("#E00000", "-", "P"),
}
"""The article's colours of the methods; yellow darkened so that it is seen on white."""
ALSO = {"adaptive-dropout": "adaptive dropout", "acc-sgd": "accelerated-sgd"}


@dataclass(frozen=True)
class Drawing:
    """A figure in three formats, with words for those who do not see it."""

    name: str
    caption: str
    alt: str
    png: bytes
    pdf: bytes
    svg: bytes

    @property
    def address(self) -> str:
        """The picture itself as an address, so that a page needs no other file."""
        return "data:image/svg+xml;base64," + base64.b64encode(self.svg).decode()


@dataclass(frozen=True)
class Sketch:
    """A figure that can be drawn: its data are there, its pixels are not."""

    name: str
    caption: str
    alt: str
    panels: tuple[Panel, ...]
    height: float = 2.8
    """Inches of a panel."""

    def figure(self) -> Figure:
        """Return the figure, drawn and not saved."""
        with _settings():
            return _figure(self.panels, self.height)

    def drawn(self) -> Drawing:
        """Return the figure in all formats."""
        with _settings():
            figure = _figure(self.panels, self.height)
            formats = (_saved(figure, form) for form in ("png", "pdf", "svg"))
            return Drawing(self.name, self.caption, self.alt, *formats)


def style(label: str, position: int) -> Style:
    """Return the article's style of a method, or one by the position on an axis."""
    name = label.lower()
    return ARTICLE.get(ALSO.get(name, name)) or style_at(position)


def style_at(position: int) -> Style:
    """Return a style by a position: as many as lines times markers differ in more than colour.

    The first dozen differ from the article's, too.
    """
    return Style(
        COLOURS[position % len(COLOURS)],
        LINES[position % len(LINES)],
        MARKERS[(position + 3) % len(MARKERS)],
    )


def draw_line(panel: Axes, x: Sequence[int], y: Sequence[float], how: Style, label: str) -> None:
    """Draw one line of a figure."""
    panel.plot(
        x,
        y,
        linestyle=how.line,
        color=how.color,
        marker=how.marker,
        markersize=4,
        markevery=max(1, len(x) // MARKED),
        linewidth=1.4,
        # matplotlib leaves what begins with an underscore out of a legend
        label=f" {label}" if label.startswith("_") else label,
    )


def _figure(draws: Sequence[Panel], height: float) -> Figure:
    # The Figure itself, without pyplot: no window, no display, nothing global.
    for backend in ("agg", "svg", "pdf"):
        optional(f"matplotlib.backends.backend_{backend}")
    columns = min(2, len(draws))
    rows = math.ceil(len(draws) / columns)
    figure: Figure = optional("matplotlib.figure").Figure(layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
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
    if panels[0].get_xlabel() == "epoch":
        locator = optional("matplotlib.ticker").MaxNLocator(integer=True)
        panels[0].xaxis.set_major_locator(locator)
    width = 6.4 if columns == 1 else 9.0
    figure.set_size_inches(
        width, 0.6 + height * rows + LEGEND_LINE * _add_legend(figure, panels, width)
    )
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
    longest = max((len(line) for text in texts for line in text.split("\n")), default=0)
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
    lines = max((text.count("\n") + 1 for text in texts), default=1)
    return lines * math.ceil(len(legend) / columns)


def _settings() -> AbstractContextManager[None]:
    # A reader's own matplotlibrc must not change a report, nor a random salt its bytes.
    matplotlib = optional("matplotlib")
    usual = matplotlib.rcParamsDefault
    settings = {
        **{name: usual[name] for name in usual if not name.startswith("backend")},
        "svg.hashsalt": "stochbatch",
        "text.parse_math": False,  # a label with a dollar is a text
    }
    context: AbstractContextManager[None] = matplotlib.rc_context(settings)
    return context


def _saved(figure: Figure, form: str) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format=form, dpi=120, metadata=METADATA[form])
    return file.getvalue()
