"""Invariant: LaTeX would accept the tables, and print what the results say."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stochbatch.report import write_report
from stochbatch.report.latex import GREEK, LEFT_OUT, SPECIAL, escaped, latex
from stochbatch.report.layout import Layout
from stochbatch.studies import SCALES, STUDIES, Study, collect
from stochbatch.studies.statistics import statistics
from tests.report.finished_study import comparable_study, finished_study
from tests.report.latex_reader import LatexError, read_tables, read_text
from tests.report.test_figures import epochs, made_up

PDFLATEX = shutil.which("pdflatex")
ASCII = "".join(map(chr, range(33, 127))).translate({ord("'"): None, ord("`"): None})


def typeset(text: str, folder: Path) -> None:
    """Have LaTeX set the tables on a page of ordinary margins; nothing may stick out of it."""
    assert PDFLATEX
    packages = text.splitlines()[0].removeprefix("% needs ")
    (folder / "tables.tex").write_text(text, encoding="utf-8")
    (folder / "page.tex").write_text(
        rf"\documentclass{{article}}{packages}\begin{{document}}\listoftables"
        r"\input{tables.tex}\end{document}"
    )
    ended = subprocess.run(
        [PDFLATEX, "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "page.tex"],
        cwd=folder,
        capture_output=True,
        check=False,
    )
    log = (folder / "page.log").read_text(encoding="utf-8", errors="replace")
    assert ended.returncode == 0, log
    assert not re.findall(r"^Overfull .*|^.*Float too large.*", log, re.MULTILINE)


@settings(deadline=None)
@given(st.text(ASCII + " \nαβλω±≤≥äé", max_size=40))  # noqa: RUF001
def test_a_text_is_printed_as_it_is(text: str) -> None:
    assert read_text(escaped(text)) == " ".join(text.split())


@pytest.mark.parametrize("text", ["a--b", "a---b", "it''s", "``a", ",,", "a <<b>>"])
def test_no_two_letters_become_one(text: str, tmp_path: Path) -> None:
    assert not re.search(r"--|''|``|,,|<<|>>", escaped(text))
    assert read_text(escaped(text)) == text


def test_every_special_letter_has_its_test() -> None:
    letters = "".join(SPECIAL).replace("\N{ZERO WIDTH SPACE}", "")
    assert read_text(escaped(letters)).replace("``", "“").replace("''", "”").replace(
        "--", "\N{EN DASH}"
    ) == letters.replace("\N{MINUS SIGN}", "-")
    assert len(GREEK.split()) == 25


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.parametrize("run", [False, True])
def test_every_study_has_tables_that_latex_accepts(name: str, run: bool, tmp_path: Path) -> None:
    study, scale = STUDIES[name], SCALES["demo"]
    layers = [{"kind": "conv", "size": 3, "batches": 2.5, "probability": 0.5}]
    if run:
        results = made_up(study, scale, epochs(0.1, layers=layers))
    else:
        results = collect(study, scale, tmp_path)
    text = latex(Layout.of(results))
    if PDFLATEX:
        typeset(text, tmp_path)
    tables = read_tables(text)
    cells = {axis.name: len(axis.expanded()) for axis in study.axes}
    assert len(tables[0].columns) == len(cells) - 1 + cells[study.axes[-1].name]
    assert len(tables) == 2 + run + bool(study.claims)
    assert all(len(table.rows) > 1 for table in tables)


def test_the_numbers_are_those_of_the_statistics() -> None:
    cells, spread, moving, claims = read_tables(latex(Layout.of(finished_study())))
    found = statistics(finished_study())
    assert cells.rows[0] == ["batch size", "SGD", "SBS"]
    # In mathematics a space after a command is not printed.
    sgd, sbs = (f"{one.mean:.2f} ±{one.interval.half_width:.2f}" for one in found.cells)
    assert cells.rows[1] == ["16", sgd, sbs]
    readings = (
        f"{one.std:.2f}; {one.best:.2f}; {one.mean_best:.2f}; {one.curve_best:.2f}"
        for one in found.cells
    )
    assert spread.rows[1] == ["16", *readings]
    assert moving.rows == [
        ["batch size", "SBS"],
        ["16", f"{found.cells[1].update_probability:.3f}"],
    ]
    assert claims.rows[1][:3] == ["SBS", "SGD", "3"]
    assert claims.rows[1][-1] == found.claims[0].verdict
    assert "p corrected" in claims.rows[0]
    assert not set(LEFT_OUT) & set(claims.rows[0])
    assert [table.label for table in (cells, spread, moving, claims)] == [
        "tab:small-cells",
        "tab:small-spread",
        "tab:small-moves",
        "tab:small-claims",
    ]
    assert cells.short_caption == finished_study().study.title


def test_verdicts_of_cells_are_marks() -> None:
    cells, *_ = read_tables(latex(Layout.of(comparable_study())))
    assert cells.rows[1][1].endswith("↓ (99.99)")
    assert "in brackets the published mean" in cells.caption
    assert "arrows: ours is higher" in cells.caption


def test_where_nothing_is_published_nothing_is_said_of_it(tmp_path: Path) -> None:
    results = made_up(STUDIES["readings"], SCALES["paper"], epochs(0.1))
    caption = read_tables(latex(Layout.of(results)))[0].caption
    assert "brackets" not in caption
    assert "arrows" not in caption
    page = write_report(results, tmp_path / "report").read_text(encoding="utf-8")
    table = (tmp_path / "report/table.md").read_text(encoding="utf-8")
    assert "| fixed 1/2 | 20.00 (1) |" in table
    for text in (page, table):
        assert "nothing published to compare with" in text
        assert "not comparable" not in text


def test_labels_with_signs_of_latex_are_printed_as_they_are(tmp_path: Path) -> None:
    study = Study.from_text(
        """
        title = 'a & b_c {50 %} $x$ #1 \\\\ ~ ^'
        [[axes]]
        name = "share_%"
        points = [{ label = "[a] & b" }, { label = "*_^", share = 0.5 }]
        [[axes]]
        name = "method"
        field = "method"
        values = ["sgd"]
        """,
        "signs",
    )
    text = latex(Layout.of(made_up(study, SCALES["paper"], epochs(0.1))))
    if PDFLATEX:
        typeset(text, tmp_path)
    table, _ = read_tables(text)
    assert table.caption.startswith(study.title)
    assert table.rows == [["share_%", "sgd"], ["[a] & b", "20.00"], ["*_^", "20.00"]]


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (r"\end{table}", ""),
        (r"\toprule", ""),
        ("16 &", "16 & &"),
        ("16 &", "16"),
        (r"(\%)", "(%)"),
        (r"\& one", "& one"),
        ("$<$methods", "<methods"),
        (r" \pm ", "$ \\pm "),
        ("{Two", "{{Two"),
        ("{Two", "{Two}"),
        ("    16", "    [16]"),
        ("batch size &", "batch_size &"),
        ("batch size &", "größe – &"),  # noqa: RUF001
    ],
)
def test_the_reader_refuses_what_latex_would(good: str, bad: str) -> None:
    text = latex(Layout.of(finished_study()))
    assert good in text
    with pytest.raises(LatexError):
        read_tables(text.replace(good, bad, 1))
