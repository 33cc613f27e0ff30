"""A cell: one number of a table, and the trials behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stochbatch.studies.published import Published
from stochbatch.training import Trial


@dataclass(frozen=True)
class Cell:
    """One number of a table: where it stands, the trials behind it, what the article says.

    Its name is its labels with the names of their axes.

    Example:
        >>> from stochbatch.studies import Cell
        >>> str(Cell({"batch size": "16", "method": "SBS"}, {}))
        'batch size 16, method SBS'
    """

    coordinates: Mapping[str, str]
    """Label on each axis."""
    fields: Mapping[str, Any]
    """Fields of its trials but for the seed."""
    published: Published | None = None

    def trial(self, seed: int) -> Trial:
        """Return the cell's trial with this seed."""
        return Trial(**{**self.fields, "seed": seed})

    @property
    def key(self) -> tuple[str, ...]:
        """The labels, in the order of the axes."""
        return tuple(self.coordinates.values())

    def __str__(self) -> str:
        return ", ".join(f"{name} {label}" for name, label in self.coordinates.items())
