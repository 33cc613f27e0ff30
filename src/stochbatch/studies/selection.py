"""Choosing cells of a study: by their labels on an axis, or by patterns of their names."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

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


def with_names(cells: Sequence[Cell], patterns: Sequence[str]) -> list[Cell]:
    """Return the cells whose names match one of the patterns, in their order.

    A pattern is one of `fnmatch`: ``*`` is anything, ``?`` any letter. Without a wildcard it may
    stand anywhere in the name. Capitals do not count.

    Raises:
        StudyError: a pattern matches no cell.

    Example:
        >>> from stochbatch.studies import SCALES, STUDIES
        >>> from stochbatch.studies.selection import with_names
        >>> cells = STUDIES["comparison"].cells(SCALES["demo"])
        >>> [str(cell) for cell in with_names(cells, ["batch size 16, method sbs"])]
        ['dataset digits, network vgg_tiny, batch size 16, method SBS']
        >>> len(with_names(cells, ["sgd"])), len(with_names(cells, ["*method sgd"]))
        (12, 4)
    """
    found = set()
    for pattern in patterns:
        whole = pattern if set(pattern) & set("*?[") else f"*{pattern}*"
        keys = {cell.key for cell in cells if fnmatchcase(str(cell).lower(), whole.lower())}
        if not keys:
            raise StudyError(
                f"no cell's name matches {pattern!r}; `stochbatch study plan NAME --list` prints "
                "the names"
            )
        found |= keys
    return [cell for cell in cells if cell.key in found]


def _plain(label: str) -> str:
    """Return a label without spaces and capitals."""
    return "".join(label.split()).casefold()


def _listed(labels: Sequence[str]) -> str:
    return ("; " if any("," in label for label in labels) else ", ").join(labels)
