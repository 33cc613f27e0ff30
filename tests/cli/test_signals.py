"""Invariant: a training that is stopped says how to go on, and that command goes on."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from stochbatch.training import Observer, progress_bars, read_run
from tests.cli.command import ENVIRONMENT, SCRIPT, call


def stopped(root: Path) -> subprocess.CompletedProcess[str]:
    """Train, and press Ctrl-C when the first epoch is done."""
    # Batches of four samples: an epoch takes about a second, long enough to be stopped in.
    words = [SCRIPT, "train", "--epochs", "3", "--share", "0.3", "--batch-size", "4"]
    process = subprocess.Popen(
        [*map(str, words), "--root", str(root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    first = process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(words, process.returncode, out, first + err)


def test_ctrl_c_saves_and_the_command_it_prints_goes_on(tmp_path: Path) -> None:
    root = tmp_path / "my runs"
    outcome = stopped(root)
    assert outcome.returncode == 130, outcome.stderr
    assert outcome.stderr.startswith("epoch 1/3")
    assert "Traceback" not in outcome.stderr
    *_, said, command = outcome.stdout.splitlines()
    assert said == "Stopped; everything is saved. To resume:"
    name, *args = shlex.split(command)
    assert name == "stochbatch"
    resumed = call(*args)
    assert resumed.code == 0, resumed.err
    assert resumed.err.startswith("resumed: 1 of 3 epochs")
    assert "(1 of 3 epochs are done)" in resumed.out
    (folder,) = root.iterdir()
    assert [line["epoch"] for line in read_run(folder).metrics] == [0, 1, 2]


class SendsSigterm(Observer):
    """Sends a signal to this process when the first epoch is done."""

    def on_epoch(self, metrics: dict[str, Any]) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


def test_sigterm_is_143_and_the_command_it_prints_has_the_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_bars, "choose_progress", lambda quiet: SendsSigterm())
    options = ("--device", "cpu", "--checkpoint-seconds", "60", "--accept-hash")
    args = ("train", "--epochs", "2", "--share", "0.1", "--root", tmp_path, "--again", *options)
    outcome = call(*args)
    assert outcome.code == 143, outcome.err
    (folder,) = tmp_path.iterdir()
    command = ["stochbatch", "train", "--config", str(folder / "trial.json")]
    command += ["--root", str(tmp_path), "--accept-hash", "--device", "cpu"]
    command += ["--checkpoint-seconds", "60.0"]
    # Not --again: it would throw away what was saved.
    assert shlex.split(outcome.out.splitlines()[-1]) == command
    monkeypatch.setattr(progress_bars, "choose_progress", lambda quiet: Observer())
    assert call(*command[1:]).code == 0
