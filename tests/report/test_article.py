"""Invariant: the page of the article's tables says of each what was run, and no more."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from stochbatch.report import ReportError, write_article
from stochbatch.report.article import TABLES, Rerun, headline, summary
from stochbatch.report.formatting import NONE
from stochbatch.report.layout import Layout
from stochbatch.studies import SCALES, STUDIES, Scale, collect
from tests.cli.command import call
from tests.report.test_figures import epochs, made_up

DOCS = Path(__file__).parents[2] / "docs"
NOTHING = Path("nowhere")
MINUS = "\N{MINUS SIGN}"


def rerun(name: str, scale: Scale, runs: bool) -> Rerun:
    """Return a table of which one trial per cell, or nothing, has been run."""
    whole = collect(STUDIES[name], scale, NOTHING)
    if runs:
        found = made_up(STUDIES[name], scale, epochs(0.1, 0.1))
        outcomes = zip(whole.cells, found.cells, strict=True)
        cells = (replace(a, outcomes=(*b.outcomes, *a.outcomes[1:])) for a, b in outcomes)
        whole = replace(whole, cells=tuple(cells))
    return Rerun(TABLES.index(name) + 1, Layout.of(whole))


def test_every_table_has_a_row_with_what_is_printed_before_anything_is_run() -> None:
    every = [rerun(name, SCALES["small"], runs=False) for name in TABLES]
    assert headline(every) == "None of the article's five tables has been run"
    lines = summary(every).splitlines()[2:]
    assert {re.findall(r"Table (\d)", line)[0] for line in lines} == set("12345")
    for line in lines:
        _, _, _, published, ours, interval, pairs, verdict, _ = map(str.strip, line.split("|"))
        assert re.fullmatch(rf"[+{MINUS}]\d+\.\d\d", published)
        assert (ours, interval) == (NONE, NONE)
        assert verdict == f"{pairs} pairs"


def test_what_the_article_claims_to_be_best_stands_against_its_own_next_best() -> None:
    (table,) = [rerun("local-global", SCALES["paper"], runs=False)]
    gains = {title: [one.published for one in rows] for title, rows in table.main}
    # -8 has the better means on both networks: the article's slip, not ours.
    assert gains[f"Table 3: lambda {MINUS}4 is the best of 4"] == pytest.approx([-0.08, -0.10])
    assert gains["Table 3: alpha 0.1 is the best of 4"] == pytest.approx([0.01, 0.09])


def test_a_table_that_was_begun_is_named_and_never_called_decided() -> None:
    every = [rerun(name, SCALES["small"], runs=name == "partial-data") for name in TABLES]
    text = headline(every)
    assert text.startswith("Table 4 rerun, at least in part: no verdict yet on any of the ")
    assert [table.title == "not run" for table in every] == [True, True, True, False, True]
    assert [not table.run for table in every] == [True, True, True, False, True]


def test_the_page_in_the_documentation_is_that_of_its_runs(tmp_path: Path) -> None:
    """Made by ``stochbatch report article --scale small --root docs/evidence \
    --to docs/reports/article``."""
    write_article(DOCS / "evidence", SCALES["small"], tmp_path / "article")
    for name in ("index.html", "table.md"):
        made = (tmp_path / "article" / name).read_text(encoding="utf-8")
        assert made == (DOCS / "reports" / "article" / name).read_text(encoding="utf-8"), name


def test_the_page_takes_no_folder_of_others(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ReportError, match=r"mine\.txt"):
        write_article(NOTHING, SCALES["small"], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_the_command_writes_it_and_takes_no_part(tmp_path: Path) -> None:
    folder = tmp_path / "page"
    said = call("report", "article", "--scale", "demo", "--root", NOTHING, "--to", folder)
    assert (said.code, (folder / "index.html").exists()) == (0, True)
    said = call("report", "article", "--only", "method=SGD")
    assert (said.code, "--only" in said.err) == (2, True)
