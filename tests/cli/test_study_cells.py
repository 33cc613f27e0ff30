"""Invariant: cells are listed and chosen by their names, by all commands of studies alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import assert_one_clear_line, call
from tests.cli.test_study import STUDY


@pytest.fixture(autouse=True)
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(STUDY)


def listed(*options: str) -> list[str]:
    """Return the lines of a list under its head."""
    outcome = call("study", "plan", *options, "--list")
    assert outcome.code == 0, outcome.err
    lines = [line.strip() for line in outcome.out.splitlines() if line.strip()]
    assert lines[0].split() == ["done", "cell"]
    return [" ".join(line.split()) for line in lines[2:]]


def test_the_cells_are_listed_by_name_with_what_is_done() -> None:
    assert listed("mine.toml", "--trials", "2") == ["0 of 2 method SGD", "0 of 2 method SBS"]


def test_patterns_choose_cells_and_may_be_given_again() -> None:
    assert listed("mine.toml", "--cells", "sbs") == ["0 of 10 method SBS"]
    assert len(listed("mine.toml", "--cells", "sbs", "--cells", "method S*")) == 2
    narrowed = ("comparison", "--only", "method=SGD,SBS", "--cells", "*batch size 16, method S*")
    assert len(listed(*narrowed)) == 2


def test_a_pattern_that_matches_nothing_is_one_line() -> None:
    for command in (["study", "plan"], ["study", "run"], ["report"]):
        outcome = call(*command, "mine.toml", "--cells", "metod SBS")
        assert_one_clear_line(outcome, 1, "no cell's name matches 'metod SBS'", "--list")


def test_what_was_chosen_is_run_and_reported_alone() -> None:
    options = ("mine.toml", "--scale", "paper", "--trials", "1", "--cells", "method SBS")
    done = call("study", "run", *options, "--workers", "1", "--quiet")
    assert done.code == 0, done.err
    assert "1 finished" in done.out
    assert listed("mine.toml", "--trials", "1") == [
        "0 of 1 method SGD",
        "1 of 1 method SBS",
    ]
    assert call("report", *options, "--no-figures").code == 0
    assert not Path("reports/mine-paper-part/figures").exists()
    text = Path("reports/mine-paper-part/table.csv").read_text()
    assert [line.split(",")[0] for line in text.splitlines()] == ["method", "SBS"]
