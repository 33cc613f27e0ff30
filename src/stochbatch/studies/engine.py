"""What all engines have in common: how a trial is trained, told of, and counted.

An engine decides where trials are trained. What comes out does not depend on it: every engine
trains by :func:`train`, which leaves the same files in the same folders.
"""

from __future__ import annotations

import json
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import filelock
import torch

from stochbatch.studies.results import ERROR
from stochbatch.training import Interrupted, Result, Trial, run
from stochbatch.training.exceptions import RunError
from stochbatch.training.observers import IgnoresLostStreams
from stochbatch.training.run_folder import LOCK, write


class StudyStopped(RunError):  # noqa: N818 (not an error, an order)
    """A study was told to stop by a signal; everything so far is saved."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by signal {signal_number}; everything so far is saved")
        self.signal_number = signal_number


class StudyWatcher:
    """A watcher of a study that does nothing; subclasses show what they are told."""

    def begin(self, trials: int) -> None:
        """So many trials are to be run."""

    def note(self, text: str) -> None:
        """Something that one should know, in a line."""

    def epoch(self, trial: Trial, done: int) -> None:
        """So many epochs of a trial are done."""

    def end_of(self, trial: Trial, status: str, text: str) -> None:
        """A trial is over: finished, diverged or failed, with its accuracy or its error."""

    def close(self) -> None:
        """Nothing more will be told, whatever happened."""


class UnfailingWatcher(IgnoresLostStreams, StudyWatcher):
    """A watcher of a study that never stops it."""


@dataclass
class Count:
    """How the trials of a call ended."""

    finished: int = 0
    diverged: int = 0
    failed: int = 0
    errors: list[str] = field(default_factory=list)

    def add(self, trial: Trial, status: str, text: str) -> None:
        """Count a trial that is over."""
        setattr(self, status, getattr(self, status) + 1)
        if status == "failed":
            self.errors.append(f"{trial.folder}: {text}")


Answer = tuple[str, str]
"""How a trial ended: its status, and its accuracy or its error."""


def train(trial: Trial, root: str | Path, **options: Any) -> Answer:
    """Train a trial in this process, and leave its error in its folder if it fails.

    Args:
        trial: what to train.
        root: the folder of all runs.
        **options: as for :func:`stochbatch.training.run`.

    Raises:
        Interrupted: SIGINT or SIGTERM came; everything so far is saved.
    """
    torch.set_num_threads(1)  # the last bits of a result depend on it
    folder = Path(root) / trial.folder
    try:
        (folder / ERROR).unlink(missing_ok=True)
        result = run(trial, root, **options)
    except Interrupted:
        raise
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        # The package's own errors are written to be read.
        is_ours = type(error).__module__.startswith("stochbatch.")
        what = first if is_ours else f"{type(error).__name__}: {first}"
        record(folder, what, traceback.format_exc())
        return "failed", what
    return result.status, _accuracy(result)


def is_free(folder: Path, seconds: float) -> bool:
    """Wait until nobody else is at work on a trial; return False if that takes too long.

    Somebody else is another study that is under way, a process that is about to stop, or a node
    that was cut off and has not noticed it. A lock that a dead machine left on a file server must
    not be waited for for ever.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(folder / LOCK, timeout=seconds):
            return True
    except filelock.Timeout:
        return False
    except OSError:
        return True  # nothing can be written there: the run finds that out, too, and says it


def record(folder: Path, error: str, trace: str = "") -> None:
    """Leave an error in the folder of the trial that it ended."""
    with suppress(OSError, RunError):  # what cannot be written is still told
        folder.mkdir(parents=True, exist_ok=True)
        write(folder / ERROR, json.dumps({"error": error, "traceback": trace}, indent=1))


def _accuracy(result: Result) -> str:
    return "" if result.accuracy is None else f"{result.accuracy.mean:.2f} %"
