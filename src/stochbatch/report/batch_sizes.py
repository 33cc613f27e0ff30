"""How many images the gradient of a weight is the mean of, for SBS: figures over the epochs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stochbatch.optional import optional
from stochbatch.report.layout import Group, Layout
from stochbatch.report.plotting import (
    Sketch,
    file_name,
    in_brackets,
    over_epochs,
    over_trials,
    panel_of,
    style_at,
)
from stochbatch.studies.outcome import Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMED = 40
"""Of more layers than this not all are named beside a map."""
ROW = 0.14
"""Inches of a named layer."""

KIND, LAYER = "{kind}", "{name} ({kind})"
"""Names of layers: those of one name are taken together."""


def batches(metrics: Sequence[Mapping[str, Any]], name: str = KIND) -> dict[str, list[float]]:
    """Return by name the mean number of batches, an epoch after the other; NaN without a number.

    Every weight counts alike, so a large layer counts more than a small one.

    Example:
        >>> from stochbatch.report.batch_sizes import batches
        >>> layers = [
        ...     {"kind": "conv", "size": 3, "batches": 1.0},
        ...     {"kind": "conv", "size": 1, "batches": 5.0},
        ...     {"kind": "bias", "size": 7, "batches": None},
        ... ]
        >>> batches([{"epoch": 0, "layers": layers}])
        {'conv': [2.0], 'bias': [nan]}
    """
    found: dict[str, list[float]] = {}
    for epoch, line in enumerate(metrics):
        sums: dict[str, tuple[float, int]] = {}
        for layer in line.get("layers") or ():
            of = name.format_map(layer)
            curve = found.setdefault(of, [math.nan] * len(metrics))
            if layer["batches"] is not None:
                total, size = sums.get(of, (0.0, 0))
                total, size = total + layer["size"] * layer["batches"], size + layer["size"]
                sums[of], curve[epoch] = (total, size), total / size
    return found


def by_kind(layout: Layout, axis: str, group: Group) -> Sketch | None:
    """Draw the kinds of layers as lines, a panel for each cell of a group that is of SBS."""
    found = {label: _in_images(cell.done, KIND) for label, _, cell in layout.along(axis, group)}
    cells = {label: curves for label, curves in found.items() if curves}
    if not cells:
        return None
    kinds = dict.fromkeys(kind for curves in cells.values() for kind in curves)
    ends = "; ".join(
        f"{label}: " + ", ".join(f"{kind} {values[-1]:.0f}" for kind, values in curves.items())
        for label, curves in cells.items()
    )
    title = f"Effective batch size by kind of layer{in_brackets(group)}"
    return Sketch(
        file_name("batches", group),
        f"{title}: images in the average gradient of a weight, mean over weights and trials.",
        f"Line chart. {title}, over the epochs. In the last epoch, in images: {ends}.",
        [
            panel_of(
                {
                    kind: (style_at(position), over_epochs(curves[kind]))
                    for position, kind in enumerate(kinds)
                    if kind in curves
                },
                xlabel="epoch",
                ylabel="images",
                title=label,
            )
            for label, curves in cells.items()
        ],
    )


def by_layer(layout: Layout, axis: str, groups: Iterable[Group]) -> list[tuple[Group, Sketch]]:
    """Draw every cell of SBS as a map: a row for each layer, a column for each epoch."""
    found = []
    for group in groups:
        for label, _, cell in layout.along(axis, group):
            curves = _in_images(cell.done, LAYER)
            if any(math.isfinite(value) for values in curves.values() for value in values):
                place = {**group, axis: label}
                found.append((place, _map(curves, place, _batch(cell.done[0]))))
    return found


def _in_images(trials: Iterable[Outcome], names: str) -> dict[str, list[float]]:
    """Return the means over the trials that have a number; NaN where none has."""
    found: dict[str, list[list[float]]] = {}
    for trial in trials:
        for name, curve in batches(trial.metrics, names).items():
            found.setdefault(name, []).append([_batch(trial) * count for count in curve])
    return {name: _mean(curves) for name, curves in found.items()}


def _mean(curves: Sequence[Sequence[float]]) -> list[float]:
    means = {epoch: mean for epoch, _, mean, _ in over_trials(curves)}
    return [means.get(epoch + 1, math.nan) for epoch in range(max(map(len, curves)))]


def _batch(trial: Outcome) -> int:
    """Return the images of a batch, which is never more than the whole training set."""
    there = trial.result.data.train_images if trial.result else trial.trial.batch_size
    return min(trial.trial.batch_size, there)


def _map(curves: Mapping[str, list[float]], place: Group, batch_size: int) -> Sketch:
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
        [lambda panel: _draw_map(panel, curves, batch_size)],
        height=max(Sketch.height, ROW * min(NAMED, len(curves))),
    )


def _draw_map(panel: Axes, curves: Mapping[str, list[float]], batch_size: int) -> None:
    names, rows = list(curves), list(curves.values())
    epochs = max(map(len, rows))
    picture = [[*row, *[math.nan] * (epochs - len(row))] for row in rows]
    highest = max(value for row in rows for value in row if math.isfinite(value))
    # From one batch to twice as much or more: where all layers are nearly alike, so are colours.
    ratio = max(highest / batch_size, 2.0) ** 0.25
    ticks = [batch_size * ratio**step for step in range(5)]
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
