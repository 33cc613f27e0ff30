"""Invariant: every claim is shown with both sides named, and how they were chosen is said."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from stochbatch.report import write_report
from stochbatch.report.layout import Layout
from stochbatch.report.tables import CHOICE, FEW_IMAGES, UNEQUAL, claims
from stochbatch.studies import StudyResults
from stochbatch.studies.statistics import statistics
from tests.report.finished_study import finished_study
from tests.report.test_page import Page
from tests.studies.test_claims import HIGH, LOW, MIDDLE, STUDY
from tests.studies.test_statistics import SBS_RIGHT, SGD_RIGHT, counted, results


def several() -> StudyResults:
    """Return a study with three claims, of which one chooses its sides among labels."""
    return results(LOW, MIDDLE, HIGH, [], MIDDLE, LOW, study=STUDY)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(several(), tmp_path_factory.mktemp("report"), figures=False).parent


def test_the_csv_has_one_line_a_claim_and_place_with_every_number(folder: Path) -> None:
    rows = list(csv.DictReader((folder / "claims.csv").read_text().splitlines()))
    found = statistics(several()).claims
    assert len(rows) == len(found) == 10
    assert [row["claim"] for row in rows[:3]] == ["tuned", "tuned", "equal"]
    first = rows[0]
    assert (first["axis"], first["batch size"], first["run"]) == ("run", "16", "")
    assert (first["better"], first["better_among"]) == ("sbs 1", "1")
    assert (first["than"], first["than_among"]) == ("sgd 2", "2")
    assert [row["run"] for row in rows[-2:]] == ["sbs 2", ""]
    assert (rows[-1]["better"], rows[-1]["than"]) == ("128", "16")
    for row, claim in zip(rows, found, strict=True):
        assert row["verdict"] == claim.verdict
        assert row["difference"] == "" or float(row["difference"]) == pytest.approx(
            claim.difference, rel=1e-9
        )
        assert row["p"] == "" or float(row["p"]) == pytest.approx(claim.p, rel=1e-9)


def test_the_page_names_both_sides_and_how_they_were_chosen(folder: Path) -> None:
    text = "".join(Page((folder / "index.html").read_text(encoding="utf-8")).text)
    assert "sbs 1 against sgd 2" in text
    assert "sbs 1 (best of 1, 1 with fewer trials)" in text
    assert "sgd 2 (best of 2)" in text
    assert "one of 2, none run yet" in text
    assert CHOICE in text
    for claim in STUDY.claims:
        assert str(claim) in text


def test_markdown_and_latex_name_them_too(folder: Path) -> None:
    lines = (folder / "table.md").read_text(encoding="utf-8").splitlines()
    start = "| tuned | 16 | – |"  # noqa: RUF001
    line = next(line for line in lines if line.startswith(start))
    sides = "sbs 1 (best of 1, 1 with fewer trials) | sgd 2 (best of 2)"
    assert line.startswith(f"{start} {sides} | 3")
    text = (folder / "table.tex").read_text(encoding="utf-8")
    assert f"    tuned & 16 & -- & {sides.replace('|', '&')} & 3" in text
    names = {row[0] for row in claims(Layout.of(several())).rows}
    assert names == {claim.name for claim in STUDY.claims}


def test_a_single_claim_between_two_labels_needs_neither_names_nor_a_choice() -> None:
    layout = Layout.of(finished_study())
    assert claims(layout).head[:3] == ["better", "than", "pairs"]
    assert CHOICE not in claims(layout).caption


def test_a_side_with_more_labels_is_said_to_have_an_advantage() -> None:
    assert UNEQUAL in claims(Layout.of(several())).caption  # one label of SBS has not been run
    assert UNEQUAL not in claims(Layout.of(results(LOW, MIDDLE, HIGH, LOW, study=STUDY))).caption
    unequal = STUDY.claims[0].model_copy(update={"than": ("sgd 1",)})
    study = STUDY.model_copy(update={"claims": [unequal]})
    assert UNEQUAL in claims(Layout.of(results(LOW, study=study))).caption


def test_labels_that_were_narrowed_away_are_left_out_and_not_said_to_lack_trials() -> None:
    only = {"run": ["sbs 2", "sgd 1", "sgd 2"], "batch size": ["16"]}
    layout = Layout.of(results(LOW, [], HIGH, study=STUDY, only=only))
    assert claims(layout).rows[0][2:4] == [
        "sbs 2 (best of 1, 1 left out)",
        "sgd 1 (best of 1, 1 with fewer trials)",
    ]
    found = results(LOW, study=STUDY, only={"run": ["sbs 1", "sbs 2"]})
    sides = ["sbs 1 (best of 1, 1 with fewer trials)", "sgd 1 or sgd 2 (left out)"]
    assert claims(Layout.of(found)).rows[0][3:5] == sides


def test_that_few_test_images_are_counted_in_is_said_where_they_are() -> None:
    assert FEW_IMAGES in claims(Layout.of(counted(SGD_RIGHT, SBS_RIGHT))).caption
    assert FEW_IMAGES not in claims(Layout.of(several())).caption
