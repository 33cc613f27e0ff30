"""Invariant: what diverges ends, and counts as it ended."""

import json
import math
from pathlib import Path

import pytest

from stochbatch.training import read_run, run, runner
from tests.training.runs import CrashError, Witness, crash, small_trial


def test_a_run_that_diverges_ends_with_its_curve_and_is_not_run_again(tmp_path: Path) -> None:
    trial = small_trial(lr=1e30, epochs=5)
    result = run(trial, tmp_path)
    assert result.status == "diverged"
    assert result.epochs < 5
    assert result.train_loss is None or read_run(result.folder).metrics[-1]["test_loss"] is None
    assert len(result.curve) == result.epochs
    witness = Witness()
    assert run(trial, tmp_path, observers=[witness]).status == "diverged"
    assert witness.begun is None
    for line in (result.folder / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_a_huge_finite_loss_is_a_divergence(tmp_path: Path) -> None:
    trial = small_trial(lr=100, evaluate_every=3)
    result = run(trial, tmp_path)
    assert result.train_loss is not None
    assert 1e6 < result.train_loss < math.inf
    assert result.status == "diverged"
    assert result.epochs == 1
    assert result.accuracy is not None  # it was evaluated as it ended


def test_what_diverges_counts_as_it_ended_however_seldom_it_is_evaluated(tmp_path: Path) -> None:
    often = run(small_trial(lr=1e30, epochs=20), tmp_path)
    seldom = run(small_trial(lr=1e30, epochs=20, evaluate_every=20), tmp_path)
    assert often.epochs == seldom.epochs < 18
    assert often.accuracy is not None
    assert often.accuracy.mean == often.accuracy.final == often.curve[-1]
    assert seldom.accuracy is not None
    assert seldom.accuracy.mean == often.accuracy.mean


def test_a_run_killed_as_it_diverged_ends_as_diverged(tmp_path: Path, monkeypatch) -> None:
    trial = small_trial(lr=1e30, epochs=5)
    monkeypatch.setattr(runner._Runner, "_finish", lambda *_: crash())
    with pytest.raises(CrashError):
        run(trial, tmp_path)
    monkeypatch.undo()
    assert run(trial, tmp_path).status == "diverged"
