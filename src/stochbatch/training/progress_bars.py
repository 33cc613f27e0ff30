"""Progress on a terminal, in bars, and elsewhere, in plain lines."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from stochbatch.training.observers import Progress

if TYPE_CHECKING:
    from rich.console import Console

    from stochbatch.training.trial import Trial

UNKNOWN = "-"


def choose_progress(quiet: bool = False, stream: TextIO | None = None) -> Progress:
    """Return bars for a terminal, plain lines for a file or a pipe, nothing for ``quiet``.

    Args:
        quiet: whether to show nothing.
        stream: where to show it; by default standard error, so that what a command prints
            can be redirected without it.

    Example:
        >>> import io
        >>> from stochbatch.training.progress_bars import choose_progress
        >>> type(choose_progress(stream=io.StringIO())).__name__
        'PlainProgress'
    """
    if quiet:
        return Progress()
    stream = sys.stderr if stream is None else stream
    if stream.isatty() and os.environ.get("TERM") != "dumb":
        from rich.console import Console

        return RichProgress(Console(file=stream))
    return PlainProgress(stream)


class TimeLeft:
    """An estimate from the epochs that this process did, not those of an earlier one.

    Args:
        epochs: how many there are in all, parts of an epoch included.
        done: how many were done before.
        clock: tells the time in seconds.

    Example:
        >>> from stochbatch.training.progress_bars import TimeLeft
        >>> ticks = iter([100.0, 104.0])
        >>> left = TimeLeft(epochs=10, done=5.5, clock=lambda: next(ticks))
        >>> left.text(7.5)
        '0:00:05'
    """

    def __init__(
        self, epochs: float, done: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._epochs, self._before, self._clock = epochs, done, clock
        self._start = clock()

    def text(self, done: float) -> str:
        """Return the time left when ``done`` epochs are done, a dash if it is too early."""
        if done <= self._before:
            return UNKNOWN
        each = (self._clock() - self._start) / (done - self._before)
        return str(timedelta(seconds=round(each * (self._epochs - done))))


class PlainProgress(Progress):
    """One line an epoch.

    Args:
        stream: where the lines go; by default standard error.
        clock: tells the time in seconds.

    Example:
        >>> import sys
        >>> from stochbatch.training import Trial
        >>> from stochbatch.training.progress_bars import PlainProgress
        >>> lines = PlainProgress(sys.stdout, clock=lambda: 0.0)
        >>> place = {"epoch": 0, "batch": 0, "batches": 11, "resumed": False, "note": None}
        >>> lines.begin(Trial(epochs=30), "runs/0123", **place)
        >>> lines.epoch({"epoch": 0, "lr": 0.1, "train_loss": 1.2, "train_accuracy": 61.4,
        ...     "test_accuracy": 80.25, "images_per_second": 1240.4})
        epoch 1/30  loss 1.2  train 61.4 %  test 80.2 %  lr 0.1  1,240 images/s  0:00:00 left
    """

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock

    def begin(
        self,
        trial: Trial,
        folder: Path,
        *,
        epoch: int,
        batch: int,
        batches: int,
        resumed: bool,
        note: str | None,
    ) -> None:
        """Say what the watcher should know, and where the run is taken up."""
        self._epochs = trial.epochs
        self._left = TimeLeft(trial.epochs, epoch + batch / max(batches, 1), self._clock)
        if note:
            self._line(note)
        if resumed:
            self._line(resumed_line(epoch, batch, trial.epochs, batches))

    def epoch(self, metrics: dict[str, Any]) -> None:
        """Print the line of the epoch."""
        done = metrics["epoch"] + 1
        parts = [
            f"epoch {done}/{self._epochs}",
            f"loss {figure(metrics.get('train_loss'), '.3g')}",
            f"train {figure(metrics.get('train_accuracy'), '.1f')} %",
            f"test {figure(metrics.get('test_accuracy'), '.1f')} %",
            f"lr {figure(metrics.get('lr'), '.3g')}",
            f"{figure(metrics.get('images_per_second'), ',.0f')} images/s",
            f"{self._left.text(done)} left",
        ]
        self._line("  ".join(parts))

    def _line(self, text: str) -> None:
        # Flushed, so that a file that is being followed shows an epoch when it is done.
        print(text, file=self._stream, flush=True)


class RichProgress(Progress):
    """Two bars, of the epochs and of the batches in an epoch.

    Args:
        console: where to show them; by default standard error.
        clock: tells the time in seconds.
    """

    def __init__(
        self, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        from rich import progress
        from rich.console import Console

        self._clock = clock
        self._test = ""
        self._bars = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=24),
            progress.TextColumn("{task.fields[count]}", justify="right"),
            progress.TextColumn("{task.fields[facts]}"),
            console=console or Console(stderr=True),
        )

    def begin(
        self,
        trial: Trial,
        folder: Path,
        *,
        epoch: int,
        batch: int,
        batches: int,
        resumed: bool,
        note: str | None,
    ) -> None:
        """Show the bars."""
        done = epoch + batch / max(batches, 1)
        self._left = TimeLeft(trial.epochs, done, self._clock)
        if note:
            self._print(note, style="yellow")
        if resumed:
            self._print(resumed_line(epoch, batch, trial.epochs, batches))
        self._total, self._per_epoch = trial.epochs, batches
        self._epochs = self._bars.add_task("epochs", total=trial.epochs, count="", facts="")
        self._bars.update(self._epochs, completed=done, count=f"{epoch}/{trial.epochs}")
        self._batches = self._bars.add_task(
            "batches", total=batches, completed=batch, count=f"{batch}/{batches}", facts=""
        )
        self._bars.start()

    def batch(
        self,
        epoch: int,
        number: int,
        batches: int,
        loss: float,
        accuracy: float,
        images_per_second: float,
    ) -> None:
        """Move both bars."""
        self._move_batches(number, batches, loss, accuracy, images_per_second)
        self._move_epochs(epoch + number / max(batches, 1), f"{epoch}/{self._total}")

    def epoch(self, metrics: dict[str, Any]) -> None:
        """Fill the bar of the batches, and show the test accuracy beside that of the epochs."""
        done = metrics["epoch"] + 1
        self._test = f"test {figure(metrics.get('test_accuracy'), '.1f')} %  "
        self._move_batches(
            self._per_epoch,
            self._per_epoch,
            metrics.get("train_loss"),
            metrics.get("train_accuracy"),
            metrics.get("images_per_second"),
        )
        self._move_epochs(done, f"{done}/{self._total}")

    def close(self) -> None:
        """Leave the bars as they are, and give the terminal back."""
        self._bars.stop()

    def _move_batches(
        self,
        number: int,
        batches: int,
        loss: float | None,
        accuracy: float | None,
        images_per_second: float | None,
    ) -> None:
        facts = (
            f"loss {figure(loss, '.3g')}  {figure(accuracy, '.1f')} %  "
            f"{figure(images_per_second, ',.0f')} images/s"
        )
        self._bars.update(
            self._batches,
            total=batches,
            completed=number,
            count=f"{number}/{batches}",
            facts=facts,
        )

    def _move_epochs(self, done: float, count: str) -> None:
        facts = f"{self._test}{self._left.text(done)} left"
        self._bars.update(self._epochs, completed=done, count=count, facts=facts)

    def _print(self, text: str, style: str | None = None) -> None:
        # No markup: a path may have brackets.
        self._bars.console.print(text, style=style, markup=False, highlight=False)


def resumed_line(epoch: int, batch: int, epochs: int, batches: int) -> str:
    """Return where a run is taken up.

    Example:
        >>> from stochbatch.training.progress_bars import resumed_line
        >>> resumed_line(4, 7, 30, 11)
        'resumed: 4 of 30 epochs and 7 of 11 batches are done'
    """
    within = f" and {batch} of {batches} batches" if batch else ""
    return f"resumed: {epoch} of {epochs} epochs{within} are done"


def figure(value: float | None, form: str) -> str:
    """Return a number in a form, or a dash if it is none.

    Example:
        >>> from stochbatch.training.progress_bars import figure
        >>> figure(1240.4, ",.0f"), figure(float("nan"), ".1f"), figure(None, ".1f")
        ('1,240', '-', '-')
    """
    return UNKNOWN if value is None or not math.isfinite(value) else format(value, form)
