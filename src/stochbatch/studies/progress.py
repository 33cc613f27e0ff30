"""How a study's progress is shown."""

from __future__ import annotations

import sys
import time
from typing import Any

from stochbatch.studies.engine import StudyWatcher
from stochbatch.training import Trial


def describe(trial: Trial) -> str:
    """Return a trial in a few words."""
    return (
        f"{trial.method} {trial.network} {trial.dataset} batch {trial.batch_size} seed {trial.seed}"
    )


class PlainWatcher(StudyWatcher):
    """One line for each trial that is over."""

    def begin(self, trials: int) -> None:
        """Remember when it began."""
        self.total, self.done, self.began = trials, 0, time.monotonic()

    def note(self, text: str) -> None:
        """Print it."""
        print(text, file=sys.stderr, flush=True)

    def end_of(self, trial: Trial, status: str, text: str) -> None:
        """Print the line."""
        self.done += 1
        left = (time.monotonic() - self.began) / self.done * (self.total - self.done)
        print(
            f"{self.done}/{self.total}  {describe(trial)}  {status}  {text}  {left:.0f} s left",
            file=sys.stderr,
            flush=True,
        )


class RichWatcher(StudyWatcher):
    """A bar for the study, and under it one for each trial at work."""

    def begin(self, trials: int) -> None:
        """Show the bar of the study."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

        self.bars = Progress(
            "{task.description}",
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self.whole = self.bars.add_task("trials", total=trials)
        self.tasks: dict[str, Any] = {}
        self.bars.start()

    def note(self, text: str) -> None:
        """Print it above the bars."""
        self.bars.console.print(text, highlight=False, markup=False)

    def epoch(self, trial: Trial, done: int) -> None:
        """Move the trial's bar."""
        if trial.hash not in self.tasks:
            self.tasks[trial.hash] = self.bars.add_task(describe(trial), total=trial.epochs)
        self.bars.update(self.tasks[trial.hash], completed=done)

    def end_of(self, trial: Trial, status: str, text: str) -> None:
        """Take the trial's bar away and print how it ended."""
        task = self.tasks.pop(trial.hash, None)
        if task is not None:
            self.bars.remove_task(task)
        self.bars.advance(self.whole)
        line = f"{describe(trial)}  {status}  {text}"
        self.bars.console.print(line, highlight=False, markup=False)

    def close(self) -> None:
        """Leave the terminal as it was."""
        self.bars.stop()


def choose_watcher(quiet: bool) -> StudyWatcher:
    """Return bars for a terminal, lines for anything else, nothing if it is to be quiet."""
    if quiet:
        return StudyWatcher()
    return RichWatcher() if sys.stderr.isatty() else PlainWatcher()
