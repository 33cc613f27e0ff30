"""How often the layers of SBS moved: heat maps, which are tables."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from stochbatch.report.charts import LeftOut, options
from stochbatch.report.layout import Layout
from stochbatch.studies.outcome import Outcome
from stochbatch.studies.results import CellOutcomes

COLUMNS, ROWS = 12, 40
"""Epochs of a heat map; with more layers than this its rows are kinds of layers."""


@dataclass(frozen=True)
class Heat:
    """How often the weights of each layer moved, for one cell of SBS."""

    title: str
    epochs: list[int]
    rows: list[tuple[str, int, list[float | None]]]
    """Name, number of weights and update probability by epoch; -1 where no weight moved."""

    @property
    def still(self) -> bool:
        """Whether there is an epoch in which no weight of a layer moved."""
        return any(-1 in values for _, _, values in self.rows)


def heats(layout: Layout, most: int = 2) -> tuple[list[Heat], list[LeftOut]]:
    """Return the layers of the first cells that have any, and which cells are left out."""
    axis = layout.line_axis
    found: list[Heat] = []
    for group in layout.places(axis):
        for label, cell in layout.along(axis, group).items():
            place = {**group, axis: label}
            if len(found) < most:
                heat = _heat(layout.where(place), cell)
                found += [heat] if heat.rows else []
            elif layout.by_key[cell.cell.key].update_probability is not None:
                return found, [LeftOut("layers of other cells", options(place))]
    return found, []


def _heat(title: str, cell: CellOutcomes) -> Heat:
    """Return the layers of a cell, or the kinds of very many layers: means over the trials."""
    values: dict[str, dict[int, list[tuple[int, float, bool]]]] = {}
    sizes: dict[str, int] = {}
    every = [(outcome, outcome.metrics) for outcome in cell.done]
    by_kind = any(len(line.get("layers") or ()) > ROWS for _, lines in every for line in lines)
    for outcome, metrics in every:
        steps = steps_of(outcome)
        for epoch, line in enumerate(metrics):
            weights: Counter[str] = Counter()
            for layer in line.get("layers") or ():
                name = str(layer["kind" if by_kind else "name"])
                weights[name] += layer["size"]
                if (value := layer.get("probability")) is not None:
                    # The mean of 1 to all steps: no weight of the layer moved in any of them.
                    still = not by_kind and steps > 1 and layer.get("batches") == (steps + 1) / 2
                    at = values.setdefault(name, {}).setdefault(epoch, [])
                    at.append((layer["size"], value, still))
            sizes |= weights
    count = max((len(metrics) for _, metrics in every), default=0)
    step = max(1, math.ceil(count / COLUMNS))
    kept = range((count - 1) % step, count, step)
    rows = [
        (name, sizes[name], [_weighted(by_epoch.get(epoch, [])) for epoch in kept])
        for name, by_epoch in values.items()
    ]
    return Heat(title, [epoch + 1 for epoch in kept], rows)


def _weighted(values: Sequence[tuple[int, float, bool]]) -> float | None:
    """Return the mean; -1 if no weight moved in any trial, None without a number."""
    if not values:
        return None
    if all(still for _, _, still in values):
        return -1.0
    size = sum(one for one, _, _ in values)
    return math.fsum(one * value for one, value, _ in values) / size


def steps_of(outcome: Outcome) -> int:
    """Return the steps of an epoch."""
    there = outcome.result.data.train_images if outcome.result else 0
    return math.ceil(there / outcome.trial.batch_size)
