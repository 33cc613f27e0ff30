"""Invariant: an accuracy is read from a curve as the article reads it."""

import subprocess
from pathlib import Path

import pytest

from stochbatch.training import Accuracy, result

NONE = [None] * 14


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        # mean over the last tenth of the epochs, best, final, the first best epoch
        ([50.0], (50.0, 50.0, 50.0, 0)),
        ([float(e) for e in range(9)], (8.0, 8.0, 8.0, 8)),
        ([float(e) for e in range(19)], (18.0, 18.0, 18.0, 18)),
        ([float(e) for e in range(20)], (18.5, 19.0, 19.0, 19)),
        ([float(30 - e) for e in range(30)], (2.0, 30.0, 1.0, 0)),
        ([float(e % 60) for e in range(100)], (34.5, 59.0, 39.0, 59)),
        ([1.0, 7.0, 3.0, 7.0, 2.0], (2.0, 7.0, 2.0, 1)),
        # epochs that were not evaluated are left out
        ([9.0, None, None, 8.0, *NONE, 6.0, 7.0], (6.5, 9.0, 7.0, 0)),
        # a run that ended early has the mean of its last evaluation
        ([None, 5.0, None, 6.0, None], (6.0, 6.0, 6.0, 3)),
    ],
)
def test_the_mean_is_over_the_last_tenth_of_the_epochs(
    curve: list[float | None], expected: tuple[float, float, float, int]
) -> None:
    found = Accuracy.of(curve)
    assert (found.mean, found.max, found.final, found.best_epoch) == expected


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
