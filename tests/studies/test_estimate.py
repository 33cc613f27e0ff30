"""Invariant: an estimate counts what is left to do, on the workers that do it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stochbatch.studies.estimate import (
    Kind,
    Speed,
    estimate,
    kind_of,
    measure,
)
from stochbatch.training import run, runner
from tests.training.runs import CrashError, Witness, crash, small_trial

CPU = torch.device("cpu")


def speed(kind: Kind, device: torch.device) -> Speed:
    return Speed(train=0.001, test=0.0001)


def test_the_epochs_that_are_done_are_not_counted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "TOLD_EVERY", -1.0)
    trial = small_trial(epochs=4)
    with pytest.raises(CrashError):
        run(trial, tmp_path, device="cpu", observers=[Witness(crash, at=(1, 3))])
    begun, whole = (
        estimate([trial], root, CPU, measured=speed) for root in (tmp_path, tmp_path / "none")
    )
    assert begun == pytest.approx([0.75 * whole[0]])
    (tmp_path / trial.folder / "metrics.jsonl").write_text("odd\n")
    assert estimate([trial], tmp_path, CPU, measured=speed) == whole
    # 1352 digits to train with, a fifth of them, and 445 to test: after every epoch.
    assert whole == pytest.approx([4 * (1352 * 0.2 * 0.001 + 445 * 0.0001)])


@pytest.mark.parametrize("epochs", [1, 9, 10, 31, 200])
@pytest.mark.parametrize("every", [1, 3, 7, 1000])
def test_evaluations_are_counted_as_they_happen(epochs: int, every: int) -> None:
    trial = small_trial(epochs=epochs, evaluate_every=every)
    evaluations = sum(trial.evaluates(epoch) for epoch in range(epochs))
    assert Speed(train=0.0, test=1.0).seconds(trial) == evaluations * 445


def test_a_study_of_a_hundred_billion_epochs_is_estimated_at_once(tmp_path: Path) -> None:
    trial = small_trial(epochs=10**11)
    (seconds,) = estimate([trial], tmp_path, CPU, measured=speed)
    assert seconds == pytest.approx(10**11 * (1352 * 0.2 * 0.001 + 445 * 0.0001))


def test_every_kind_is_measured_once(tmp_path: Path) -> None:
    trials = [small_trial(seed=seed, width=width) for seed in range(2) for width in (0.25, 0.5)]
    told: list[Kind] = []
    assert len(estimate(trials, tmp_path, CPU, told.append, speed)) == 4
    assert told == [kind_of(trial, CPU) for trial in trials[:2]]


def test_batch_sizes_count_where_they_decide_about_the_speed() -> None:
    small, large = small_trial(batch_size=16), small_trial(batch_size=128)
    assert kind_of(small, CPU) == kind_of(large, CPU)
    cuda = torch.device("cuda")
    assert kind_of(small, cuda) != kind_of(large, cuda)


def test_a_speed_is_really_measured() -> None:
    found = measure(kind_of(small_trial(), CPU), CPU)
    assert 0 < found.train < 1
    assert 0 < found.test < 1
