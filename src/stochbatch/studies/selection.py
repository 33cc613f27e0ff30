"""Choosing cells of a study by their labels on an axis."""

from __future__ import annotations

from collections.abc import Sequence

from stochbatch.studies.cell import Cell


class StudyError(ValueError):
    """A study that cannot be: one line that says what was given and what is allowed."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.splitlines()))  # names may have line breaks


def with_labels(cells: Sequence[Cell], axis: str, labels: Sequence[str]) -> list[Cell]:
    """Return the cells that have one of the labels on an axis; capitals do not count.

    A label that has commas may be given in its parts, as a list with commas tears it.

    Raises:
        StudyError: the study has no such axis, or the axis has no such label.
    """
    if any(axis not in cell.coordinates for cell in cells):
        axes = ", ".join(cells[0].coordinates)
        raise StudyError(f"the study has no axis {axis!r}. There are: {axes}")
    there = list(dict.fromkeys(cell.coordinates[axis] for cell in cells))
    known = set(map(_plain, there))
    wanted = set()
    parts = list(labels)
    while parts:
        ends = [end for end in range(len(parts), 0, -1) if _plain(",".join(parts[:end])) in known]
        if not ends:
            raise StudyError(f"{axis} has no {parts[0].strip()!r}. There are: {_listed(there)}")
        wanted.add(_plain(",".join(parts[: ends[0]])))
        parts = parts[ends[0] :]
    return [cell for cell in cells if _plain(cell.coordinates[axis]) in wanted]


def _plain(label: str) -> str:
    """Return a label without spaces and capitals."""
    return "".join(label.split()).casefold()


def _listed(labels: Sequence[str]) -> str:
    return ("; " if any("," in label for label in labels) else ", ").join(labels)
