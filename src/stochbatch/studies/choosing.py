"""Choosing cells of a study: by their labels on an axis, or by words of their names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher

from stochbatch.studies.cell import Cell
from stochbatch.studies.errors import StudyError

NEAR = 3
"""So many names are told where none has the words."""


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
    parts = [_plain(label) for label in labels]
    while parts:
        ends = [end for end in range(len(parts), 0, -1) if ", ".join(parts[:end]) in known]
        if not ends:
            raise StudyError(f"{axis} has no {parts[0]!r}. There are: {_listed(there)}")
        wanted.add(", ".join(parts[: ends[0]]))
        parts = parts[ends[0] :]
    return [cell for cell in cells if _plain(cell.coordinates[axis]) in wanted]


def with_names(cells: Sequence[Cell], texts: Sequence[str]) -> list[Cell]:
    """Return the cells that one of the texts means, in their order.

    A text means the cell whose whole name it is. If there is none, it means all cells whose
    names have each of its parts, between commas, as whole words; ``*`` stands for anything.
    Capitals do not count.

    Raises:
        StudyError: a text means no cell.

    Example:
        >>> from stochbatch.studies import SCALES, STUDIES
        >>> from stochbatch.studies.choosing import with_names
        >>> cells = STUDIES["comparison"].cells(SCALES["demo"])
        >>> [str(cell) for cell in with_names(cells, ["batch size 16, sbs"])]
        ['dataset digits, network vgg_tiny, batch size 16, method SBS']
        >>> len(with_names(cells, ["sgd"])), len(with_names(cells, ["*sgd"]))
        (4, 12)
    """
    meant = {cell.key for text in texts for cell in _meant(cells, text)}
    return [cell for cell in cells if cell.key in meant]


def _meant(cells: Sequence[Cell], text: str) -> list[Cell]:
    names = [_plain(str(cell)) for cell in cells]
    whole = [cell for cell, name in zip(cells, names, strict=True) if name == _plain(text)]
    if whole:
        return whole
    patterns = _patterns(text)
    found = [
        cell
        for cell, name in zip(cells, names, strict=True)
        if patterns and all(pattern.search(name) for pattern in patterns)
    ]
    if not found:
        near = "; ".join(repr(str(cell)) for cell in _nearest(cells, text))
        raise StudyError(f"no cell has {text!r} in its name. Near it: {near}")
    return found


def _patterns(text: str) -> list[re.Pattern[str]]:
    # Words end at spaces and commas: "sgd" is none of "entropy-sgd", nor "0.2" one of "0.25".
    parts = [".*".join(map(re.escape, part.split("*"))) for part in _plain(text).split(", ")]
    return [re.compile(rf"(?<![^\s,]){part}(?![^\s,])") for part in parts if part]


def _nearest(cells: Sequence[Cell], text: str) -> list[Cell]:
    patterns = _patterns(text)

    def likeness(cell: Cell) -> tuple[int, float]:
        name = _plain(str(cell))
        hits = sum(pattern.search(name) is not None for pattern in patterns)
        return hits, SequenceMatcher(None, _plain(text), name).ratio()

    return sorted(cells, key=likeness, reverse=True)[:NEAR]


def _plain(text: str) -> str:
    """Return a text with single spaces, a space after each comma, and without capitals."""
    return re.sub(r"\s*,\s*", ", ", " ".join(text.split())).strip().casefold()


def _listed(labels: Sequence[str]) -> str:
    return ("; " if any("," in label for label in labels) else ", ").join(labels)
