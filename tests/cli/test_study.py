"""Invariant: a study is planned, run and reported by one command each."""

from pathlib import Path

from stochbatch.studies import STUDIES
from stochbatch.training import read_run
from tests.cli.command import assert_one_clear_line, call

STUDY = """
title = "A small study"
[base]
dataset = "digits"
epochs = 2
share = 0.1
width = 0.25
batch_size = 32
[[axes]]
name = "method"
points = [{ label = "SGD", method = "sgd" }, { label = "SBS", method = "sbs" }]
[[claims]]
axis = "method"
better = "SBS"
than = "SGD"
"""


def test_planned_run_and_reported(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(STUDY)
    options = ("mine.toml", "--trials", "2")  # at the scale paper: as the file says
    planned = call("study", "plan", *options)
    assert planned.code == 0
    assert "4 missing" in planned.out
    assert "time, from a measured sample: about" in planned.out
    early = call("report", *options)
    assert_one_clear_line(
        early,
        1,
        "the scale paper has been run in runs; run: stochbatch study run mine.toml",
    )
    done = call("study", "run", *options, "--workers", "2", "--quiet")
    assert done.code == 0, done.err
    assert "4 finished, 0 diverged, 0 failed" in done.out
    again = call("study", "run", *options, "--scale", "paper")
    assert "mine, scale paper: 0 trials to run" in again.out
    assert {read_run(folder).trial.epochs for folder in Path("runs").iterdir()} == {2}
    other = call("study", "plan", *options, "--scale", "demo", "--list", "--only", "method=SBS")
    assert other.out.split()[-5:] == ["0", "of", "2", "method", "SBS"]
    reported = call("report", *options)
    assert reported.code == 0, reported.err
    assert "report: reports/mine-paper-part/index.html" in reported.out
    assert "A small study" in Path("reports/mine-paper-part/index.html").read_text()


def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("comparison.toml").write_text(STUDY)
    for arguments, code, message in (
        (("plan", "comparison.toml"), 1, "a built-in study is called comparison"),
        (("plan", "comparisn"), 1, "no study is called 'comparisn', did you mean 'comparison'?"),
        (("plan", "comparison", "--scale", "huge"), 1, "no scale is called 'huge'"),
        (("plan", "none.toml"), 1, "none.toml cannot be read"),
        (("plan", "comparison", "--only", "method"), 2, "--only is AXIS=LABEL,LABEL, got 'method'"),
        (("plan", "comparison", "--trials", "0"), 2, "Invalid value for '--trials'"),
        (("run", "comparison", "--engine", "cloud"), 2, "unknown engine 'cloud'; choose local or"),
    ):
        assert_one_clear_line(call("study", *arguments), code, message)


def test_a_plan_without_a_study_has_a_row_for_each(tmp_path: Path) -> None:
    planned = call("study", "plan", "--root", str(tmp_path))
    assert planned.code == 0, planned.err
    rows = [line.split() for line in planned.out.splitlines()]
    assert [row[0] for row in rows if row and row[0] in STUDIES] == list(STUDIES)
