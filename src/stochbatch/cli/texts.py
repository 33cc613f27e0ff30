"""Texts and tables as the commands print them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

import typer

WIDTH = 140
"""Of tables that do not go to a terminal."""
LEAST = 24
"""Of the column that may fold."""
UNBOUNDED = 100_000


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
    title: str | None = None,
) -> None:
    """Print a table.

    Args:
        rows: the cells.
        head: names of the columns.
        right: numbers of the columns that are aligned to the right.
        title: a line above it.
    """
    from rich import box
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [[Text(str(cell)) for cell in row] for row in rows]
    columns = len(head) or max((len(row) for row in cells), default=0)
    shown = Table(
        box=box.SIMPLE_HEAD if head else None,
        show_header=bool(head),
        pad_edge=False,
        title=title,
        title_justify="left",
    )
    for number in range(columns):
        shown.add_column(
            head[number] if head else "",
            justify="right" if number in right else "left",
            # The last column is the long one: it may fold, the others stay whole.
            no_wrap=number < columns - 1,
            overflow="fold",
        )
    for row in cells:
        shown.add_row(*row)
    # A file has no width; what is written there is not cut to that of a narrow terminal.
    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    # rich would crop what does not fit; a terminal breaks long lines and loses nothing.
    whole = [row for row in (*cells, head) if row and len(row) == columns]
    last = max((cell_len(str(row[-1])) for row in whole), default=0)
    natural = console.measure(shown, options=console.options.update(width=UNBOUNDED)).maximum
    # (Its width alone would count for nothing where TERM is dumb.)
    console.size = (max(console.width, natural - max(0, last - LEAST)), console.height)
    with console.capture() as captured:
        console.print(shown)
    typer.echo("\n".join(line.rstrip() for line in captured.get().strip("\n").splitlines()))
