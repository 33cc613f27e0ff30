"""Invariant: under torchrun the command prints once, ends as a whole, and can be resumed."""

from __future__ import annotations

import json
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

TRAIN = ["-m", "stochbatch", "train"]
OPTIONS = ["--method", "sbs", "--epochs", 6, "--share", 0.3, "--batch-size", 8, "--width", 0.5]
OPTIONS += ["--momentum", 0.5]


@pytest.mark.timeout(400)
def test_stopped_then_killed_then_finished_it_ends_with_the_same_bytes(
    two: Processes, tmp_path: Path
) -> None:
    args = [*TRAIN, *OPTIONS, "--root", tmp_path]
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
    with launched(2, *TRAIN, "--method", "sbx", "--root", tmp_path) as launch:
        assert launch.end() != 0
        assert [line[:33] for line in launch.ours()] == ["error: no method is called 'sbx',"]
        assert launch.tracebacks() == []


def test_a_study_is_not_run_by_each_process(tmp_path: Path) -> None:
    args = ["-m", "stochbatch", "study", "run", "readings", "--root", tmp_path]
    with launched(2, *args) as launch:
        assert launch.end() != 0
        assert [line[:50] for line in launch.ours()] == [
            "error: Invalid value: under torchrun each process "
        ]
        assert launch.tracebacks() == []
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_first_process_is_said_once(tmp_path: Path) -> None:
    args = [*TRAIN, "--dataset", "cifar10", "--data-root", tmp_path, "--root", tmp_path]
    with launched(2, *args, "--quiet") as launch:
        assert launch.end() != 0
        (line,) = launch.ours()
        assert "of cifar10 is neither in" in line
        assert launch.out == []
        assert launch.tracebacks() == []


SCRIPT = """
import json, os, sys
from stochbatch.training import RunError, Trial, run
seen = []
for batch_size in (16, 3, 20):
    try:
        result = run(Trial(epochs=1, share=0.1, batch_size=batch_size, width=0.25), sys.argv[1])
        seen.append([result.weights_sha256, result.environment["ranks"]])
    except RunError as error:
        seen.append([str(error)[:22], error.told])
with open(sys.argv[1] + "/rank" + os.environ["RANK"], "w") as file:
    json.dump(seen, file)
"""


def test_a_script_may_train_one_trial_after_the_other(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with launched(2, script, tmp_path) as launch:
        assert launch.end() == 0, launch.err
    first, second = (json.loads((tmp_path / f"rank{rank}").read_text()) for rank in (0, 1))
    assert [first[0], first[2]] == [second[0], second[2]]
    assert first[0][1] == first[2][1] == 2
    assert first[1][0] == second[1][0] == "batches of 3 images ar"
    assert sorted([first[1][1], second[1][1]]) == [False, True]  # one of them should tell it


ERRORS = """
import json, os, sys
from stochbatch.training import RunError, Trial, run
rank, seen = int(os.environ["RANK"]), []
trial = Trial(epochs=1, share=0.1, batch_size=3, width=0.25)
for device in (["cpu", "nonsense"][rank], "cpu", ["mps", "cpu"][rank], "cpu"):
    try:
        run(trial, sys.argv[1], device=device)
    except RunError as error:
        seen.append([str(error), error.told])
with open(sys.argv[1] + f"/rank{rank}", "w") as file:
    json.dump(seen, file)
"""


def test_what_one_process_lacks_ends_all_at_once_and_every_error_is_told_once(
    tmp_path: Path,
) -> None:
    script = tmp_path / "script.py"
    script.write_text(ERRORS)
    with launched(2, script, tmp_path) as launch:
        assert launch.end() == 0, launch.err
    first, second = (json.loads((tmp_path / f"rank{rank}").read_text()) for rank in (0, 1))
    assert first[0][0].startswith("process 1: no device 'nonsense' here")
    assert second[0][0].startswith("no device 'nonsense' here")
    assert second[2][0].startswith("process 0: no device 'mps' here")
    assert first[1][0] == second[3][0]
    assert first[1][0].startswith("batches of 3 images are too small")
    for one, other in zip(first, second, strict=True):
        assert sorted([one[1], other[1]]) == [False, True]
