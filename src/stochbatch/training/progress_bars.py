"""Progress on a terminal, in a bar, and elsewhere, in plain lines."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import IO, TYPE_CHECKING, Any

from stochbatch.training.observers import Observer, Start

if TYPE_CHECKING:
    from rich.console import Console

UNKNOWN = "-"


def choose_progress(quiet: bool = False, stream: IO[str] | None = None) -> Observer:
    """Return a bar for a terminal, plain lines for a file or a pipe, nothing for ``quiet``.

    By default they go to standard error, so that what a command prints can be redirected.
    """
    if quiet:
        return Observer()
    stream = sys.stderr if stream is None else stream
    if stream.isatty() and os.environ.get("TERM") != "dumb":
        from rich.console import Console

        return RichProgress(Console(file=stream))
    return PlainProgress(stream)


class PlainProgress(Observer):
    """One line per epoch."""

    def __init__(self, stream: IO[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock

    def on_start(self, start: Start) -> None:
        """Say where the run is resumed, and anything unusual."""
        self._epochs, self._batches = start.trial.epochs, start.batches
        self._before, self._began = start.epoch + start.batch / start.batches, self._clock()
        if start.note:
            self._print(start.note)
        if start.resumed:
            within = f" and {start.batch} of {start.batches} batches" if start.batch else ""
            self._print(f"resumed: {start.epoch} of {self._epochs} epochs{within} are done")

    def on_epoch(self, metrics: dict[str, Any]) -> None:
        """Print the line of the epoch."""
        done = metrics["epoch"] + 1
        self._print(
            f"epoch {done}/{self._epochs}  {_trained(metrics)}  {_tested(metrics)}  "
            f"lr {metrics['lr']:.3g}  {figure(metrics['images_per_second'], ',.0f')} images/s  "
            f"{self._left(done)} left"
        )

    def _left(self, done: float) -> str:
        """Return the time left, estimated from what this process did, not an earlier one."""
        if done <= self._before:
            return UNKNOWN
        each = (self._clock() - self._began) / (done - self._before)
        return str(timedelta(seconds=round(each * (self._epochs - done))))

    def _print(self, text: str) -> None:
        # Flushed, so that a file that is being followed shows an epoch when it is done.
        print(text, file=self._stream, flush=True)


class RichProgress(PlainProgress):
    """A bar of the epochs, and the numbers so far."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        from rich import progress

        super().__init__(console.file, clock)
        self._test = ""
        self._bars = progress.Progress(
            progress.TextColumn("epoch {task.completed:.2f}/{task.total}"),
            progress.BarColumn(bar_width=16),
            progress.TextColumn("{task.description}"),
            console=console,
        )

    def on_start(self, start: Start) -> None:
        """Show the bar."""
        super().on_start(start)
        self._bars.update(self._bars.add_task("", total=self._epochs), completed=self._before)
        self._bars.start()

    def on_batch(self, metrics: dict[str, Any]) -> None:
        """Move the bar."""
        self._move(metrics["epoch"] + metrics["batch"] / self._batches, metrics)

    def on_epoch(self, metrics: dict[str, Any]) -> None:
        """Move the bar, and show the test accuracy from now on."""
        self._test = f"  {_tested(metrics)}"
        self._move(metrics["epoch"] + 1, metrics)

    def close(self) -> None:
        """Leave the bar as it is, and give the terminal back."""
        self._bars.stop()

    def _move(self, done: float, metrics: dict[str, Any]) -> None:
        facts = f"{_trained(metrics)}{self._test}  {self._left(done)} left"
        self._bars.update(self._bars.task_ids[0], completed=done, description=facts)

    def _print(self, text: str) -> None:
        # No markup: a path may have brackets.
        self._bars.console.print(text, markup=False, highlight=False)


def _trained(metrics: dict[str, Any]) -> str:
    loss, accuracy = metrics["train_loss"], metrics["train_accuracy"]
    return f"loss {figure(loss, '.3g')}  train {figure(accuracy, '.1f')} %"


def _tested(metrics: dict[str, Any]) -> str:
    return f"test {figure(metrics.get('test_accuracy'), '.1f')} %"


def figure(value: float | None, form: str) -> str:
    """Return a number in a form, or a dash if there is none.

    Example:
        >>> from stochbatch.training.progress_bars import figure
        >>> figure(1240.4, ",.0f"), figure(float("nan"), ".1f"), figure(None, ".1f")
        ('1,240', '-', '-')
    """
    return UNKNOWN if value is None or not math.isfinite(value) else format(value, form)
