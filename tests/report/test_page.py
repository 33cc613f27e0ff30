"""Invariant: a report says what the results say, needs nothing but itself, and does not vary."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

from stochbatch.report import ReportError, write_report
from stochbatch.report.formatting import between, mean, minus, number, p_value, signed
from stochbatch.report.layout import Layout
from stochbatch.report.palette import COLOURS
from stochbatch.report.writers import escaped, latex
from stochbatch.studies import SCALES, STUDIES, Study, collect
from stochbatch.studies.statistics import Interval, statistics
from tests.report.finished_study import (
    ONLY,
    SCALE,
    STUDY,
    begun_study,
    comparable_study,
    finished_study,
)
from tests.report.test_figures import epochs, made_up

VOID = {"meta", "col", "br"}
FIGURES = ("figures/curves-1-16",)


class Page(HTMLParser):
    """Parses a page and refuses tags that do not close, ids given twice, and unknown links."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []
        self.ids = [attributes["id"] for _, attributes in self.elements if "id" in attributes]
        assert len(set(self.ids)) == len(self.ids)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(finished_study(), tmp_path_factory.mktemp("report") / "new" / "folder")


@pytest.fixture(scope="module")
def page(written: Path) -> Page:
    return Page(written.read_text(encoding="utf-8"))


def test_all_files_are_there_and_pictures_are_pictures(written: Path) -> None:
    folder = written.parent
    found = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*"))
    pictures = [f"{name}.{form}" for name in FIGURES for form in ("pdf", "png")]
    tables = ["claims.csv", "table.csv", "table.md", "table.tex"]
    assert found == sorted(["index.html", *tables, *pictures])
    for name in FIGURES:
        with Image.open(folder / f"{name}.png") as picture:
            assert picture.width > 600
            assert len(picture.convert("RGB").getcolors(1 << 20)) > 10
        assert (folder / f"{name}.pdf").read_bytes().startswith(b"%PDF")


def test_the_page_has_the_numbers_of_the_statistics(page: Page) -> None:
    text = "".join(page.text)
    found = statistics(finished_study())
    for cell in found.cells:
        assert f"{cell.mean:.2f} ± {cell.interval.half_width:.2f}" in text
        for value in (cell.best, cell.mean_best, cell.curve_best, cell.std):
            assert f"{value:.2f}" in text
    claim = found.claims[0]
    assert minus(signed(claim.difference)) in text
    assert minus(between(claim.interval)) in text
    assert claim.verdict in ("better", "worse", "no practical difference", "undecided")
    assert claim.verdict in text
    assert "not comparable" in text


def test_the_page_says_what_was_reduced_and_run(written: Path, page: Page) -> None:
    text = " ".join("".join(page.text).split())
    assert SCALE.summary in text
    assert (
        "Trained here: vgg_tiny of width 0.25 on 1/10 of digits for 2 epochs, 3 trials per cell."
        in text
    )
    assert "Accuracies at this scale are not comparable with the published ones" in text
    assert "of 6 trials done" in text
    assert "PyTorch" in text
    assert "<title>Two &lt;methods&gt; &amp; one batch size (tiny)</title>" in written.read_text()


def test_nothing_is_fetched(written: Path, page: Page) -> None:
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", written.read_text())
    assert not re.search(r"url\(|@import", written.read_text())
    assert page.all("link") == page.all("img") == []
    assert [script for script in page.all("script") if "src" in script] == []


def test_a_browser_may_run_the_page_s_own_script_and_style_and_nothing_else(
    written: Path, page: Page
) -> None:
    policy = next(meta["content"] for meta in page.all("meta") if "http-equiv" in meta)
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", written.read_text("utf-8"), flags=re.S)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    for _, attributes in page.elements:
        assert not [name for name in attributes if name == "style" or name.startswith("on")]


def test_links_lead_to_files_and_run_folders(written: Path, page: Page) -> None:
    ways = [link["href"] for link in page.all("a")]
    for way in ways:
        if way.startswith("#"):
            assert way[1:] in page.ids
        else:
            assert (written.parent / way).exists(), way
    runs = [way for way in ways if way.endswith("/")]
    assert len(runs) == 6
    assert all((written.parent / way / "result.json").exists() for way in runs)
    assert all(way.startswith("..") and not os.path.isabs(way) for way in runs)


def test_the_page_can_be_read_aloud(page: Page) -> None:
    pictures = [part for part in page.all("svg") if part.get("role") in ("img", "group")]
    assert len(pictures) >= 4
    assert all(len(picture["aria-label"]) > 15 for picture in pictures)
    named = [
        part for part in page.all("table") if "aria-label" in part or "strips" in part["class"]
    ]
    assert len(page.all("caption")) == len(page.all("table")) - len(named) >= 4
    assert all("scope" in head for head in page.all("th") if head)
    assert "lang" in page.all("html")[0]


def test_the_same_results_give_the_same_bytes(written: Path) -> None:
    folder = written.parent
    first = {path: path.read_bytes() for path in folder.rglob("*.*")}
    write_report(collect(STUDY, SCALE, finished_study().root, only=ONLY), folder)
    assert {path: path.read_bytes() for path in folder.rglob("*.*")} == first


def test_other_times_change_nothing_but_their_section(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    root = shutil.copytree(finished_study().root, tmp_path / "runs")
    pages = []
    for _ in range(2):
        found = collect(STUDY, SCALE, root, only=ONLY)
        text = write_report(found, tmp_path / "a", figures=False).read_text()
        pages.append(re.split(r"<section id=\"times\">.*?</section>", text, flags=re.S))
        pages[-1].append(text)
        for path in root.glob("*/result.json"):
            result = json.loads(path.read_text())
            result["times"] = {"seconds": 3600.0}
            result["environment"]["processor"] = "another"
            path.write_text(json.dumps(result))
    assert pages[0][:2] == pages[1][:2]
    assert pages[0][2] != pages[1][2]
    assert "6:00:00" in pages[1][2]


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_csv_has_every_number_in_full(written: Path) -> None:
    rows = read_csv(written.parent / "table.csv")
    found = statistics(finished_study())
    assert [row["method"] for row in rows] == ["SGD", "SBS"]
    for row, cell in zip(rows, found.cells, strict=True):
        assert float(row["mean"]) == pytest.approx(cell.mean, rel=1e-9)
        assert float(row["high"]) == pytest.approx(cell.interval.high, rel=1e-9)
        assert (row["n"], row["finished"], row["missing"]) == ("3", "3", "0")
    assert rows[0]["update_probability"] == ""
    assert float(rows[1]["update_probability"]) == pytest.approx(
        found.cells[1].update_probability, rel=1e-9
    )


def test_the_markdown_and_the_latex_have_the_last_axis_as_columns(written: Path) -> None:
    lines = (written.parent / "table.md").read_text().splitlines()
    head = lines.index("| batch size | SGD | SBS |")
    sgd, sbs = statistics(finished_study()).cells
    assert lines[head + 2] == f"| 16 | {mean(sgd)} (3) | {mean(sbs)} (3) |"
    text = (written.parent / "table.tex").read_text(encoding="utf-8")
    assert text == latex(Layout.of(finished_study()))
    assert escaped(f"16 | {mean(sgd)} (3) | {mean(sbs)} (3)").replace("|", "&") in text


@pytest.mark.parametrize("place", [0, 1])
def test_every_colour_is_seen_on_its_ground(place: int) -> None:
    def light(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [
            part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        ]
        return sum(f * part for f, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    ground = light(("#ffffff", "#14171a")[place])
    for both in COLOURS.values():
        pair = sorted([ground, light(both[place])])
        assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 4.5, both


@pytest.mark.parametrize(
    ("name", "scale", "says"),
    [
        ("readings", "demo", "vgg_tiny of width 0.5 on 1/32 of digits for 12 epochs, 5 trials"),
        ("partial-data", "demo", "vgg_tiny on 1/8, 1/16, 1/32 of digits for 12 epochs, 3 trials"),
        ("comparison", "paper", "vgg11, resnet18, resnet50 on all of cifar10, svhn, stl10 for 100"),
    ],
)
def test_what_was_trained_is_told_by_the_trials(name: str, scale: str, says: str) -> None:
    few = 1 if scale == "paper" else None  # trials, of which it has 2,160
    layout = Layout.of(collect(STUDIES[name], SCALES[scale], "nowhere", repetitions=few))
    assert layout.trained.startswith(f"Trained here: {says}")
    begins = {"readings": "At full scale: ", "partial-data": "In the article: ", "comparison": ""}
    assert layout.caption == begins[name] + STUDIES[name].caption


def test_cells_that_were_not_run_are_missing_and_not_zero(tmp_path: Path) -> None:
    text = write_report(begun_study(), tmp_path, figures=False).read_text()
    assert "<dt>of 12 trials done</dt><dd>6</dd>" in text
    assert text.count("0 of 3 pairs") >= 1
    assert "<h1>No verdict yet on SBS against SGD: 0 of 3 pairs of trials are done</h1>" in text
    rows = read_csv(tmp_path / "table.csv")
    assert [(row["n"], row["mean"]) for row in rows[2:]] == [("0", ""), ("0", "")]


def test_a_comparable_cell_has_its_verdict(tmp_path: Path) -> None:
    text = write_report(comparable_study(), tmp_path, figures=False).read_text()
    assert text.count(">lower</td>") == 2
    assert "not comparable" not in text
    assert (tmp_path / "table.tex").read_text().count("(3); 99.99; lower") == 2
    assert text.count(">99.99</td>") == 4
    assert text.count("Published mean: 99.99") == 2
    assert "Published: 0.00" in text


def test_without_a_published_number_nothing_may_be_compared() -> None:
    layout = Layout.of(collect(STUDY, SCALES["paper"], "nowhere", repetitions=1))
    assert layout.comparable.endswith("so there is nothing to compare with.")


def test_errors_of_failed_trials_are_shown(tmp_path: Path) -> None:
    trial = STUDY.cells(SCALE, ONLY)[0].trial(0)
    folder = tmp_path / "runs" / trial.folder
    folder.mkdir(parents=True)
    (folder / "error.json").write_text(json.dumps({"error": "RunError: <no> data"}))
    text = write_report(
        collect(STUDY, SCALE, tmp_path / "runs", only=ONLY), tmp_path / "report", figures=False
    ).read_text()
    assert "RunError: &lt;no&gt; data" in text
    assert "<dt>failed</dt><dd>1</dd>" in text
    assert "No trial is done yet." in text


@pytest.mark.parametrize("name", list(STUDIES))
def test_every_study_has_a_report_before_it_is_run(name: str, tmp_path: Path) -> None:
    results = collect(STUDIES[name], SCALES["demo"], tmp_path / "runs")
    text = write_report(results, tmp_path / "report").read_text()
    Page(text)
    assert STUDIES[name].title in text


def test_the_page_says_which_figures_are_left_out_and_how_to_get_them(tmp_path: Path) -> None:
    found = made_up(STUDIES["partial-data"], SCALES["demo"], epochs(0.1))
    text = write_report(found, tmp_path, figures=False).read_text()
    Page(text)
    assert "curves of other batch sizes than 16" in text
    assert "<code>--only &#39;batch size=32&#39;</code>" in text


def test_a_report_without_figures_has_everything_else(written: Path, tmp_path: Path) -> None:
    page = write_report(finished_study(), tmp_path, figures=False)
    names = {path.name for path in written.parent.iterdir()} - {"figures"}
    assert {path.name for path in tmp_path.iterdir()} == names
    for name in names - {"index.html"}:
        assert (tmp_path / name).read_bytes() == (written.parent / name).read_bytes()
    assert "figures/" not in page.read_text()
    assert "curves-1-16 as PNG" in written.read_text()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ReportError, match="cannot write .*file/report: Not a directory"):
        write_report(finished_study(), tmp_path / "file" / "report")
    with pytest.raises(ReportError, match="cannot write .*file: File exists"):
        write_report(finished_study(), tmp_path / "file")


def test_numbers_are_written_for_readers() -> None:
    assert (number(-0.001), number(None), signed(0.001)) == ("0.00", "–", "0.00")  # noqa: RUF001
    assert (signed(1.234), signed(-1.0)) == ("+1.23", "-1.00")
    assert between(Interval(-1, 2)) == "-1.00 to +2.00"
    assert (p_value(0.0001), p_value(0.0512)) == ("< 0.001", "0.051")


def test_labels_of_any_kind_leave_tables_whole(tmp_path: Path) -> None:
    study = Study.from_text(
        """
        title = "Odd"
        [[axes]]
        name = "odd"
        points = [
            { label = "a | b" },
            { label = "two\\nlines", share = 0.5 },
            { label = "-4", share = 0.25 },
        ]
        [[axes]]
        name = "method"
        field = "method"
        values = ["sgd", "sbs"]
        [[claims]]
        axis = "method"
        better = "sbs"
        than = "sgd"
        """,
        "odd",
    )
    write_report(made_up(study, SCALES["paper"], epochs(0.1)), tmp_path, figures=False)
    rows = read_csv(tmp_path / "table.csv")
    assert [row["odd"] for row in rows[::2]] == ["a | b", "two\nlines", "-4"]
    assert {row["mean"] for row in rows} == {"20"}
    assert {row["method"] for row in rows} == {"sgd", "sbs"}
    claims = read_csv(tmp_path / "claims.csv")
    assert [row["odd"] for row in claims] == ["a | b", "two\nlines", "-4", ""]
    assert {(row["better"], row["than"]) for row in claims} == {("sbs", "sgd")}
    lines = (tmp_path / "table.md").read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if line.startswith("| two lines |")]) == 2
    assert len([line for line in lines if line.startswith("| a \\| b |")]) == 2
