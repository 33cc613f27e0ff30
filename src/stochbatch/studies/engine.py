"""The study loop, and the three verbs it asks of an engine.

An engine decides where trials are trained: ``start`` one, ``poll`` for those that ended, ``stop``
them all. The run folder is the truth: the loop reads progress from ``metrics.jsonl``, and the
outcome from ``result.json`` or ``error.json``, so every engine leaves the same files.
"""

from __future__ import annotations

import json
import os
import traceback
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import filelock
import torch

from stochbatch import data
from stochbatch.studies.outcome import ERROR, outcome_of
from stochbatch.training import Interrupted, Trial, run
from stochbatch.training.exceptions import RunError
from stochbatch.training.observers import Unfailing
from stochbatch.training.run_folder import LOCK, METRICS, read_metrics, write
from stochbatch.training.signals import StopSignals


class StudyStopped(RunError):  # noqa: N818 (not an error, an order)
    """A study was told to stop by a signal; everything so far is saved."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by signal {signal_number}; everything so far is saved")
        self.signal_number = signal_number


class StudyWatcher:
    """A watcher of a study that does nothing; subclasses show what they are told."""

    def begin(self, trials: Sequence[Trial]) -> None:
        """These trials are to be run."""

    def note(self, text: str) -> None:
        """Something that one should know, in a line."""

    def progress(self, trial: Trial, metrics: list[dict[str, Any]]) -> None:
        """A trial has started, or has done these epochs, perhaps in an earlier run."""

    def end_of(self, trial: Trial, status: str, text: str) -> None:
        """A trial is over: finished, diverged or failed, with its accuracy or its error."""

    def close(self) -> None:
        """Nothing more will be told, whatever happened."""


class Ended(NamedTuple):
    """How a trial ended."""

    trial: Trial
    status: str
    """``finished``, ``diverged`` or ``failed``."""
    text: str
    """Its accuracy, or its error."""


class Engine(Protocol):
    """Trains trials, each in a process of its own, by :func:`train`."""

    queues: bool
    """Whether a trial that is handed to it may have to wait for its turn."""

    @property
    def room(self) -> int:
        """How many trials to hand it at once; it may change."""

    def start(self, trial: Trial) -> None:
        """Start to train a trial."""

    def poll(self) -> Iterable[tuple[Trial, str | None]]:
        """Wait a moment; return trials whose processes ended, with what went wrong, if known."""

    def stop(self) -> None:
        """Let all running trials save and end."""


def run_study(
    engine: Engine,
    trials: Sequence[Trial],
    root: Path,
    watcher: StudyWatcher | None = None,
    note: str | None = None,
) -> list[Ended]:
    """Run trials, in this order, on an engine, which is stopped in any case.

    Raises:
        StudyStopped: SIGINT or SIGTERM came; everything so far is saved.
    """
    told = Unfailing(watcher or StudyWatcher())
    told.begin(trials)
    try:
        with StopSignals() as signals:
            try:
                if note:
                    told.note(note)
                return _Loop(engine, deque(trials), root, told).run(signals)
            finally:
                engine.stop()
    finally:  # also if a second Ctrl-C does not let the processes save
        told.close()


@dataclass
class _Loop:
    engine: Engine
    waiting: deque[Trial]
    root: Path
    watcher: Unfailing
    running: dict[str, tuple[Trial, Path]] = field(default_factory=dict)
    """By hash, which takes a while to compute."""
    seen: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Size and time of each running trial's metrics when they were last read."""
    over: list[Ended] = field(default_factory=list)

    def run(self, signals: StopSignals) -> list[Ended]:
        while self.waiting or self.running:
            while self.waiting and len(self.running) < self.engine.room:
                self._start(self.waiting.popleft())
            ended = list(self.engine.poll())
            if signals.received is not None:
                raise StudyStopped(signals.received)
            for key in self.running:
                self._look(key)
            for trial, fault in ended:
                self._end(trial, fault)
        return self.over

    def _start(self, trial: Trial) -> None:
        key, folder = trial.hash, self.root / trial.folder
        with suppress(OSError):
            (folder / ERROR).unlink(missing_ok=True)
        self.seen[key] = _stamp(folder) if self.engine.queues else (-1, -1)
        self.running[key] = trial, folder
        self.engine.start(trial)
        if not self.engine.queues:  # epochs of an earlier run are read when all have started
            self.watcher.progress(trial, [])

    def _look(self, key: str) -> None:
        """Tell the watcher if a trial has started or done an epoch."""
        trial, folder = self.running[key]
        stamp = _stamp(folder)
        if stamp != self.seen[key]:
            self.seen[key] = stamp
            with suppress(OSError, RunError):  # whoever reads the result is told of odd metrics
                self.watcher.progress(trial, read_metrics(folder))

    def _end(self, trial: Trial, fault: str | None) -> None:
        del self.running[trial.hash]
        status, text = self._outcome(trial, fault)
        self.over.append(Ended(trial, status, text))
        self.watcher.end_of(trial, status, text)

    def _outcome(self, trial: Trial, fault: str | None) -> tuple[str, str]:
        outcome = outcome_of(trial, self.root)
        if outcome.result is not None:
            accuracy = outcome.accuracy
            return outcome.status, "" if accuracy is None else f"{accuracy.mean:.2f} %"
        if outcome.error is not None:
            return "failed", outcome.error
        text = fault or "its process left neither a result nor an error"
        with suppress(RunError):
            record(trial, self.root, text)
        return "failed", text


def train(trial: Trial, root: Path, *, patience: float = -1.0, **options: Any) -> None:
    """Train a trial in this process, and leave its error in its folder if it fails.

    If another process is training it, such as one of another study, or of a node that was cut off,
    wait so many seconds of patience; -1 waits for as long as it takes.

    Raises:
        Interrupted: SIGINT or SIGTERM came; everything so far is saved.
        RunError: the error cannot be written.
    """
    torch.set_num_threads(1)  # the last bits of a result depend on it
    lock = root / trial.folder / LOCK
    try:
        if lock.exists():
            with filelock.FileLock(lock, timeout=patience):
                pass
        run(trial, root, wait=True, **options)
    except Interrupted:
        raise
    except filelock.Timeout:
        record(trial, root, "another process is training it")
    except (Exception, SystemExit) as error:
        first = (str(error).splitlines() or [""])[0]
        # The package's own errors are written to be read.
        is_ours = type(error).__module__.startswith("stochbatch.")
        what = first if is_ours else f"{type(error).__name__}: {first}"
        record(trial, root, what, traceback.format_exc())


def record(trial: Trial, root: Path, error: str, trace: str = "") -> None:
    """Leave an error in the folder of the trial that it ended."""
    folder = root / trial.folder
    content = {"trial_hash": trial.hash, "error": error, "traceback": trace}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write(folder / ERROR, json.dumps(content, indent=1))
    except (OSError, RunError) as another:
        raise RunError(f"{trial.folder}: {error}; {another}") from None


def check_data(trials: Sequence[Trial], data_root: str | Path | None, accept_hash: bool) -> None:
    """Raise for all data sets at once whose files are missing; a bad file raises on its own."""
    missing = []
    for name in dict.fromkeys(trial.dataset for trial in trials):
        try:
            for split in ("train", "test"):
                data.load(name, data_root, split, accept_hash=accept_hash)
        except data.MissingFileError:
            missing.append(name)
    if missing:
        folder = data.data_root(data_root)
        option = f" --data-root {folder}" if data_root is not None else ""
        commands = " && ".join(f"stochbatch data get {name}{option}" for name in missing)
        raise data.MissingFileError(
            f"the files of {', '.join(missing)} are not in {folder}; get them first: {commands}"
        )


def _stamp(folder: Path) -> tuple[int, int]:
    try:
        stat = os.stat(folder / METRICS)
    except OSError:
        return 0, 0
    return stat.st_size, stat.st_mtime_ns
