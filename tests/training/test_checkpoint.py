"""Invariant: no good checkpoint is lost, no damaged one is used."""

import shutil
from pathlib import Path

import pytest
import torch

from stochbatch.training import RunError, checkpoint, read_run, run
from tests.training.runs import Witness, crashed, lasting, small_trial

TRIAL = small_trial()


@pytest.fixture(scope="module")
def _crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return crashed(TRIAL, tmp_path_factory.mktemp("crashed"), (2, 3))


@pytest.fixture
def folder(_crashed: Path, tmp_path: Path) -> Path:
    """A run that crashed in its third epoch."""
    return shutil.copytree(_crashed, tmp_path / TRIAL.folder)


def saved(folder: Path) -> list[Path]:
    """Return the good checkpoints, which are those after the last two epochs."""
    found = sorted(folder.glob("checkpoint-*.pt"))
    assert [path.name[:16] for path in found] == ["checkpoint-00001", "checkpoint-00002"]
    return found


def spoil(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_says_so(
    folder: Path, tmp_path: Path
) -> None:
    first, last = saved(folder)
    spoil(last)
    assert read_run(folder).weights()
    assert saved(folder) == [first, last]  # looking at a run puts none aside
    witness = Witness()
    run(TRIAL, tmp_path, observers=[witness])
    assert witness.begun.epoch == 1
    assert f"{last.name} is damaged" in witness.begun.note
    assert f"resumes from {first.name}" in witness.begun.note
    assert lasting(folder) == lasting(run(TRIAL, tmp_path / "whole").folder)


def test_a_damaged_checkpoint_is_not_counted_among_the_last_two(
    folder: Path, tmp_path: Path
) -> None:
    spoil(saved(folder)[-1])
    crashed(TRIAL, tmp_path, (2, 3))
    spoil(saved(folder)[-1])
    witness = Witness()
    run(TRIAL, tmp_path, observers=[witness])
    assert witness.begun.epoch == 1
    assert not list(folder.glob("checkpoint-*"))


def test_a_good_checkpoint_that_cannot_be_loaded_stays_where_it_is(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path: path.read_bytes() for path in saved(folder)}

    def out_of_memory(*_: object) -> None:
        raise torch.OutOfMemoryError("a neighbour has it all")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "from_bytes", out_of_memory)
        with pytest.raises(RunError, match="out of memory on .*a neighbour has it all"):
            run(TRIAL, tmp_path)
    monkeypatch.setattr(checkpoint, "FORMAT", 3)
    with pytest.raises(RunError, match=r"not a checkpoint of this version \(its format is 2"):
        run(TRIAL, tmp_path)
    assert {path: path.read_bytes() for path in saved(folder)} == before


def test_with_both_checkpoints_damaged_it_starts_anew_and_says_so(
    folder: Path, tmp_path: Path
) -> None:
    first, last = saved(folder)
    first.write_bytes(b"")
    spoil(last)
    witness = Witness()
    assert run(TRIAL, tmp_path, observers=[witness]).status == "finished"
    assert not witness.begun.resumed
    assert witness.begun.note.endswith("starts from the beginning")


def test_within_an_epoch_it_is_saved_by_time(tmp_path: Path) -> None:
    trial = small_trial(epochs=1)
    crashed(trial, tmp_path, (0, 5), checkpoint_seconds=0.0)
    witness = Witness()
    run(trial, tmp_path, observers=[witness])
    assert (witness.begun.epoch, witness.begun.batch) == (0, 4)
