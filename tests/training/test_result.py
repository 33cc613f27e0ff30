"""Invariant: an accuracy is read from a curve as the article reads it."""

import subprocess
from pathlib import Path

import pytest

from stochbatch.training import Accuracy, result

CURVES = {
    1: [50.0],
    9: [float(e) for e in range(9)],
    10: [float(e) for e in range(10)],
    19: [float(e) for e in range(19)],
    20: [float(e) for e in range(20)],
    30: [float(30 - e) for e in range(30)],
    100: [float(e % 60) for e in range(100)],
}
EXPECTED = {1: 50.0, 9: 8.0, 10: 9.0, 19: 18.0, 20: 18.5, 30: 2.0, 100: 34.5}


@pytest.mark.parametrize("epochs", CURVES)
def test_the_mean_is_over_the_last_tenth_of_the_epochs(epochs: int) -> None:
    assert Accuracy.of(CURVES[epochs]).mean == EXPECTED[epochs]


def test_the_maximum_is_the_first_best_epoch() -> None:
    found = Accuracy.of([1.0, 7.0, 3.0, 7.0, 2.0])
    assert (found.max, found.best_epoch, found.final) == (7.0, 1, 2.0)


def test_epochs_that_were_not_evaluated_are_left_out() -> None:
    found = Accuracy.of([9.0, None, None, 8.0] + [None] * 14 + [6.0, 7.0])
    assert (found.mean, found.max, found.best_epoch, found.final) == (6.5, 9.0, 0, 7.0)


def test_a_run_that_ended_early_has_the_mean_of_its_last_evaluation() -> None:
    found = Accuracy.of([None, 5.0, None, 6.0, None])
    assert (found.mean, found.final, found.best_epoch) == (6.0, 6.0, 3)


def test_a_run_that_was_never_evaluated_has_no_accuracy() -> None:
    assert Accuracy.of([None, None]) is None
    assert Accuracy.of([]) is None


def test_the_revision_is_that_of_a_repository_that_keeps_the_source(
    tmp_path: Path, monkeypatch
) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "theirs"], check=True)
    (tmp_path / "__init__.py").write_text("")
    monkeypatch.setattr(result.stochbatch, "__file__", str(tmp_path / "__init__.py"))
    assert result._revision() is None
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "ours"], check=True)
    assert len(result._revision()) == 40
