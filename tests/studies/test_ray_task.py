"""Invariant: a node trains only what it can train, and in the folder that all nodes share."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import filelock
import pytest

from stochbatch.studies import ray_task
from stochbatch.studies.ray_task import (
    UNFIT,
    board_class,
    marked,
    train_on_node,
    versions,
    what_is_wrong,
)
from stochbatch.training import RunError
from stochbatch.training.folder import LOCK
from tests.training.runs import small_trial


def order(mark: Path, **changes: Any) -> dict[str, Any]:
    whole = {
        "trial": small_trial(epochs=1).to_json(),
        "root": str(mark.parent),
        "mark": str(mark),
        "mark_seconds": 0.0,
        "lock_seconds": 0.1,
        "told_every": 60.0,
        "versions": versions(),
        "plugins": [],
        "threads": 1,
        "options": {"device": "cpu"},
    }
    return {**whole, **changes}


class Told:
    """A board as a task sees it: its method is called by `remote`."""

    def __init__(self) -> None:
        self.board = board_class()()
        self.tell = self

    def remote(self, trial: str, epochs: int) -> None:
        self.board.tell(trial, epochs)


def test_a_trial_is_trained_and_told_of(tmp_path: Path) -> None:
    told = Told()
    with marked(tmp_path) as mark:
        status, text = train_on_node(order(mark), told)
    assert status == "finished"
    assert text.endswith(" %")
    assert told.board.read() == {small_trial(epochs=1).hash: 0}  # epoch 1 came too soon after it
    assert told.board.read() == {}


def test_a_node_without_a_name_of_the_study_says_which(tmp_path: Path) -> None:
    text = small_trial(epochs=1).to_json().replace('"method":"sgd"', '"method":"signs"')
    with marked(tmp_path) as mark:
        status, said = train_on_node(order(mark, trial=text), Told())
        assert status == UNFIT
        assert " cannot make a trial of the study: no method is called 'signs'" in said
        assert f"the node {socket.gethostname()} " in said
        status, said = train_on_node(order(mark, plugins=["mine 1.0"]), Told())
    assert status == UNFIT
    assert said.endswith("has the plugins (none), where the study was started they are mine 1.0")


def test_the_mark_is_there_as_long_as_it_is_needed(tmp_path: Path) -> None:
    with marked(tmp_path / "runs") as mark:
        assert what_is_wrong(order(mark)) is None
    assert list((tmp_path / "runs").iterdir()) == []
    wrong = what_is_wrong(order(mark))
    assert wrong is not None
    assert wrong.startswith(f"does not see {tmp_path / 'runs'}, or has another folder of that name")


def test_two_marks_do_not_disturb_each_other_and_one_left_behind_is_removed(tmp_path: Path) -> None:
    forgotten = tmp_path / ".study-0"
    forgotten.touch()
    with marked(tmp_path) as first:
        assert not forgotten.exists()
        with marked(tmp_path) as second:
            assert first.exists()
        assert first.exists()
        assert not second.exists()


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(RunError, match="cannot write into .*file/runs: Not a directory"),
        marked(tmp_path / "file" / "runs"),
    ):
        pass


@pytest.mark.parametrize("name", ["stochbatch", "torch"])
def test_another_version_is_refused(tmp_path: Path, name: str) -> None:
    with marked(tmp_path) as mark:
        asked = order(mark, versions={**versions(), name: "0.0.1"})
        status, text = train_on_node(asked, Told())
    assert status == ray_task.UNFIT
    assert f"has {name} {versions()[name]}, where the study was started it is 0.0.1" in text
    assert not (tmp_path / small_trial(epochs=1).folder).exists()


def test_a_trial_that_somebody_else_is_at_work_on_is_waited_for_but_not_for_ever(
    tmp_path: Path,
) -> None:
    folder = tmp_path / small_trial(epochs=1).folder
    folder.mkdir()
    with marked(tmp_path) as mark:
        with filelock.FileLock(folder / LOCK):
            status, text = train_on_node(order(mark), Told())
        assert status == "failed"
        assert text.startswith(f"another process is at work on {folder}")
        assert train_on_node(order(mark), Told())[0] == "finished"
