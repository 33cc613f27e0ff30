"""Texts and tables as the commands print them."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence

import typer

LEAST = 24
"""Letters of the column that may fold."""


def harmless(text: object) -> str:
    r"""Return a text whose control characters are shown and not obeyed by a terminal.

    Example:
        >>> from stochbatch.cli.printing import harmless
        >>> print(harmless("runs/\x1b[2Jnice\nname"))
        runs/\x1b[2Jnice\nname
    """
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in str(text))


def say(text: object = "", err: bool = False) -> None:
    """Print lines, on standard error if they are not a part of the result."""
    typer.echo("\n".join(map(harmless, str(text).split("\n"))), err=err)


def examples(*commands: str, after: str = "") -> str:
    """Return the end of a help text: examples, each in a line of its own."""
    # The control character keeps the lines of a paragraph apart.
    lines = ["\b", "Examples:" if len(commands) > 1 else "Example:"]
    lines += [f"  {command}" for command in commands]
    return "\n".join([*lines, *(["", after] if after else [])])


def table(
    rows: Iterable[Sequence[object]],
    head: Sequence[str] = (),
    right: Sequence[int] = (),
    title: str = "",
) -> None:
    """Print a table. On a terminal its last column folds, the others stay whole.

    ``right`` has the numbers of the columns that are aligned to the right.
    """
    lines = [[harmless(cell) for cell in row] for row in ([head] if head else []) + [*rows]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    indent = sum(widths[:-1]) + 2 * len(widths[:-1])
    # A file has no width.
    room = shutil.get_terminal_size().columns - indent if sys.stdout.isatty() else sys.maxsize
    if title:
        say(f"\n{title}")
    for number, line in enumerate(lines):
        cells = [
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        last = textwrap.wrap(cells[-1].rstrip(), max(LEAST, room), break_long_words=False) or [""]
        start = "".join(f"{cell}  " for cell in cells[:-1])
        typer.echo(
            "\n".join([(start + last[0]).rstrip(), *(" " * indent + more for more in last[1:])])
        )
        if head and number == 0:
            typer.echo("\N{BOX DRAWINGS LIGHT HORIZONTAL}" * (indent + min(widths[-1], room)))
