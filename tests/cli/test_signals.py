"""Invariant: a training that is stopped has saved everything, and says how to resume it."""

from __future__ import annotations

import os
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
    words = [str(SCRIPT), "train", "--epochs", "2", "--share", "0.3", "--batch-size", "4"]
    words += ["--root", str(root)]
    process = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    first = process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(words[1:], process.returncode, out, first + err)


def test_ctrl_c_saves_and_the_same_command_resumes(tmp_path: Path) -> None:
    root = tmp_path / "my runs"
    outcome = stopped(root)
    assert outcome.returncode == 130, outcome.stderr
    assert outcome.stderr.startswith("epoch 1/2")
    assert "Traceback" not in outcome.stderr
    said = outcome.stdout.splitlines()[-1]
    assert said == "Stopped; everything is saved. Run the same command again to resume."
    resumed = call(*outcome.args)
    assert resumed.code == 0, resumed.err
    assert resumed.err.startswith("resumed: 1 of 2 epochs")
    assert "(1 of 2 epochs)" in resumed.out
    (folder,) = root.iterdir()
    assert [line["epoch"] for line in read_run(folder).metrics] == [0, 1]


class SendsSigterm(Observer):
    """Sends a signal to this process when the first epoch is done."""

    def on_epoch(self, metrics: dict[str, Any]) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


def test_sigterm_is_143_and_again_would_start_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_bars, "choose_progress", lambda quiet: SendsSigterm())
    args = ("train", "--epochs", "2", "--share", "0.1", "--root", tmp_path)
    outcome = call(*args, "--again")
    assert outcome.code == 143, outcome.err
    assert outcome.out.endswith("Run the same command again, without --again, to resume.\n")
    monkeypatch.setattr(progress_bars, "choose_progress", lambda quiet: Observer())
    assert call(*args).code == 0
