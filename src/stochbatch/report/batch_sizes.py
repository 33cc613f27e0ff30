"""How many images the gradient of a weight is the mean of, for SBS: figures over the epochs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from stochbatch.optional import optional
from stochbatch.report.curve import batches_by_kind, batches_by_layer
from stochbatch.report.groups import Group, cells_along, file_name, in_brackets, over_trials
from stochbatch.report.layout import Layout, joined
from stochbatch.report.plotting import Panel, Sketch, draw_line, style_at
from stochbatch.studies.results import Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMED = 40
"""Of more layers than this not all are named beside a map."""
ROW = 0.14
"""Inches of a named layer."""

Curves = dict[str, list[float]]
"""Images, epoch after epoch, of each kind or layer."""


def by_kind(layout: Layout, axis: str, group: Group) -> Sketch | None:
    """Draw the kinds of layers as lines, a panel for each cell of a group that is of SBS."""
    panels: dict[str, Curves] = {}
    for label, _, cell in cells_along(layout, axis, group):
        if curves := _means((trial, batches_by_kind(trial.metrics)) for trial in cell.done):
            panels[label] = curves
    if not panels:
        return None
    names = list(dict.fromkeys(kind for curves in panels.values() for kind in curves))

    def panel_of(label: str) -> Panel:
        def draw(panel: Axes) -> None:
            for position, kind in enumerate(names):
                if values := panels[label].get(kind):
                    how = style_at(position)
                    draw_line(panel, range(1, len(values) + 1), values, how, kind)
            panel.set(xlabel="epoch", ylabel="images", title=label)

        return draw

    ends = "; ".join(
        f"{label}: " + joined([f"{kind} {values[-1]:.0f}" for kind, values in curves.items()])
        for label, curves in panels.items()
    )
    title = f"Effective batch size by kind of layer{in_brackets(group)}"
    return Sketch(
        file_name("batches", group),
        f"{title}: images in the average gradient of a weight, mean over weights and trials.",
        f"Line chart. {title}, over the epochs. In the last epoch, in images: {ends}.",
        tuple(panel_of(label) for label in panels),
    )


def by_layer(layout: Layout, axis: str, groups: Iterable[Group]) -> list[tuple[Group, Sketch]]:
    """Draw every cell of SBS as a map: a row for each layer, a column for each epoch."""
    found = []
    for group in groups:
        for label, _, cell in cells_along(layout, axis, group):
            place = {**group, axis: label}
            curves = _means((trial, batches_by_layer(trial.metrics)) for trial in cell.done)
            if any(math.isfinite(value) for values in curves.values() for value in values):
                found.append((place, _map(curves, place, _images(cell.done[0]))))
    return found


def _means(trials: Iterable[tuple[Outcome, Curves]]) -> Curves:
    """Return the means over the trials that have a number, in images."""
    found: dict[str, list[list[float | None]]] = {}
    for trial, curves in trials:
        size = _images(trial)
        for name, batches in curves.items():
            images = [size * count if math.isfinite(count) else None for count in batches]
            found.setdefault(name, []).append(images)
    return {name: _mean(curves) for name, curves in found.items()}


def _images(trial: Outcome) -> int:
    """Return the images of a batch, which is never more than the whole training set."""
    there = trial.result.data.train_images if trial.result else trial.trial.batch_size
    return min(trial.trial.batch_size, there)


def _mean(curves: Sequence[Sequence[float | None]]) -> list[float]:
    means = {epoch: mean for epoch, _, mean, _ in over_trials(curves)}
    return [means.get(epoch + 1, math.nan) for epoch in range(max(map(len, curves)))]


def _map(curves: Curves, place: Group, batch_size: int) -> Sketch:
    title = f"Effective batch size by layer{in_brackets(place)}"
    last = {name: values[-1] for name, values in curves.items() if math.isfinite(values[-1])}
    ends = ""
    if last:
        most, least = max(last, key=lambda name: last[name]), min(last, key=lambda name: last[name])
        ends = (
            f" In the last epoch {most} has most, {last[most]:.0f}, "
            f"and {least} least, {last[least]:.0f}."
        )
    return Sketch(
        file_name("layers", place),
        f"{title}: images in the average gradient of a weight, mean over the weights of a layer "
        "and over trials; layers of a kind stand together, in the order of the network.",
        f"Map of colours. {title}, in images; {len(curves)} rows of layers, "
        f"columns are epochs.{ends}",
        (lambda panel: _draw_map(panel, curves, batch_size),),
        height=max(Sketch.height, ROW * min(NAMED, len(curves))),
    )


def _draw_map(panel: Axes, curves: Curves, batch_size: int) -> None:
    names, rows = list(curves), list(curves.values())
    epochs = max(map(len, rows))
    picture = [[*row, *[math.nan] * (epochs - len(row))] for row in rows]
    highest = max(value for row in rows for value in row if math.isfinite(value))
    ticks = _ticks(batch_size, highest)
    image = panel.imshow(
        picture,
        aspect="auto",
        interpolation="nearest",
        cmap="cividis",
        norm=optional("matplotlib.colors").LogNorm(ticks[0], ticks[-1]),
        extent=(0.5, epochs + 0.5, len(names) - 0.5, -0.5),
    )
    bar = panel.figure.colorbar(image, ax=panel, label="images")
    bar.set_ticks(ticks, labels=[f"{tick:.4g}" for tick in ticks])
    bar.minorticks_off()
    named = range(0, len(names), math.ceil(len(names) / NAMED))
    panel.set_yticks(named, [names[row] for row in named], fontsize=7)
    panel.set(xlabel="epoch")


def _ticks(low: float, high: float) -> Sequence[float]:
    """Return five numbers with equal ratios, from one batch to twice as much or more.

    Where all layers are nearly alike, their colours are, too.
    """
    ratio = max(high / low, 2.0) ** 0.25
    return [low * ratio**step for step in range(5)]
