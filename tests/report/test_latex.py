"""Invariant: LaTeX accepts the tables of every study, and they stay as they are."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from stochbatch.report import write_report
from stochbatch.report.layout import Layout
from stochbatch.report.writers import latex
from stochbatch.studies import SCALES, STUDIES, Published, Study, collect
from tests.report.test_figures import epochs, made_up
from tests.studies.test_statistics import FULL, results

PDFLATEX = shutil.which("pdflatex")
GOLDEN = Path(__file__).with_name("table.tex")
LAYERS = [{"name": "w", "kind": "conv", "size": 3, "batches": 2.5, "probability": 0.5}]
SIGNS = Study.from_text(
    r"""
    title = 'a & b_c {50 %} $x$ #1 \\ ~ ^ [<>]'
    [[axes]]
    name = "share_%"
    points = [{ label = "[a] & b" }, { label = "*_^", share = 0.5 }]
    [[axes]]
    name = "method"
    field = "method"
    values = ["sgd", "sbs"]
    [[claims]]
    axis = "method"
    better = "sbs"
    than = "sgd"
    """,
    "signs",
)


def golden() -> str:
    """Return tables with every sign that is escaped and every mark of a cell."""
    compared = results(
        *([90.0, 91.0, 92.5], [80.0, 81.0, 82.0], [70.0, 70.5, 71.0]),
        *([60.0, 61.0, None],),
        scale=FULL,
        published=Published(81.0, 82.0),
        diverged=True,
    )
    odd = made_up(SIGNS, SCALES["paper"], epochs(0.1, layers=LAYERS))
    return latex(Layout.of(compared)) + latex(Layout.of(odd))


def test_the_tables_are_the_golden_ones() -> None:
    assert golden() == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.skipif(PDFLATEX is None, reason="needs pdflatex")
def test_latex_accepts_the_tables_of_every_study(tmp_path: Path) -> None:
    """On a page of ordinary margins; nothing may stick out of it."""
    texts = [GOLDEN.read_text(encoding="utf-8")]
    for study in STUDIES.values():
        texts.append(latex(Layout.of(collect(study, SCALES["demo"], tmp_path))))
        run = made_up(study, SCALES["demo"], epochs(0.1, layers=LAYERS))
        texts.append(latex(Layout.of(run)))
    packages = texts[0].splitlines()[0].removeprefix("% needs ")
    tables = "\\clearpage\n".join(texts)
    (tmp_path / "page.tex").write_text(
        rf"\documentclass{{article}}{packages}\begin{{document}}\listoftables"
        "\n" + tables + r"\end{document}",
        encoding="utf-8",
    )
    ended = subprocess.run(
        [PDFLATEX, "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "page.tex"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    log = (tmp_path / "page.log").read_text(encoding="utf-8", errors="replace")
    assert ended.returncode == 0, log
    assert not re.findall(
        r"^Overfull .*|^.*Float too large.*|^Missing character.*",
        log,
        re.MULTILINE,
    )


def test_where_nothing_is_published_nothing_is_said_of_it(tmp_path: Path) -> None:
    found = made_up(STUDIES["readings"], SCALES["paper"], epochs(0.1))
    page = write_report(found, tmp_path / "report", figures=False).read_text(encoding="utf-8")
    table, tex = (
        (tmp_path / f"report/table.{form}").read_text(encoding="utf-8") for form in ("md", "tex")
    )
    assert "| fixed 1/2 | 20.00 (1) |" in table
    for text in (page, table, tex):
        assert "nothing published to compare with" in text
        assert "not comparable" not in text
