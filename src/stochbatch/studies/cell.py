"""A cell: one number of a table, and the trials behind it; and how cells are chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stochbatch.studies.published import Published
from stochbatch.training import Trial


class StudyError(ValueError):
    """A study that cannot be: one line that says what was given and what is allowed."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.splitlines()))  # names may have line breaks


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


def with_labels(cells: Sequence[Cell], axis: str, labels: Sequence[str]) -> list[Cell]:
    """Return the cells that have one of the labels on an axis; capitals do not count.

    A text that is no label is a list of some, with commas.

    Raises:
        StudyError: the study has no such axis, or the axis has no such label.
    """
    if any(axis not in cell.coordinates for cell in cells):
        axes = ", ".join(cells[0].coordinates)
        raise StudyError(f"the study has no axis {axis!r}. There are: {axes}")
    there = list(dict.fromkeys(cell.coordinates[axis] for cell in cells))
    known, wanted = set(map(_plain, there)), set()
    for text in labels:
        for label in [text] if _plain(text) in known else text.split(","):
            if _plain(label) not in known:
                raise StudyError(f"{axis} has no {label.strip()!r}. There are: {'; '.join(there)}")
            wanted.add(_plain(label))
    return [cell for cell in cells if _plain(cell.coordinates[axis]) in wanted]


def _plain(label: str) -> str:
    """Return a label without spaces and capitals."""
    return "".join(label.split()).casefold()
