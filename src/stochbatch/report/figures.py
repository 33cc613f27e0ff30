"""The figures of a report: curves with bands over trials, rates, batches, batch sizes."""

from __future__ import annotations

import base64
import io
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from stochbatch.data.optional import optional
from stochbatch.report.curve import COLOURS, MARKERS, batches_by_kind
from stochbatch.report.layout import BATCH_SIZE, Layout, joined, number
from stochbatch.studies.results import CellOutcomes, Outcome
from stochbatch.studies.statistics import accuracies

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MANY = 6
"""With more groups than this, curves are drawn for the first batch size alone."""
MOST = 12
"""No more figures of a kind than this."""
MARKED = 10
"""Markers on a line."""
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)))
METADATA: dict[str, dict[str, Any]] = {
    # Without dates and versions the same results give the same bytes.
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


@dataclass(frozen=True)
class Style:
    """How a line is drawn: told apart without its colour, too."""

    color: str
    line: Any
    marker: str


ARTICLE = {
    "sgd": Style("#000000", "-", "o"),
    "dropout": Style("#D4A800", "--", "s"),
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


def style(label: str, position: int) -> Style:
    """Return the article's style of a method, or one by the position on an axis."""
    name = label.lower()
    found = ARTICLE.get(ALSO.get(name, name))
    if found is not None:
        return found
    return Style(
        COLOURS[position % len(COLOURS)],
        LINES[position % len(LINES)],
        MARKERS[(position + position // len(MARKERS)) % len(MARKERS)],
    )


def drawings(layout: Layout) -> list[Drawing]:
    """Return all figures that the results have data for."""
    line_axis = _line_axis(layout)
    found: list[Drawing | None] = [_rates(layout, line_axis)]
    groups = _groups(layout, line_axis)
    found += [_curves(layout, line_axis, group) for group in groups]
    found += [_batches(layout, line_axis, group) for group in groups]
    if BATCH_SIZE in layout.axes:
        found += _robustness(layout)
    return _named_apart([drawing for drawing in found if drawing is not None])


Group = dict[str, str]
"""Labels on the axes that a figure keeps fixed."""


def _line_axis(layout: Layout) -> str:
    claim = layout.results.study.claim
    return claim.axis if claim else layout.axes[-1]


def _fixed(layout: Layout, *but: str) -> list[Group]:
    """Return the places on all axes but these, in order."""
    found: dict[tuple[str, ...], Group] = {}
    for cell in layout.results.cells:
        group = {name: text for name, text in cell.cell.coordinates.items() if name not in but}
        found.setdefault(tuple(group.values()), group)
    return list(found.values())


def _groups(layout: Layout, line_axis: str) -> list[Group]:
    groups = _fixed(layout, line_axis)
    if len(groups) > MANY and BATCH_SIZE in groups[0]:
        first = layout.labels(BATCH_SIZE)[0]
        groups = [group for group in groups if group[BATCH_SIZE] == first]
    return groups[:MOST]


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


def _curves(layout: Layout, axis: str, group: Group) -> Drawing | None:
    drawn: list[tuple[str, int, list[list[float | None]]]] = []
    for label, position, cell in _cells(layout, axis, group):
        curves = [outcome.result.curve for outcome in cell.done if outcome.result]
        if _over_trials(curves):
            drawn.append((label, position, curves))
    if not drawn:
        return None

    def draw(panel: Axes) -> None:
        for label, position, curves in drawn:
            how = style(label, position)
            epochs, low, mean, high = zip(*_over_trials(curves), strict=True)
            _line(panel, epochs, mean, how, label)
            panel.fill_between(epochs, low, high, color=how.color, alpha=0.12, linewidth=0)
        panel.set(xlabel="epoch", ylabel="test accuracy (%)")

    ends = joined([f"{label} {number(_over_trials(curves)[-1][2])}" for label, _, curves in drawn])
    title = f"Test accuracy over the epochs{_of(group)}"
    return _drawing(
        _name("curves", group),
        f"{title}. Lines are means over the trials, bands reach from the lowest to the highest; "
        "a trial that diverged counts as far as it went.",
        f"Line chart. {title}, a line for each {axis}. In the last epoch, in percent: {ends}.",
        draw,
    )


def _rates(layout: Layout, axis: str) -> Drawing | None:
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
            _line(panel, range(1, len(rates) + 1), rates, style(label, position), label)
        panel.set(xlabel="epoch", ylabel="learning rate", yscale="log")

    ends = joined([f"{label} {rates[0]:g} to {rates[-1]:g}" for label, (_, rates) in found.items()])
    return _drawing(
        "learning-rates",
        "Learning rate over the epochs.",
        f"Line chart. Learning rate over the epochs, a line for each {axis}: {ends}.",
        draw,
    )


def _batches(layout: Layout, axis: str, group: Group) -> Drawing | None:
    """Draw for SBS how many images a weight's gradient is the mean of."""
    panels: dict[str, dict[str, list[float]]] = {}
    for label, _, cell in _cells(layout, axis, group):
        kinds = _kinds(cell.done)
        if kinds:
            panels[label] = kinds
    if not panels:
        return None
    names = list(dict.fromkeys(kind for kinds in panels.values() for kind in kinds))

    def panel_of(label: str) -> Callable[[Axes], None]:
        def draw(panel: Axes) -> None:
            for position, kind in enumerate(names):
                if values := panels[label].get(kind):
                    how = Style(
                        COLOURS[position % len(COLOURS)],
                        LINES[position % len(LINES)],
                        MARKERS[position % len(MARKERS)],
                    )
                    _line(panel, range(1, len(values) + 1), values, how, kind)
            panel.set(xlabel="epoch", ylabel="images", title=label)

        return draw

    ends = "; ".join(
        f"{label}: " + joined([f"{kind} {values[-1]:.0f}" for kind, values in kinds.items()])
        for label, kinds in panels.items()
    )
    title = f"Effective batch size by kind of layer{_of(group)}"
    return _drawing(
        _name("batches", group),
        f"{title}: images in the average gradient of a weight, mean over weights and trials.",
        f"Line chart. {title}, over the epochs. In the last epoch, in images: {ends}.",
        *(panel_of(label) for label in panels),
    )


def _kinds(outcomes: Iterable[Outcome]) -> dict[str, list[float]]:
    by_kind: dict[str, list[list[float]]] = {}
    for outcome in outcomes:
        for kind, batches in batches_by_kind(outcome.metrics).items():
            images = [count * outcome.trial.batch_size for count in batches]
            by_kind.setdefault(kind, []).append(images)
    return {
        kind: [mean for _, _, mean, _ in _over_trials(curves)] for kind, curves in by_kind.items()
    }


def _robustness(layout: Layout) -> list[Drawing | None]:
    axis = _line_axis(layout)
    if axis == BATCH_SIZE:
        others = [name for name in layout.axes if name != BATCH_SIZE]
        axis = others[-1] if others else ""
    return [_against_batch_size(layout, axis, group) for group in _fixed(layout, axis, BATCH_SIZE)][
        :MOST
    ]


def _against_batch_size(layout: Layout, axis: str, group: Group) -> Drawing | None:
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
            _line(panel, x, mean, how, label)
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
    return _drawing(
        _name("batch-size", group),
        f"{title}. Means over the trials, bars from the lowest to the highest.",
        f"Line chart. {title}. In percent: {numbers}.",
        draw,
    )


def _of(group: Group) -> str:
    return f" ({_where(group)})" if group else ""


def _name(kind: str, group: Group) -> str:
    """Return a file name of letters, digits and dashes."""
    parts = (re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-.") for label in group.values())
    return "-".join([kind, *parts])


def _named_apart(found: list[Drawing]) -> list[Drawing]:
    """Return the figures with a number where two labels make the same file name."""
    seen: Counter[str] = Counter()
    result = []
    for drawing in found:
        seen[drawing.name] += 1
        again = seen[drawing.name] > 1
        name = f"{drawing.name}-{seen[drawing.name]}" if again else drawing.name
        result.append(replace(drawing, name=name))
    return result


def _over_trials(
    curves: Sequence[Sequence[float | None]],
) -> list[tuple[int, float, float, float]]:
    """Return epoch, lowest, mean and highest of the trials that have a number there.

    Example:
        >>> from stochbatch.report.figures import _over_trials
        >>> _over_trials([[1.0, None, 2.0], [3.0]])
        [(1, 1.0, 2.0, 3.0), (3, 2.0, 2.0, 2.0)]
    """
    found = []
    for epoch in range(max(map(len, curves), default=0)):
        column = [curve[epoch] for curve in curves if epoch < len(curve)]
        if there := [value for value in column if value is not None]:
            found.append((epoch + 1, min(there), math.fsum(there) / len(there), max(there)))
    return found


def _line(panel: Axes, x: Sequence[int], y: Sequence[float], how: Style, label: str) -> None:
    panel.plot(
        x,
        y,
        linestyle=how.line,
        color=how.color,
        marker=how.marker,
        markersize=4,
        markevery=max(1, len(x) // MARKED),
        linewidth=1.4,
        label=label,
    )


def _drawing(name: str, caption: str, alt: str, *draws: Callable[[Axes], None]) -> Drawing:
    # The Figure itself, without pyplot: no window, no display, nothing global.
    for backend in ("agg", "svg", "pdf"):
        optional(f"matplotlib.backends.backend_{backend}")
    columns = min(2, len(draws))
    rows = math.ceil(len(draws) / columns)
    with _settings():
        figure: Figure = optional("matplotlib.figure").Figure(layout="constrained")
        figure.set_size_inches(6.4 if columns == 1 else 9, 1 + 2.8 * rows)
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        panels = [panel for line in grid for panel in line]
        for panel, draw in zip(panels, draws, strict=False):
            draw(panel)
            panel.grid(alpha=0.25)
        for panel in panels[len(draws) :]:
            panel.set_axis_off()
        if panels[0].get_xlabel() == "epoch":
            locator = optional("matplotlib.ticker").MaxNLocator(integer=True)
            panels[0].xaxis.set_major_locator(locator)
        # A panel may lack a line that another has.
        legend = {
            label: handle
            for panel in panels
            for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
        }
        figure.legend(
            legend.values(),
            legend.keys(),
            loc="outside lower center",
            ncols=min(4, len(legend)),
            fontsize="small",
            frameon=False,
            handlelength=3,
        )
        return Drawing(
            name, caption, alt, *(_saved(figure, form) for form in ("png", "pdf", "svg"))
        )


def _settings() -> AbstractContextManager[None]:
    # A reader's own matplotlibrc must not change a report, nor a random salt its bytes.
    matplotlib = optional("matplotlib")
    settings = {
        **{name: matplotlib.rcParamsDefault[name] for name in ("font.family", "font.size")},
        "text.usetex": False,
        "svg.hashsalt": "stochbatch",
        "figure.facecolor": "white",
        "axes.facecolor": "white",
    }
    context: AbstractContextManager[None] = matplotlib.rc_context(settings)
    return context


def _saved(figure: Figure, form: str) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format=form, dpi=120, metadata=METADATA[form])
    return file.getvalue()
