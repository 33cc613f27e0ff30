"""Invariant: a training that is stopped says how to go on, and that command goes on."""

from __future__ import annotations

import shlex
import signal
import subprocess
from pathlib import Path

from stochbatch.training import read_run
from tests.cli.command import ENVIRONMENT, SCRIPT, spawn


def stopped(root: Path, number: signal.Signals, *args: str) -> subprocess.CompletedProcess[str]:
    """Train, and send a signal when the first epoch is done."""
    # Batches of four samples: hundreds a second, but an epoch takes long enough to be stopped.
    words = [SCRIPT, "train", "--epochs", "3", "--batch-size", "4", "--device", "cpu"]
    process = subprocess.Popen(
        [*map(str, words), "--root", str(root), *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    first = process.stderr.readline()
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(words, process.returncode, out, first + err)


def test_ctrl_c_saves_and_the_command_it_prints_goes_on(tmp_path: Path) -> None:
    root = tmp_path / "my runs"
    outcome = stopped(root, signal.SIGINT)
    assert outcome.returncode == 130, outcome.stderr
    assert outcome.stderr.startswith("epoch 1/3")
    assert "Traceback" not in outcome.stderr
    *_, said, command = outcome.stdout.splitlines()
    assert said == "Stopped; everything is saved. To go on:"
    name, *args = shlex.split(command)
    assert name == "stochbatch"
    resumed = spawn(*args)
    assert resumed.code == 0, resumed.err
    assert resumed.err.startswith("resumed: 1 of 3 epochs")
    assert "(begun: 1 of 3 epochs are done)" in resumed.out
    (folder,) = root.iterdir()
    assert [line["epoch"] for line in read_run(folder).metrics] == [0, 1, 2]


def test_sigterm_is_143_and_quiet_still_says_how_to_go_on(tmp_path: Path) -> None:
    outcome = stopped(tmp_path, signal.SIGTERM, "--checkpoint-seconds", "60")
    assert outcome.returncode == 143, outcome.stderr
    assert "--checkpoint-seconds 60.0" in outcome.stdout
