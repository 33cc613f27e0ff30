"""Which cells are drawn together, what the figure of them is called, means over their trials."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence

from stochbatch.report.layout import Layout, joined
from stochbatch.studies.results import CellOutcomes

LONGEST = 100
"""Letters of a figure's file name."""

Group = dict[str, str]
"""Labels on the axes that a figure keeps fixed."""


def places(layout: Layout, *but: str) -> list[Group]:
    """Return the places on all axes but these, in order."""
    found: dict[tuple[str, ...], Group] = {}
    for cell in layout.results.cells:
        group = {name: text for name, text in cell.cell.coordinates.items() if name not in but}
        found.setdefault(tuple(group.values()), group)
    return list(found.values())


def cells_along(layout: Layout, axis: str, group: Group) -> list[tuple[str, int, CellOutcomes]]:
    """Return label, position and trials of the cells along an axis."""
    found = []
    for position, label in enumerate(layout.labels(axis)):
        place = {**group, axis: label}
        cell = layout.outcomes_by_key.get(tuple(place[name] for name in layout.axes))
        if cell is not None and any(outcome.result for outcome in cell.outcomes):
            found.append((label, position, cell))
    return found


def in_brackets(group: Group) -> str:
    """Return the labels for the end of a title."""
    places = joined([f"{name} {label}" for name, label in group.items()])
    return f" ({places})" if group else ""


def file_name(kind: str, group: Group) -> str:
    """Return a file name of letters, digits and dashes."""
    parts = (re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-.") for label in group.values())
    name = "-".join([kind, *parts])
    if len(name) <= LONGEST:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: LONGEST - 9].rstrip('-.')}-{digest}"


def over_trials(
    curves: Sequence[Sequence[float | None]],
) -> list[tuple[int, float, float, float]]:
    """Return epoch, lowest, mean and highest of the trials that have a number there.

    Example:
        >>> from stochbatch.report.groups import over_trials
        >>> over_trials([[1.0, None, 2.0], [3.0]])
        [(1, 1.0, 2.0, 3.0), (3, 2.0, 2.0, 2.0)]
    """
    found = []
    for epoch in range(max(map(len, curves), default=0)):
        column = [curve[epoch] for curve in curves if epoch < len(curve)]
        if there := [value for value in column if value is not None]:
            found.append((epoch + 1, min(there), math.fsum(there) / len(there), max(there)))
    return found
