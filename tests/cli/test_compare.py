"""Invariant: one command tunes, compares and says what came out; the same again resumes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import assert_one_clear_line, call
from tests.studies.engines import in_process

QUICK = (
    *("--budget", "1", "--seeds", "1", "--epochs", "1", "--share", "0.1", "--batch-size", "32"),
    "--quiet",
)


def test_a_comparison_says_what_it_does_and_what_came_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("stochbatch.studies.local_engine.run_trials", in_process)
    planned = call("compare", "sgd", "sbs", *QUICK, "--plan")
    assert planned.code == 0, planned.err
    assert "1 settings of each with one seed on 1,217 validation images" in planned.out
    assert not Path("runs").exists()
    done = call("compare", "sgd", "sbs", *QUICK)
    assert done.code == 0, done.err
    said = done.out
    assert "8 finished, 0 diverged, 0 failed" in said
    assert "At the settings chosen (1 tried, on validation images; SBS lr " in said
    assert "page: reports/compare-digits-sgd-sbs/index.html" in said
    file = Path("reports/compare-digits-sgd-sbs/index.html")
    page = file.read_text(encoding="utf-8")
    assert "At the settings chosen" in page
    again = call("compare", "sgd", "sbs", *QUICK)
    assert again.code == 0, again.err
    assert "finished" not in again.out
    planned = call("study", "plan", "reports/compare-digits-sgd-sbs.toml")
    assert "2 finished" in planned.out
    assert file.read_text(encoding="utf-8") == page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name two methods or more"),
        (("sgd",), "name two methods or more"),
        (("sgd", "sbs", "--budget", "0"), "'--budget': Input should be greater than or equal to 1"),
        (("sgd", "sbs", "--tune", "lr"), "--tune is NAME=LOW..HIGH or NAME=VALUE,VALUE, got 'lr'"),
        (("sgd", "sbs", "--tune", "lr=1..a"), "the ends of a range are numbers"),
        (("sgd", "sbs", "--tune", "lr=1..0.1"), "a range needs"),
        (("sgd", "sbs", "--dataset", "cifar11"), "no data set is called 'cifar11'"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = call("compare", *arguments)
    assert_one_clear_line(ended, ended.code, message)
    assert ended.code in (1, 2)
    assert list(tmp_path.iterdir()) == []


def test_help_shows_the_defaults_of_a_comparison() -> None:
    from stochbatch.studies.comparing import USUAL

    said = call("compare", "--help").out
    for name, value in USUAL.items():
        option = said.split(f"--{name} ")[1].split("--")[0]
        assert f"[default: {value}]" in " ".join(option.split())
