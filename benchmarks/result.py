"""What a benchmark returns: a table for people, rows for machines, goals met or missed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Goal:
    """A number that should not exceed (or fall below) a limit."""

    what: str
    value: float
    limit: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether the number is on the right side of the limit."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def __str__(self) -> str:
        sign = "≥" if self.at_least else "≤"
        verdict = "met" if self.met else "MISSED"
        return f"{verdict:6}  {self.what}: {self.value:.2f} ({sign} {self.limit:g})"


@dataclass
class Result:
    """One benchmark's outcome."""

    title: str
    head: list[str]
    rows: list[list[str | int | float]] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    name: str = ""
    threads: int = 1

    def where(self) -> str:
        """Return how many threads took part."""
        return f"{self.threads} thread{'s' if self.threads > 1 else ''}"

    def table(self) -> str:
        """Return the rows as a Markdown table, aligned for a terminal."""
        return aligned([self.head, *([_text(cell) for cell in row] for row in self.rows)])

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        data = asdict(self)
        for goal, plain in zip(self.goals, data["goals"], strict=True):
            plain["met"] = goal.met
        return data


def aligned(cells: list[list[str]]) -> str:
    """Return a Markdown table, of which the first row is the head."""
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = [
        "| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
    return "\n".join(lines)


def _text(cell: str | int | float) -> str:
    if isinstance(cell, float):
        return f"{cell:.3g}" if cell < 1000 else f"{cell:,.0f}"
    return f"{cell:,}" if isinstance(cell, int) else cell
