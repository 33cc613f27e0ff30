"""How a study's progress is shown."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from stochbatch.studies.engine import StudyWatcher
from stochbatch.studies.estimate import TimeLeft, duration
from stochbatch.training import Trial


class PlainWatcher(StudyWatcher):
    """One line per trial that is over, and one with the first estimate."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self.labels = labels
        """What to call each trial, by its hash."""

    def begin(self, trials: Sequence[Trial]) -> None:
        """Remember what there is to do."""
        self.time_left, self.total, self.done = TimeLeft(trials), len(trials), 0

    def note(self, text: str) -> None:
        """Print it."""
        print(text, file=sys.stderr, flush=True)

    def progress(self, trial: Trial, metrics: list[dict[str, Any]]) -> None:
        """Print the first estimate of the whole."""
        before = self.time_left.seconds()
        self.time_left.progress(trial, metrics)
        if before is None and self.left():
            self.note(f"0/{self.total}  {self.left()}")

    def end_of(self, trial: Trial, status: str, text: str) -> None:
        """Print the line."""
        self.done += 1
        self.time_left.end_of(trial)
        parts = (f"{self.done}/{self.total}", self.labels[trial.hash], status, text, self.left())
        self.note("  ".join(filter(None, parts)))

    def left(self) -> str:
        """Return how long the study still takes, in words; nothing if that is unknown or over."""
        seconds = self.time_left.seconds()
        return f"about {duration(seconds)} left" if seconds else ""


class RichWatcher(PlainWatcher):
    """A bar for the study, and under it one for each running trial."""

    def begin(self, trials: Sequence[Trial]) -> None:
        """Show the bar of the study."""
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import BarColumn, MofNCompleteColumn, Progress

        super().begin(trials)
        self.escape = escape
        self.bars = Progress(
            "{task.description}",
            BarColumn(),
            MofNCompleteColumn(),
            "{task.fields[left]}",
            console=Console(stderr=True),
        )
        self.whole = self.bars.add_task("trials", total=len(trials), left="")
        self.tasks: dict[str, Any] = {}
        self.bars.start()

    def note(self, text: str) -> None:
        """Print it above the bars."""
        self.bars.console.print(text, highlight=False, markup=False)

    def progress(self, trial: Trial, metrics: list[dict[str, Any]]) -> None:
        """Move the trial's bar."""
        self.time_left.progress(trial, metrics)
        if trial.hash not in self.tasks:
            label = self.escape(self.labels[trial.hash])
            self.tasks[trial.hash] = self.bars.add_task(label, total=trial.epochs, left="")
        self.bars.update(self.tasks[trial.hash], completed=len(metrics))
        self.bars.update(self.whole, left=self.left())

    def end_of(self, trial: Trial, status: str, text: str) -> None:
        """Take the trial's bar away and print how it ended."""
        task = self.tasks.pop(trial.hash, None)
        if task is not None:
            self.bars.remove_task(task)
        super().end_of(trial, status, text)
        self.bars.update(self.whole, completed=self.done, left=self.left())

    def close(self) -> None:
        """Leave the terminal as it was."""
        self.bars.stop()


def choose_watcher(quiet: bool, labels: Mapping[str, str]) -> StudyWatcher:
    """Return bars for a terminal, lines for anything else, nothing if it is to be quiet."""
    if quiet:
        return StudyWatcher()
    return (RichWatcher if sys.stderr.isatty() else PlainWatcher)(labels)
