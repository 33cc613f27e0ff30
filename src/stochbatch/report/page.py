"""The report of a study: one page that needs nothing but itself, tables and figures."""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from urllib.parse import quote

from stochbatch.optional import optional
from stochbatch.report import layout as words
from stochbatch.report import verdicts
from stochbatch.report.figures import LeftOut, gallery
from stochbatch.report.latex import latex
from stochbatch.report.layout import Layout
from stochbatch.report.plotting import Drawing
from stochbatch.report.tables import (
    BEST_EPOCHS,
    best_epochs,
    cells_csv,
    claims_csv,
    markdown,
    maxima,
    published_mean,
)
from stochbatch.studies.cell import Cell
from stochbatch.studies.results import Outcome, StudyResults
from stochbatch.studies.statistics import CellStatistics

PAGE = "index.html"
FIGURES = "figures"
OURS = re.compile(
    rf"{PAGE}|claims\.csv|table\.(csv|md|tex)|{FIGURES}(/[\w.-]+\.(pdf|png))?"
    r"|report-manifest\.json|\.DS_Store"
)
"""What a report's folder may hold."""
TEMPLATE = "page.html.jinja"
FACTS = {
    "stochbatch": "stochbatch",
    "revision": "source revision",
    "torch": "PyTorch",
    "python": "Python",
    "platform": "platform",
    "processor": "processor",
    "cores": "cores",
    "threads": "threads",
    "ranks": "processes a trial",
    "device": "device",
}
"""Of a result's environment, with the words for them."""


class ReportError(ValueError):
    """A report that cannot be written where it was asked."""


def write_report(results: StudyResults, folder: str | os.PathLike[str]) -> Path:
    """Write the report of a study, as far as it has been run.

    The folder then has ``index.html``, which holds all its pictures and opens by a double
    click without a network, ``table.md``, ``table.tex``, ``table.csv``, ``claims.csv`` if the
    study claims something, and ``figures/`` with every figure as PNG and PDF. The report is
    written beside the folder and takes its place when it is complete. The same results
    give the same bytes, but for the page's section with the id ``times``: it tells times and
    machines, which may differ from run to run.

    Args:
        results: from `stochbatch.studies.collect`.
        folder: where to; made if it does not exist. An earlier report there is replaced.

    Returns:
        The page's path.

    Raises:
        ReportError: the folder cannot be written to, or holds files that are not a report's.
    """
    folder = Path(folder)
    try:
        _check(folder)
        _replace(folder, _files(results, folder))
    except OSError as error:
        raise ReportError(f"cannot write {folder}: {error.strerror or error}") from error
    return folder / PAGE


def _files(results: StudyResults, folder: Path) -> dict[str, bytes]:
    """Return the content of every file of a report that is to lie in ``folder``."""
    layout = Layout.of(results)
    found = gallery(layout)
    figures = [sketch.drawn() for sketch in found.sketches]
    files = {
        PAGE: page(layout, figures, found.left_out, folder).encode(),
        "table.md": markdown(layout).encode(),
        "table.csv": cells_csv(layout).encode(),
        "table.tex": latex(layout).encode(),
    }
    if layout.claims:
        files["claims.csv"] = claims_csv(layout).encode()
    for figure in figures:
        files[f"{FIGURES}/{figure.name}.png"] = figure.png
        files[f"{FIGURES}/{figure.name}.pdf"] = figure.pdf
    return files


def _beside(folder: Path) -> tuple[Path, Path, Path]:
    """Return the folder itself, where its next report is written, and where its last one goes."""
    folder = folder.resolve()  # a link to a folder stays a link
    return folder, folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}.old")


def _check(folder: Path) -> None:
    """Refuse to replace a folder that holds more than a report."""
    folder, _, old = _beside(folder)
    if old.exists() and not folder.exists():
        old.rename(folder)  # a report was killed between its two renames
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
    if foreign := [name for name in names if not OURS.fullmatch(name)]:
        raise ReportError(
            f"{folder} holds files that are not a report's ({foreign[0]}): move them away, "
            "or write to another folder with --to"
        )


def _replace(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a report beside the folder, then put it in its place."""
    folder, new, old = _beside(folder)
    for left in (new, old):
        shutil.rmtree(left, ignore_errors=True)
    try:
        for name, content in files.items():
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            (new / name).write_bytes(content)
        folder.rename(old)
        new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


def page(layout: Layout, figures: list[Drawing], left_out: list[LeftOut], folder: Path) -> str:
    """Return the page as it is to lie in ``folder``, from which its links go out."""
    jinja2 = optional("jinja2")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    text = (resources.files("stochbatch.report") / TEMPLATE).read_text(encoding="utf-8")
    study = layout.results.study
    rendered: str = environment.from_string(text).render(
        study=study,
        scale=layout.results.scale,
        layout=layout,
        words=words,
        rows=[
            (row, [_place(layout, row, column) for column in layout.columns]) for row in layout.rows
        ],
        maxima=maxima(layout),
        claim_head=verdicts.head(layout),
        claim_rows=[
            (_key(*verdicts.words(found)), verdicts.row(layout, found)) for found in layout.claims
        ],
        claim_numbers=len(verdicts.NUMBERS),
        claim_notes=verdicts.notes(layout),
        figures=figures,
        left_out=left_out,
        figures_folder=FIGURES,
        runs=[
            (
                cell.cell,
                [Link.to(one, folder) for one in cell.outcomes],
                _key(*_words_of(layout, cell.cell), *sorted({one.status for one in cell.outcomes})),
            )
            for cell in layout.results.cells
        ],
        best_note=BEST_EPOCHS,
        failed=[Link.to(one, folder) for one in layout.trials if one.status == "failed"],
        facts=_facts(layout.trials),
        seconds=_duration(layout.trials),
    )
    return rendered


@dataclass(frozen=True)
class Place:
    """What a table has in one place."""

    key: str
    """Words that a search looks in."""
    ours: str
    std: str | None
    published: str
    verdict: str
    best: str
    published_best: str
    moves: str | None
    """Mean update probability, where weights move at random."""


def _place(layout: Layout, row: tuple[str, ...], column: str) -> Place | None:
    found: CellStatistics | None = layout.cell(row, column)
    if found is None:
        return None
    published = found.cell.published
    moves = found.update_probability
    return Place(
        key=_key(*_words_of(layout, found.cell)),
        ours=words.ours(found),
        std=None if found.std is None else words.number(found.std),
        published=published_mean(found),
        verdict=words.verdict(found),
        best=best_epochs(found),
        published_best=words.number(published.max if published else None),
        moves=None if moves is None else words.share(moves),
    )


def _words_of(layout: Layout, cell: Cell) -> list[str]:
    """Return what a cell is found by: its labels, and what was found of it."""
    verdicts: list[str] = [claim.verdict for claim in layout.claims_on(cell)]
    if layout.results.study.published:
        verdicts.insert(0, words.verdict(layout.by_key[cell.key]))
    return [str(cell), *verdicts]


def _key(*texts: str) -> str:
    """Return words that a search looks in, with spaces between them."""
    return " ".join(" ".join(texts).lower().replace(",", " ").split())


@dataclass(frozen=True)
class Link:
    """A run, and how to come to its folder from the page."""

    seed: int
    status: str
    error: str | None
    name: str
    address: str | None
    """None if there is no folder yet."""

    @classmethod
    def to(cls, outcome: Outcome, folder: Path) -> Link:
        """Return the link from a page in ``folder``."""
        address = None
        if outcome.status != "missing":
            way = Path(os.path.relpath(outcome.folder, folder)).as_posix()
            # A name with a colon would be taken for a scheme.
            address = quote(way if way.startswith(".") else f"./{way}") + "/"
        return cls(outcome.seed, outcome.status, outcome.error, outcome.trial.folder, address)


def _facts(outcomes: Iterable[Outcome]) -> list[tuple[str, str]]:
    """Return versions and hardware; several where the trials were not run on the same."""
    environments = [
        facts
        for outcome in outcomes
        if outcome.result
        for facts in (*outcome.result.earlier_environments, outcome.result.environment)
    ]
    found = []
    for name, title in FACTS.items():
        values = sorted(
            {str(facts[name]) for facts in environments if facts.get(name) not in (None, "")}
        )
        if values:
            found.append((title, ", ".join(values)))
    return found


def _duration(outcomes: Iterable[Outcome]) -> str:
    """Return the trials' time in all: hours, minutes and seconds."""
    seconds = math.fsum(
        outcome.result.times.get("seconds", 0.0) for outcome in outcomes if outcome.result
    )
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min {rest:02} s"
