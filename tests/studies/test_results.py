"""Invariant: a study counts a trial by what its own folder says, and by nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from stochbatch.studies import SCALES, Study, StudyError, collect
from stochbatch.studies.engine import train

TEXT = """
title = "small"
[base]
epochs = 1
share = 0.1
width = 0.25
batch_size = 32
[[axes]]
name = "method"
field = "method"
values = ["sgd"]
"""
STUDY, SCALE = Study.from_text(TEXT, "small"), SCALES["paper"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    train(collect(STUDY, SCALE, root, repetitions=1).missing[0], root)
    return root


def test_a_copied_run_is_not_a_second_trial(trained: Path, tmp_path: Path) -> None:
    first, second = collect(STUDY, SCALE, trained, repetitions=2).trials
    assert (first.status, second.status) == ("finished", "missing")
    for outcome in (first, second):
        shutil.copytree(first.folder, tmp_path / outcome.folder.name)
    first, second = collect(STUDY, SCALE, tmp_path, repetitions=2).trials
    assert (first.status, second.status) == ("finished", "failed")
    assert second.result is None
    assert f"is of the trial {first.trial.folder}" in str(second.error)
    assert second.trial.folder in str(second.error)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", "{}", "[" * 5000, "\x00", '{"error": 1']
)
def test_an_odd_file_is_a_failure_with_its_line(content: str, tmp_path: Path) -> None:
    (outcome,) = collect(STUDY, SCALE, tmp_path, repetitions=1).trials
    outcome.folder.mkdir()
    for name in ("error.json", "result.json"):
        (outcome.folder / name).write_text(content)
        results = collect(STUDY, SCALE, tmp_path, repetitions=1)
        assert results.trials[0].status == "failed"
        assert name in str(results.trials[0].error)
        assert results.missing == [outcome.trial]


def test_an_error_of_another_trial_says_whose_it_is(tmp_path: Path) -> None:
    (outcome,) = collect(STUDY, SCALE, tmp_path, repetitions=1).trials
    outcome.folder.mkdir()
    (outcome.folder / "error.json").write_text(json.dumps({"trial_hash": "7" * 64, "error": "x"}))
    (after,) = collect(STUDY, SCALE, tmp_path, repetitions=1).trials
    assert f"is of the trial {'7' * 16}" in str(after.error)
    (outcome.folder / "error.json").write_text(json.dumps({"error": "of an earlier version"}))
    (after,) = collect(STUDY, SCALE, tmp_path, repetitions=1).trials
    assert after.error == "of an earlier version"


def test_a_study_that_nobody_can_run_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="at most 100,000 trials, got 1 cells of 10,000,000,000"):
        collect(STUDY, SCALE, tmp_path, repetitions=10**10)
    axes = [f'[[axes]]\nname = "{n}"\nzip = {{ f{n} = {list(range(10))} }}' for n in range(12)]
    with pytest.raises(StudyError, match="large: a study has at most 100,000 trials, got 1,000,0"):
        Study.from_text("\n".join(['title = "Large"', *axes]), "large")
