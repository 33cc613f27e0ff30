"""Write the tables of docs/speed.md from the results in docs/speed: ``python -m benchmarks.page``.

``python -m benchmarks step`` leaves its numbers in ``benchmarks/results``; a file copied from there
into ``docs/speed`` is what the page shows.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from benchmarks.step import PEER

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = DOCS / "speed.md"
RESULTS = DOCS / "speed"
MARKED = re.compile(r"(<!-- from docs/speed -->\n).*?(<!-- end -->)", re.DOTALL)


def tables() -> str:
    """Return a table of ratios per file: a row per parameter set, a column per optimizer."""
    found = []
    for path in sorted(RESULTS.glob("step-*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        (result,) = data["results"]
        found.append(f"{_machine(data)}\n\n{_table(result)}\n\n{_goals(result)}\n")
    return "\n".join(found)


def _machine(data: dict[str, Any]) -> str:
    machine = data["machine"]
    threads = f"{machine['threads']} thread{'s' if machine['threads'] > 1 else ''}"
    where = f"{machine['processor']}, {machine['capability']}, torch {machine['torch']}"
    return f"**{threads}** ({where}, {data['time'][:10]}):"


def _table(result: dict[str, Any]) -> str:
    rows: dict[str, dict[str, list[Any]]] = {}
    for name, optimizer, *numbers in result["rows"]:
        rows.setdefault(name, {})[optimizer] = numbers
    optimizers = [one for one in next(iter(rows.values())) if one != PEER]
    head = ["parameters", f"{PEER}, ms", *optimizers, "SBS, 10 to 90 % of rounds"]
    lines = [head, ["---"] * len(head)]
    for name, row in rows.items():
        ratios = [f"{row[one][1]:{'.0f' if row[one][1] > 10 else '.2f'}}" for one in optimizers]
        lines.append([name, f"{row[PEER][0]:.3g}", *ratios, row["SBS"][2]])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _goals(result: dict[str, Any]) -> str:
    missed = [one for one in result["goals"] if not one["met"]]
    if not missed:
        return f"All {len(result['goals'])} goals are met."
    words = "; ".join(
        f"{one['what'].removesuffix(', to fused Adam')} {one['value']:.2f} (goal {one['limit']:g})"
        for one in missed
    )
    return f"Of {len(result['goals'])} goals {len(missed)} are missed: {words}."


def filled(page: str) -> str:
    """Return the page with its tables made anew."""
    return MARKED.sub(lambda found: f"{found[1]}\n{tables()}\n{found[2]}", page)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
