"""How a study's progress is shown."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from stochbatch.data import DATASETS
from stochbatch.studies.engine import StudyWatcher
from stochbatch.studies.estimate import duration
from stochbatch.training import Trial


class PlainWatcher(StudyWatcher):
    """One line per trial that is over, and one with the first estimate of the time left."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self.labels = labels
        """What to call each trial, by its hash."""

    def begin(self, trials: Sequence[Trial]) -> None:
        """Remember what there is to do."""
        self.total, self.done = len(trials), 0
        self.epochs_left = {trial.hash: (trial, trial.epochs) for trial in trials}
        self.rates: dict[object, float] = {}
        """Seconds per image, by what decides about them."""
        self.running: set[str] = set()
        self.most_running = 1

    def note(self, text: str) -> None:
        """Print it."""
        print(text, file=sys.stderr, flush=True)

    def progress(self, trial: Trial, metrics: list[dict[str, Any]]) -> None:
        """Print the first estimate of the whole."""
        known = bool(self.rates)
        self.running.add(trial.hash)
        self.most_running = max(self.most_running, len(self.running))
        self.epochs_left[trial.hash] = trial, max(0, trial.epochs - len(metrics))
        if metrics:
            self.rates[_pace(trial)] = metrics[-1]["seconds"] / _images(trial)
        if not known and self.left():
            self.first_estimate()

    def first_estimate(self) -> None:
        """Print it."""
        self.note(f"0/{self.total}  {self.left()}")

    def end_of(self, trial: Trial, status: str, text: str) -> None:
        """Print the line."""
        self.done += 1
        self.running.discard(trial.hash)
        self.epochs_left.pop(trial.hash, None)
        parts = (f"{self.done}/{self.total}", self.labels[trial.hash], status, text, self.left())
        self.note("  ".join(filter(None, parts)))

    def left(self) -> str:
        """Return how long the study still takes, in words; nothing if that is unknown or over.

        What has not begun is taken to be as fast per image as the rest.
        """
        if not self.rates or not self.epochs_left:
            return ""
        usual = sum(self.rates.values()) / len(self.rates)
        seconds = sum(
            epochs * _images(trial) * self.rates.get(_pace(trial), usual)
            for trial, epochs in self.epochs_left.values()
        )
        return f"about {duration(seconds / min(self.most_running, len(self.epochs_left)))} left"


def _images(trial: Trial) -> float:
    return DATASETS[trial.dataset].train.count * trial.share


def _pace(trial: Trial) -> object:
    """Return what decides how long an image takes."""
    return trial.dataset, trial.network, trial.width, trial.precision, trial.method


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
        super().progress(trial, metrics)
        if trial.hash not in self.tasks:
            label = self.escape(self.labels[trial.hash])
            self.tasks[trial.hash] = self.bars.add_task(label, total=trial.epochs, left="")
        self.bars.update(self.tasks[trial.hash], completed=len(metrics))
        self.bars.update(self.whole, left=self.left())

    def first_estimate(self) -> None:
        """The bar has it."""

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
