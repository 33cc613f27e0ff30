"""Fill the tables of ``evidence.md`` from the runs in ``docs/evidence`` and the reports.

``python docs/evidence_tables.py`` writes between the lines ``<!-- table NAME -->`` and
``<!-- end -->``; nothing between them is typed by hand.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from stochbatch.report.article import CELL, TABLES, Rerun
from stochbatch.report.formatting import NONE, between, mean, minus, number, p_value, signed
from stochbatch.report.layout import Layout
from stochbatch.report.tables import Table
from stochbatch.report.writers import in_markdown
from stochbatch.studies import SCALES, STUDIES, collect
from stochbatch.studies.verdicts import Interval
from stochbatch.training.run_folder import RunFolder, read_run

DOCS = Path(__file__).parent
RUNS = DOCS / "evidence"
EPOCHS = (10, 30, 50, 70, 100)
"""Of a training that are shown."""
MARKED = re.compile(r"(<!-- table (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def runs() -> Iterator[RunFolder]:
    """Yield all runs, by their settings and seeds."""
    found = [read_run(path.parent) for path in RUNS.glob("*/trial.json")]
    yield from sorted(found, key=lambda run: (run.trial.model_dump_json(), run.trial.seed))


def printed_cells() -> str:
    """Return the trainings at full size on an eighth of CIFAR-10: accuracy by epoch."""
    cells = STUDIES["partial-data"].cells(SCALES["paper"])
    printed = {cell.trial(0).hash: cell.published.mean for cell in cells if cell.published}
    rows = []
    for run in runs():
        trial, result = run.trial, run.result
        as_printed = trial.model_copy(update={"seed": 0, "norm_init": "uniform"}).hash
        if as_printed in printed and result and result.accuracy:
            tested = {line["epoch"] + 1: line.get("test_accuracy") for line in run.metrics}
            start = "at 1" if trial.norm_init == "ones" else trial.norm_init
            rows.append(
                [
                    *(start, trial.method.upper(), str(trial.batch_size), str(trial.seed)),
                    *(number(tested[epoch], 1) for epoch in EPOCHS),
                    f"**{number(result.accuracy.mean)}**",
                    number(printed[as_printed]),
                ]
            )
    head = ["scales", "method", "batch size", "seed", *map(str, EPOCHS), "mean", "printed"]
    return table(head, sorted(rows, key=lambda row: (row[0], -int(row[2]), row[1] != "SGD")), 3)


def quarter_width() -> str:
    """Return the trainings at a quarter of the width that belong to no table: one change each."""
    in_tables = {
        trial.hash
        for name in TABLES
        for trial in STUDIES[name].trials(STUDIES[name].cells(SCALES["small"]), 3)
    }
    names = ("norm_init", "method", "batch_size", "momentum", "epochs", "weight_decay", "augment")
    found: dict[tuple[str, ...], list[str]] = {}
    for run in runs():
        trial, result = run.trial, run.result
        if trial.width == 0.25 and trial.hash not in in_tables and result and result.accuracy:
            key = tuple(str(getattr(trial, name)) for name in names)
            found.setdefault(key, []).append(number(result.accuracy.mean))
    rows = [[*key, ", ".join(scores)] for key, scores in found.items()]
    head = ["scales", "method", "batch size", "momentum", "epochs", "weight decay", "augmented"]
    order = sorted(rows, key=lambda row: (row[0], int(row[4]), row[1] != "sgd", row[2:]))
    return table([*head, "accuracy by seed"], order, len(head))


def claims_of(study: str, scale: str) -> str:
    """Return all comparisons of a study of which some pair has been run."""
    layout = Layout.of(collect(STUDIES[study], SCALES[scale], RUNS))
    rows = [
        [
            minus(f"{title.partition(': ')[2] or title}, {one.name}"),
            *map(minus, (signed(one.published), signed(one.row.difference))),
            minus(between(one.row.interval)),
            f"{one.row.pairs} of {one.row.planned}",
            p_value(one.row.corrected_p),
            one.row.verdict,
        ]
        for title, group in Rerun(0, layout).run
        for one in group
    ]
    head = ["claim", "published", "ours", "95 % interval", "pairs", "p, corrected", "verdict"]
    return table(head, rows, 1)


def accuracies(study: str) -> str:
    """Return the accuracies of the cells of a table that have been run at the scale small."""
    layout = Layout.of(collect(STUDIES[study], SCALES["small"], RUNS))
    rows = [
        [
            minus(", ".join(cell.cell.coordinates.values())),
            number(cell.cell.published.mean if cell.cell.published else None),
            mean(cell),
            str(cell.n),
            number(cell.update_probability, 3),
        ]
        for cell in layout.statistics.cells
        if cell.n
    ]
    return table(["cell", "published", "ours", "trials", "update probability"], rows, 1)


def demo() -> str:
    """Return SBS against SGD on digits over all batch sizes, from the report in the docs."""
    path = DOCS / "reports" / "comparison-demo" / "claims.csv"
    names = {
        "against SGD": "all batch sizes",
        "less sensitive to the batch size": "growth from 16 to 128",
    }
    rows = []
    for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()):
        if row["claim"] in names and not row["batch size"]:
            low, high = (float(row[f"difference_{end}"]) for end in ("low", "high"))
            rows.append(
                [
                    names[row["claim"]],
                    minus(signed(float(row["difference"]))),
                    minus(between(Interval(low, high))),
                    p_value(float(row["corrected_p"])),
                    row["verdict"],
                ]
            )
    return table(["SBS minus SGD", "points", "95 % interval", "p, corrected", "verdict"], rows, 1)


def table(head: list[str], rows: list[list[str]], labels: int) -> str:
    """Return a table in Markdown, without columns that say nothing."""
    kept = [n for n in range(len(head)) if n < labels or any(row[n] != NONE for row in rows)]
    return in_markdown(
        Table("", [head[n] for n in kept], [[row[n] for n in kept] for row in rows], labels=labels)
    )


def made(name: str) -> str:
    """Return a table by the name that stands in the page."""
    if name == "article":
        return (DOCS / "reports" / "article" / "table.md").read_text(encoding="utf-8").strip()
    alone: dict[str, Callable[[], str]] = {
        "printed-cells": printed_cells,
        "quarter-width": quarter_width,
        "demo": demo,
    }
    if name in alone:
        return alone[name]()
    study, _, what = name.partition(":")
    if what == "accuracies":
        return accuracies(study)
    return claims_of(study, "paper" if study == CELL else "small")


def filled(page: str) -> str:
    """Return the page with its tables made anew."""
    return MARKED.sub(lambda found: f"{found[1]}\n{made(found[2])}\n\n{found[3]}", page)


if __name__ == "__main__":
    page = DOCS / "evidence.md"
    page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
