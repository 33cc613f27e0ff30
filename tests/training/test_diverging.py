"""Invariant: what diverges ends, and counts as it ended."""

import json
import math
from pathlib import Path

import pytest

from stochbatch.training import read_run, run, runner
from tests.training.runs import CrashError, Witness, crash, small_trial


def test_a_run_that_diverges_ends_as_it_is_however_seldom_it_is_evaluated(tmp_path: Path) -> None:
    trial = small_trial(lr=1e30, epochs=20)
    often, seldom = (
        run(trial, tmp_path),
        run(small_trial(lr=1e30, epochs=20, evaluate_every=20), tmp_path),
    )
    for result in (often, seldom):
        assert result.status == "diverged"
        assert result.epochs == len(result.curve) < 18
    assert often.epochs == seldom.epochs
    assert often.train_loss is None or read_run(often.folder).metrics[-1]["test_loss"] is None
    assert often.accuracy.mean == often.accuracy.final == often.curve[-1]
    assert seldom.accuracy.mean == often.accuracy.mean
    for line in (often.folder / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    witness = Witness()
    assert run(trial, tmp_path, observers=[witness]) == often
    assert witness.begun is None  # it is not run again


def test_a_huge_finite_loss_is_a_divergence(tmp_path: Path) -> None:
    trial = small_trial(lr=100, evaluate_every=3)
    result = run(trial, tmp_path)
    assert result.train_loss is not None
    assert 1e6 < result.train_loss < math.inf
    assert result.status == "diverged"
    assert result.epochs == 1
    assert result.accuracy is not None  # it was evaluated as it ended


def test_a_run_killed_as_it_diverged_ends_as_diverged(tmp_path: Path, monkeypatch) -> None:
    trial = small_trial(lr=1e30, epochs=5)
    monkeypatch.setattr(runner._Runner, "_finish", lambda *_: crash())
    with pytest.raises(CrashError):
        run(trial, tmp_path)
    monkeypatch.undo()
    assert run(trial, tmp_path).status == "diverged"
