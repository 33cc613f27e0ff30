"""Invariant: every claim is shown with both sides named."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from stochbatch.report import write_report
from stochbatch.report.layout import Layout
from stochbatch.report.tables import FEW_IMAGES, claims
from stochbatch.studies import StudyResults
from stochbatch.studies.statistics import statistics
from tests.report.finished_study import finished_study
from tests.report.test_page import Page
from tests.studies.test_claims import HIGH, LOW, MIDDLE, STUDY
from tests.studies.test_statistics import SBS_RIGHT, SGD_RIGHT, counted, results


def several() -> StudyResults:
    """Return a study with three claims, of which one is to be the best."""
    return results(LOW, MIDDLE, HIGH, [], MIDDLE, LOW, study=STUDY)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(several(), tmp_path_factory.mktemp("report"), figures=False).parent


def test_the_csv_has_one_line_a_claim_and_place_with_every_number(folder: Path) -> None:
    rows = list(csv.DictReader((folder / "claims.csv").read_text().splitlines()))
    found = statistics(several()).claims
    assert len(rows) == len(found) == 10
    assert [row["claim"] for row in rows[:3]] == ["top", "top", "equal"]
    first = rows[0]
    assert (first["axis"], first["batch size"], first["run"]) == ("run", "16", "")
    assert (first["better"], first["than"]) == ("sbs 1", "sgd 2")
    assert [row["run"] for row in rows[-2:]] == ["sbs 2", ""]
    assert (rows[-1]["better"], rows[-1]["than"]) == ("128", "16")
    for row, claim in zip(rows, found, strict=True):
        assert row["verdict"] == claim.verdict
        assert row["difference"] == "" or float(row["difference"]) == pytest.approx(
            claim.difference, rel=1e-9
        )
        assert row["p"] == "" or float(row["p"]) == pytest.approx(claim.p, rel=1e-9)


def test_the_page_names_both_sides(folder: Path) -> None:
    text = "".join(Page((folder / "index.html").read_text(encoding="utf-8")).text)
    assert "sbs 1 against sgd 2" in text
    assert "sgd 2 (best of 2)" in text
    for claim in STUDY.claims:
        assert str(claim) in text


def test_markdown_and_latex_name_them_too(folder: Path) -> None:
    lines = (folder / "table.md").read_text(encoding="utf-8").splitlines()
    start = "| top | 16 | – |"  # noqa: RUF001
    line = next(line for line in lines if line.startswith(start))
    sides = "sbs 1 | sgd 2 (best of 2)"
    assert line.startswith(f"{start} {sides} | 3")
    text = (folder / "table.tex").read_text(encoding="utf-8")
    assert f"    top & 16 & -- & {sides.replace('|', '&')} & 3" in text
    names = {row[0] for row in claims(Layout.of(several())).rows}
    assert names == {claim.name for claim in STUDY.claims}


def test_a_single_claim_between_two_labels_needs_no_name() -> None:
    layout = Layout.of(finished_study())
    assert claims(layout).head[:3] == ["better", "than", "pairs"]


def test_what_was_narrowed_away_is_left_out() -> None:
    found = results(LOW, study=STUDY, only={"run": ["sbs 1", "sbs 2"]})
    assert claims(Layout.of(found)).rows[0][3:5] == ["sbs 1", "sgd 1 (left out)"]


def test_that_few_test_images_are_counted_in_is_said_where_they_are() -> None:
    assert FEW_IMAGES in claims(Layout.of(counted(SGD_RIGHT, SBS_RIGHT))).caption
    assert FEW_IMAGES not in claims(Layout.of(several())).caption
