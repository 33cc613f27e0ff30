"""Invariant: every study runs end to end at the scale demo, all its cells, one trial each."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from stochbatch.studies import SCALES, STUDIES
from tests.cli.command import call
from tests.report.test_page import Page

pytestmark = pytest.mark.slow


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", STUDIES)
def test_a_study_is_run_and_reported(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    study, cells = STUDIES[name], STUDIES[name].cells(SCALES["demo"])
    options = (name, "--scale", "demo", "--trials", "1")
    done = call("study", "run", *options, "--workers", "2", "--quiet")
    assert done.code == 0, done.err
    assert "0 failed" in done.out
    assert "0 trials to run" in call("study", "run", *options).out
    assert call("report", *options).code == 0
    folder = tmp_path / "reports" / f"{name}-demo-part"
    rows = list(csv.DictReader((folder / "table.csv").read_text(encoding="utf-8").splitlines()))
    assert [tuple(row[axis.name] for axis in study.axes) for row in rows] == [
        cell.key for cell in cells
    ]
    # Ten classes: what has learnt nothing hits one of ten.
    assert all(row["n"] == "1" and float(row["mean"]) > 5 for row in rows)
    assert sum(float(row["mean"]) > 30 for row in rows) >= len(rows) / 2
    moving = {cell.key for cell in cells if cell.trial(0).method.startswith("sbs")}
    assert {
        key
        for key, row in zip((cell.key for cell in cells), rows, strict=True)
        if row["update_probability"]
    } == moving
    page = Page((folder / "index.html").read_text(encoding="utf-8"))
    assert any(drawn.get("role") == "img" for drawn in page.all("svg"))
    claims = folder / "claims.csv"
    assert claims.exists() == bool(study.claims)
    if study.claims:
        found = list(csv.DictReader(claims.read_text(encoding="utf-8").splitlines()))
        assert {row["verdict"] for row in found} <= {
            "1 pair, not as planned",
            "chosen on these trials",
        }
        assert {row["pairs"] for row in found} == {"1"}
