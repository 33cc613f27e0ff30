"""Invariant: under torchrun the command prints once, ends as a whole, and can be resumed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from stochbatch.training import Trial, read_run
from tests.processes import Processes
from tests.training import several
from tests.training.runs import lasting
from tests.training.torchrun import launched

pytestmark = pytest.mark.distributed

TRIAL = {"method": "sbs", "epochs": 6, "share": 0.3, "batch_size": 8, "width": 0.5, "momentum": 0.5}
"""51 batches an epoch: long enough to be stopped in."""

OPTIONS = ["--method", "sbs", "--epochs", 6, "--share", 0.3, "--batch-size", 8, "--width", 0.5]
OPTIONS += ["--momentum", 0.5]


@pytest.mark.timeout(280)
def test_stopped_then_killed_then_finished_it_ends_with_the_same_bytes(
    two: Processes, tmp_path: Path
) -> None:
    args = ["train", *OPTIONS, "--root", tmp_path]
    folder = tmp_path / Trial(**TRIAL).folder
    with launched(2, *args) as launch:
        launch.wait_for("epoch 1/6")
        launch.send(signal.SIGINT)  # what Ctrl-C sends
        assert launch.end() != 0
        assert launch.tracebacks() == []
        assert [line for line in launch.out if line.startswith("Stopped")] == [
            "Stopped; everything is saved. To go on:\n"
        ]
        assert launch.out[-1].split()[:4] == ["torchrun", "--standalone", "--nproc-per-node", "2"]
        assert launch.leftovers() == []
    done = len(read_run(folder).metrics)
    assert done < 4

    with launched(2, *args) as launch:
        launch.wait_for("resumed: ")
        launch.wait_for(f"epoch {done + 1}/6")
        killed = time.monotonic()
        os.kill(launch.workers()[1], signal.SIGKILL)
        assert launch.end() != 0
        assert time.monotonic() - killed < 20
        errors = [line for line in launch.ours() if not line.startswith(("epoch", "resumed"))]
        assert len(errors) == 1
        assert errors[0].startswith("error: another process of this training died")
        assert "epochs" in errors[0]
        assert launch.tracebacks() == []
        assert launch.leftovers() == []

    with launched(2, *args) as launch:
        assert launch.end() == 0, launch.err
        assert launch.ours()[0].startswith("resumed: ")
        assert [line[:14] for line in launch.out if "accuracy" in line] == ["test accuracy "]
    (whole, *_) = two.run(several.together, {**TRIAL, "lr": 0.1}, str(tmp_path / "whole"))
    assert lasting(folder) == lasting(Path(whole["folder"]))


def test_an_error_is_said_once(tmp_path: Path) -> None:
    with launched(2, "train", "--method", "sbx", "--root", tmp_path) as launch:
        assert launch.end() != 0
        assert [line[:33] for line in launch.ours()] == ["error: no method is called 'sbx',"]
        assert launch.tracebacks() == []


def test_an_error_of_the_first_process_is_said_once(tmp_path: Path) -> None:
    args = ["train", "--dataset", "cifar10", "--data-root", tmp_path, "--root", tmp_path]
    with launched(2, *args, "--quiet") as launch:
        assert launch.end() != 0
        (line,) = launch.ours()
        assert "of cifar10 is neither in" in line
        assert launch.out == []
        assert launch.tracebacks() == []
