"""What tests of engines have in common: a watcher, waiting, and the run that nothing disturbed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stochbatch.studies.engine import Ended, StudyWatcher, train
from stochbatch.training import Trial, run
from tests.forked import Forked
from tests.training.runs import lasting


class Log(StudyWatcher):
    """Remembers what it was told, and acts once when so many trials have done an epoch."""

    def __init__(self, act: Callable[[], object] | None = None, trials: int = 1) -> None:
        self.act, self.trials = act, trials
        self.begun: set[str] = set()
        self.epochs: list[tuple[int, int]] = []
        self.ended: list[tuple[int, str]] = []
        self.notes: list[str] = []
        self.closed = False

    def note(self, text: str) -> None:
        self.notes.append(text)

    def progress(self, trial: Trial, metrics: list[dict[str, Any]]) -> None:
        self.epochs.append((trial.seed, len(metrics)))
        if metrics:
            self.begun.add(trial.hash)
        if self.act is not None and len(self.begun) == self.trials:
            self.act, act = None, self.act
            act()

    def end_of(self, trial: Trial, status: str, text: str) -> None:
        self.ended.append((trial.seed, status))

    def close(self) -> None:
        self.closed = True


def until(fact: Callable[[], object], process: Forked | None = None) -> None:
    """Wait for a fact, for minutes if need be, as long as a process lives."""
    deadline = time.monotonic() + 280
    while not fact():
        assert time.monotonic() < deadline, "it did not come about"
        assert process is None or process.poll() is None, process.stderr.read_text()
        time.sleep(0.02)


def assert_as_alone(trials: Sequence[Trial], root: Path, tmp_path: Path) -> None:
    """Compare with the runs that nothing disturbed."""
    for trial in trials:
        train(trial, tmp_path / "whole")
        assert lasting(root / trial.folder) == lasting(tmp_path / "whole" / trial.folder)


def tally(ended: Sequence[Ended]) -> dict[str, int]:
    """Return how many trials ended how."""
    return dict(Counter(one.status for one in ended))


def errors(ended: Sequence[Ended]) -> list[str]:
    """Return the errors of the trials that failed, each after its trial's name."""
    return [f"{one.trial.folder}: {one.text}" for one in ended if one.status == "failed"]


def in_process(trials: Sequence[Trial], root: Path, **options: Any) -> list[Ended]:
    """Run trials one after the other, without the processes that an engine starts."""
    return [Ended(one, run(one, root, device="cpu").status, "") for one in trials]
