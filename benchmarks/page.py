"""Write the tables of docs/speed.md from the results in docs/speed: ``python -m benchmarks.page``.

``make bench`` leaves its numbers in ``benchmarks/results``; a file copied from there into
``docs/speed`` is what the page shows, section by section.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.result import Goal, Result, aligned
from benchmarks.step import PEER

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = DOCS / "speed.md"
RESULTS = DOCS / "speed"
MARKED = re.compile(r"(<!-- results: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(page: str) -> str:
    """Return the page with its tables made anew."""
    return MARKED.sub(lambda found: f"{found[1]}\n{_section(found[2])}\n{found[3]}", page)


def _section(name: str) -> str:
    """Return what is known of a benchmark: a heading, a table and notes for each result."""
    return "\n".join(
        f"**{result.where()}** ({machine}): {result.title}\n\n{_body(result)}\n"
        for machine, result in _stored()
        if result.name == name
    )


def _stored() -> Iterator[tuple[str, Result]]:
    for path in sorted(RESULTS.glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        machine = data["machine"]
        where = f"{machine['processor']}, {machine['capability']}, torch {machine['torch']}"
        for each in data["results"]:
            goals = [
                Goal(**{key: value for key, value in goal.items() if key != "met"})
                for goal in each["goals"]
            ]
            yield f"{where}, {data['time'][:10]}", Result(**{**each, "goals": goals})


def _body(result: Result) -> str:
    table = _pivot(result) if result.name == "step" else result.table()
    notes = "\n".join(f"- {note}" for note in result.notes)
    parts = [table, notes, _goals(result.goals)]
    return "\n\n".join(part for part in parts if part)


def _pivot(result: Result) -> str:
    """Return a row of ratios per parameter set, a column per optimizer."""
    rows: dict[Any, dict[Any, list[Any]]] = {}
    for name, optimizer, *numbers in result.rows:
        rows.setdefault(name, {})[optimizer] = numbers
    optimizers = [one for one in next(iter(rows.values())) if one != PEER]
    lines = [["parameters", f"{PEER}, ms", *optimizers, "SBS, 10 % to 90 %"]]
    for name, row in rows.items():
        ratios = [f"{row[one][1]:{'.0f' if row[one][1] > 10 else '.2f'}}" for one in optimizers]
        lines.append([name, f"{row[PEER][0]:.3g}", *ratios, row["SBS"][2]])
    return aligned(lines)


def _goals(goals: list[Goal]) -> str:
    missed = [goal for goal in goals if not goal.met]
    if not missed:
        return f"All {len(goals)} goals are met." if goals else ""
    words = "; ".join(f"{goal.what} {goal.value:.2f} (goal {goal.limit:g})" for goal in missed)
    return f"Of {len(goals)} goals {len(missed)} are missed: {words}."


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
