"""Invariant: in a real browser the page is whole, its filter works and its console is silent."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from stochbatch.report import write_report
from stochbatch.studies import SCALES, STUDIES
from tests.report.finished_study import begun_study
from tests.report.test_figures import epochs, made_up

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium on the path")


def visit(address: str, folder: Path, *options: str) -> tuple[str, str]:
    """Return the page after its script has run, and what the browser said."""
    command = [
        str(BROWSER),
        "--headless",
        "--disable-gpu",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--no-first-run",
        # Any request by name fails, and is then an error on the console.
        "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--user-data-dir={folder / 'profile'}",
        "--enable-logging=stderr",
        "--virtual-time-budget=2000",
        *options,
        address,
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "HOME": str(folder)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_report(begun_study(), tmp_path_factory.mktemp("report")).as_uri()


def rows(dom: str, table: str) -> list[str]:
    """Return the opening tags of a table's rows."""
    body = re.search(rf'id="{table}".*?<tbody>(.*?)</tbody>', dom, flags=re.S)[1]
    return re.findall(r"<tr[^>]*>", body)


def test_tables_are_there_and_the_console_is_silent(address: str, tmp_path: Path) -> None:
    dom, said = visit(address, tmp_path, "--dump-dom")
    assert len(rows(dom, "table-mean")) == 2
    assert len(rows(dom, "table-runs")) == 4
    assert "hidden" not in "".join(rows(dom, "table-mean"))
    assert "CONSOLE" not in said


def test_the_filter_hides_rows_and_dims_cells(address: str, tmp_path: Path) -> None:
    dom, said = visit(f"{address}#filter=size%2032%20SBS", tmp_path, "--dump-dom")
    assert ["hidden" in row for row in rows(dom, "table-mean")] == [True, False]
    assert ["hidden" in row for row in rows(dom, "table-claims")] == [True, False, True]
    assert ["hidden" in row for row in rows(dom, "table-runs")] == [True, True, True, False]
    assert "1 of 4 cells" in dom
    assert dom.count('class="dim"') == 6
    assert "CONSOLE" not in said


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Six methods, of which three have SGD in their names; one trial each."""
    results = made_up(STUDIES["comparison"], SCALES["demo"], epochs(0.1))
    return write_report(results, tmp_path_factory.mktemp("comparison"), figures=False).as_uri()


SEARCHES = {  # cells, claims and runs that are found
    "sgd": (4, 5, 4),  # the last claim is over the whole table
    "sgd 16": (1, 1, 1),
    "16, SGD": (1, 1, 1),
    "entropy": (4, 0, 4),
    "not as planned": (4, 5, 4),  # runs are found by the verdicts of their cells
    "finished": (0, 0, 24),
    "0.1": (0, 0, 0),
    "95%": (0, 0, 0),
}
SEARCH = """
const count = (wanted) => document.querySelectorAll(wanted).length;
document.documentElement.dataset.found = JSON.stringify(%s.map((search) => {
  field.value = search;
  field.dispatchEvent(new Event("input"));
  const rows = ["claims", "runs"].map((name) => count(`#table-${name} tbody tr:not([hidden])`));
  return [shown.textContent, ...rows, count("[aria-current]")];
}));
"""


def test_a_search_is_for_words(comparison: str, tmp_path: Path) -> None:
    page = with_script(comparison, tmp_path, SEARCH % json.dumps(list(SEARCHES)))
    dom, said = visit(page, tmp_path, "--dump-dom")
    found = json.loads(html.unescape(re.search(r'data-found="([^"]*)"', dom)[1]))
    assert found == [
        [f"{cells} of 24 cells", claims, runs, 2 * cells]  # in two tables
        for cells, claims, runs in SEARCHES.values()
    ]
    assert "CONSOLE" not in said


def test_a_link_with_a_search_that_is_not_encoded_is_taken_as_it_is(
    comparison: str, tmp_path: Path
) -> None:
    dom, said = visit(f"{comparison}#filter=95%", tmp_path, "--dump-dom")
    assert "0 of 24 cells" in dom
    assert "CONSOLE" not in said


def test_the_page_is_no_wider_than_a_phone(address: str, tmp_path: Path) -> None:
    measured = (
        "const page = document.documentElement;"
        "page.dataset.widths = `${innerWidth} ${page.scrollWidth}`;"
    )
    dom, _ = visit(
        with_script(address, tmp_path, measured), tmp_path, "--dump-dom", "--window-size=400,800"
    )
    window, page = map(int, re.search(r'data-widths="(\d+) (\d+)"', dom).groups())
    assert page <= window <= 500


def test_an_error_or_a_request_would_be_heard(address: str, tmp_path: Path) -> None:
    for script in ("missing()", 'new Image().src = "http://localhost/picture.png"'):
        _, said = visit(with_script(address, tmp_path, script), tmp_path, "--dump-dom")
        assert "CONSOLE" in said


def with_script(address: str, folder: Path, script: str) -> str:
    """Return the address of a copy of the page with one more script."""
    text = Path(address.removeprefix("file://")).read_text(encoding="utf-8")
    copy = folder / "copy.html"
    copy.write_text(text.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    return copy.as_uri()
