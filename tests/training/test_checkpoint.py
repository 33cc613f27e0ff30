"""Invariant: no good checkpoint is lost, no damaged one is used."""

from pathlib import Path

import pytest
import torch

from stochbatch.training import RunError, checkpoint, read_run, run, runner
from tests.training.runs import CrashError, Witness, crash, lasting, small_trial


@pytest.fixture(autouse=True)
def _told_always(monkeypatch) -> None:
    monkeypatch.setattr(runner, "TOLD_EVERY", -1.0)


def test_a_damaged_checkpoint_is_not_counted_among_the_last_two(tmp_path: Path) -> None:
    trial = small_trial(epochs=4)
    with pytest.raises(CrashError):
        run(trial, tmp_path, observers=[Witness(crash, (3, 3))])
    folder = tmp_path / trial.folder
    spoil(sorted(folder.glob("checkpoint-*.pt"))[-1])
    with pytest.raises(CrashError):
        run(trial, tmp_path, observers=[Witness(crash, (3, 3))])
    good = sorted(folder.glob("checkpoint-*.pt"))
    assert [path.name[:16] for path in good] == ["checkpoint-00002", "checkpoint-00003"]
    spoil(good[-1])
    witness = Witness()
    run(trial, tmp_path, observers=[witness])
    assert witness.begun.epoch == 2
    assert not list(folder.glob("checkpoint-*"))


def spoil(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_says_so(tmp_path: Path) -> None:
    trial = small_trial()
    expected = lasting(run(trial, tmp_path / "whole").folder)
    with pytest.raises(CrashError):
        run(trial, tmp_path, observers=[Witness(crash, (2, 3))])
    checkpoints = sorted((tmp_path / trial.folder).glob("checkpoint-*.pt"))
    assert [path.name[:16] for path in checkpoints] == ["checkpoint-00001", "checkpoint-00002"]
    spoil(checkpoints[1])
    witness = Witness()
    result = run(trial, tmp_path, observers=[witness])
    assert witness.begun.epoch == 1
    assert f"{checkpoints[1].name} is damaged" in witness.begun.note
    assert f"resumes from {checkpoints[0].name}" in witness.begun.note
    assert lasting(result.folder) == expected


def test_a_good_checkpoint_that_cannot_be_loaded_stays_where_it_is(
    tmp_path: Path, monkeypatch
) -> None:
    trial = small_trial()
    with pytest.raises(CrashError):
        run(trial, tmp_path, observers=[Witness(crash, (2, 3))])
    before = {path: path.read_bytes() for path in (tmp_path / trial.folder).glob("checkpoint-*")}
    assert len(before) == 2

    def out_of_memory(*_: object) -> None:
        raise torch.OutOfMemoryError("a neighbour has it all")

    monkeypatch.setattr(checkpoint, "from_bytes", out_of_memory)
    with pytest.raises(RunError, match="out of memory on .*a neighbour has it all"):
        run(trial, tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(checkpoint, "FORMAT", 3)
    with pytest.raises(RunError, match=r"not a checkpoint of this version \(its format is 2"):
        run(trial, tmp_path)
    after = {path: path.read_bytes() for path in (tmp_path / trial.folder).glob("checkpoint-*")}
    assert after == before


def test_looking_at_a_run_puts_no_checkpoint_aside(tmp_path: Path) -> None:
    trial = small_trial()
    with pytest.raises(CrashError):
        run(trial, tmp_path, observers=[Witness(crash, (2, 3))])
    checkpoints = sorted((tmp_path / trial.folder).glob("checkpoint-*.pt"))
    spoil(checkpoints[1])
    assert read_run(tmp_path / trial.folder).weights()
    assert sorted((tmp_path / trial.folder).glob("checkpoint-*")) == checkpoints


def test_with_both_checkpoints_damaged_it_starts_anew_and_says_so(tmp_path: Path) -> None:
    trial = small_trial()
    with pytest.raises(CrashError):
        run(trial, tmp_path, observers=[Witness(crash, (2, 3))])
    for number, path in enumerate((tmp_path / trial.folder).glob("checkpoint-*.pt")):
        if number:
            path.write_bytes(b"")
        else:
            spoil(path)
    witness = Witness()
    result = run(trial, tmp_path, observers=[witness])
    assert witness.begun.resumed is False
    assert witness.begun.note.endswith("starts from the beginning")
    assert result.status == "finished"


def test_within_an_epoch_it_is_saved_by_time(tmp_path: Path) -> None:
    trial = small_trial(epochs=1)
    with pytest.raises(CrashError):
        run(trial, tmp_path, observers=[Witness(crash, (0, 5))], checkpoint_seconds=0.0)
    witness = Witness()
    run(trial, tmp_path, observers=[witness])
    assert (witness.begun.epoch, witness.begun.batch) == (0, 4)
