"""Invariant: in a real browser the page is whole at every width, and its console is silent."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stochbatch.report import write_article, write_report
from stochbatch.studies import SCALES, STUDIES
from tests.report.chromium import BROWSER, Chromium
from tests.report.finished_study import begun_study
from tests.report.test_figures import epochs, made_up

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium on the path")

WIDTHS = (320, 390, 480, 640, 720, 721, 768, 900, 1280, 1920)
AXE = os.environ.get("AXE_CORE", "")
"""Where axe.min.js of the npm package axe-core lies; the workflow installs it."""
CHECKS = """
(() => {
  const found = [], all = [...document.querySelectorAll("body *")];
  const seen = (el) => {
    const style = getComputedStyle(el), box = el.getBoundingClientRect();
    return style.visibility !== "hidden" && style.opacity !== "0" && box.width && box.height
      && !el.closest(".sr, .skip, #tip, details:not([open]) > div");
  };
  const outer = (el) => {
    let svg = el.closest("svg");
    while (svg.parentElement.closest("svg")) svg = svg.parentElement.closest("svg");
    return svg;
  };
  for (const el of all.filter(seen)) {
    const box = el.getBoundingClientRect(), says = el.textContent.trim().slice(0, 30);
    if (box.left < -0.5 || box.right > innerWidth + 0.5)
      found.push(`outside: ${el.tagName} ${says}`);
    const own = [...el.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (own && parseFloat(getComputedStyle(el).fontSize) < 11) found.push(`small: ${says}`);
  }
  const texts = all.filter((el) => el.matches("svg text") && seen(el));
  texts.forEach((one, place) => {
    for (const other of texts.slice(place + 1)) {
      if (outer(one) !== outer(other)) continue;
      const a = one.getBoundingClientRect(), b = other.getBoundingClientRect();
      const beside = a.left >= b.right - 1 || b.left >= a.right - 1;
      if (!beside && a.top < b.bottom - 2.5 && b.top < a.bottom - 2.5)
        found.push(`overlap: ${one.textContent} and ${other.textContent}`);
    }
  });
  return found;
})()
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    found = Chromium(tmp_path_factory.mktemp("browser"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A study of which a half has been run."""
    folder = tmp_path_factory.mktemp("begun")
    return write_report(begun_study(), folder, figures=False).as_uri()


@pytest.fixture(scope="module")
def article(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The article's tables, of which some cells have been run."""
    runs = Path(__file__).parents[2] / "docs" / "evidence"
    return write_article(runs, SCALES["small"], tmp_path_factory.mktemp("article")).as_uri()


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> str:
    """24 lines with long labels, and one trial per cell."""
    layers = [{"name": "a", "kind": "conv", "size": 3, "probability": 0.5, "batches": 2.0}]
    found = made_up(STUDIES["readings"], SCALES["demo"], epochs(0.1, 0.1, layers=layers))
    folder = tmp_path_factory.mktemp("many")
    return write_report(found, folder, figures=False).as_uri()


@pytest.fixture(scope="module")
def methods(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Four panels of seven methods, of which one with a long name ends below what is drawn."""
    study, scale = STUDIES["comparison"], SCALES["demo"]
    high, low = (made_up(study, scale, epochs(*[0.1] * count)) for count in (9, 2))
    cells = [
        below if above.cell.coordinates["method"].endswith("printed") else above
        for above, below in zip(high.cells, low.cells, strict=True)
    ]
    found = replace(high, cells=tuple(cells))
    folder = tmp_path_factory.mktemp("methods")
    return write_report(found, folder, figures=False).as_uri()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["begun", "many", "article"])
def test_nothing_overlaps_or_leaves_the_window(
    name: str, scheme: str, browser: Chromium, request: pytest.FixtureRequest
) -> None:
    browser.said.clear()
    for width in WIDTHS:
        browser.open(request.getfixturevalue(name), width, scheme)
        assert (width, browser.run(CHECKS)) == (width, [])
    assert browser.said == []


@pytest.mark.parametrize("name", ["begun", "many", "methods", "article"])
def test_a_wide_and_a_narrow_font_fit_too(
    name: str, browser: Chromium, request: pytest.FixtureRequest
) -> None:
    for width in (390, 721, 768, 1280):
        browser.open(request.getfixturevalue(name), width)
        for font in ("DejaVu Sans", "DejaVu Sans Condensed"):
            browser.run(f"document.documentElement.style.fontFamily = '{font}'")
            browser.run(f"document.body.style.fontFamily = '{font}'")
            assert (width, font, browser.run(CHECKS)) == (width, font, [])


@pytest.mark.parametrize("name", ["methods", "article"])
def test_what_is_folded_makes_no_page_wider(
    name: str, browser: Chromium, request: pytest.FixtureRequest
) -> None:
    for width in (390, 721, 768, 1280):
        browser.open(request.getfixturevalue(name), width)
        browser.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        assert browser.run("document.documentElement.scrollWidth") == width


def violations(browser: Chromium) -> list[str]:
    """Return what axe-core finds on the page that is open, a line per rule."""
    browser.run(Path(AXE).read_text(encoding="utf-8") + "; 0")
    script = "axe.run().then((found) => JSON.stringify(found.violations))"
    options = {"awaitPromise": True, "returnByValue": True}
    found = browser.call("Runtime.evaluate", expression=script, **options)["result"]["value"]
    return [f"{one['id']}: {one['nodes'][0]['html']}" for one in json.loads(found)]


@pytest.mark.skipif(not AXE, reason="AXE_CORE does not name axe.min.js")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["begun", "many", "article"])
def test_axe_finds_no_violation(
    name: str, scheme: str, browser: Chromium, request: pytest.FixtureRequest
) -> None:
    for width in (390, 1280):
        browser.open(request.getfixturevalue(name), width, scheme)
        assert (width, violations(browser)) == (width, [])


@pytest.mark.skipif(not AXE, reason="AXE_CORE does not name axe.min.js")
def test_axe_would_find_one(browser: Chromium, begun: str) -> None:
    browser.open(begun)
    browser.run("document.documentElement.removeAttribute('lang')")
    assert [line.split(":")[0] for line in violations(browser)] == ["html-has-lang"]


def test_the_checks_see_what_is_wrong(browser: Chromium, begun: str) -> None:
    browser.open(begun, 390)
    browser.run("document.querySelector('h1').style.width = '600px'")
    assert "outside: H1" in browser.run(CHECKS)[0]


def test_a_click_on_a_header_sorts_and_a_second_one_turns_it_round(
    browser: Chromium, begun: str
) -> None:
    browser.open(begun)
    column = (
        "[...document.querySelectorAll('#table-mean tbody tr')].map((r) => r.cells[2].innerText)"
    )
    button = "document.querySelectorAll('#table-mean .sort')[2]"
    browser.run(f"{button}.click()")
    up = browser.run(column)
    browser.run(f"{button}.click()")
    down = browser.run(column)
    assert up[:2] == sorted(up[:2], key=lambda text: float(text.split()[0]))
    assert (down[:2], down[2:]) == (up[1::-1], up[2:])  # without a value: always last
    sorted_by = "document.querySelector('#table-mean [aria-sort]').getAttribute('aria-sort')"
    assert browser.run(sorted_by) == "descending"


def test_arrow_keys_walk_the_rows_and_tell_their_seeds(browser: Chromium, begun: str) -> None:
    browser.open(begun)
    browser.run("document.querySelector('.forest .hot').focus()")
    browser.press("ArrowDown")
    assert browser.run("document.getElementById('tip').hidden") is False
    assert "batch size 16\nBy seed: " in browser.run("document.getElementById('tip').textContent")
    browser.press("Escape")
    assert browser.run("document.getElementById('tip').hidden") is True
    stops = "document.querySelectorAll('.forest [tabindex=\"0\"]').length"
    assert browser.run(stops) == 1


def test_without_script_everything_is_there(browser: Chromium, begun: str) -> None:
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(begun, 390)
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
    assert browser.run("document.querySelectorAll('#table-mean tbody tr').length") == 4
    assert browser.run("document.querySelectorAll('.forest tr.row').length") == 3
    assert browser.run("document.querySelectorAll('.sort, .pick').length") == 0


def test_an_error_or_a_request_would_be_heard(
    browser: Chromium, begun: str, tmp_path: Path
) -> None:
    text = Path(begun.removeprefix("file://")).read_text(encoding="utf-8")
    copy = tmp_path / "copy.html"
    # A script that the page's policy does not know, and a picture that it does not allow.
    for more in ("<script>1</script>", '<img src="http://localhost/picture.png" alt="">'):
        copy.write_text(text.replace("</body>", f"{more}</body>"), encoding="utf-8")
        browser.said.clear()
        browser.open(copy.as_uri())
        assert browser.said != []
