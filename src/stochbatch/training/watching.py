"""What a training tells those who watch it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stochbatch.training.result import Result
    from stochbatch.training.trial import Trial


class Progress:
    """A watcher that does nothing; subclasses show what they are told."""

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
        """A training begins, or goes on, at this epoch and batch of so many an epoch."""

    def batch(
        self,
        epoch: int,
        number: int,
        batches: int,
        loss: float,
        accuracy: float,
        images_per_second: float,
    ) -> None:
        """So many batches of an epoch are done; told a few times a second at most."""

    def epoch(self, metrics: dict[str, Any]) -> None:
        """An epoch is done and evaluated: its line of ``metrics.jsonl``."""

    def end(self, result: Result) -> None:
        """The training is over, now or long since."""

    def close(self) -> None:
        """Nothing more will be told, whatever happened."""


class Unfailing(Progress):
    """Tells another watcher, until the place where that one writes is gone.

    A terminal that was closed, or a pipe that nobody reads, is no reason to stop a training.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def begin(self, *arguments: Any, **place: Any) -> None:
        """Tell it."""
        self._tell("begin", *arguments, **place)

    def batch(self, *arguments: Any) -> None:
        """Tell it."""
        self._tell("batch", *arguments)

    def epoch(self, metrics: dict[str, Any]) -> None:
        """Tell it."""
        self._tell("epoch", metrics)

    def end(self, result: Result) -> None:
        """Tell it."""
        self._tell("end", result)

    def close(self) -> None:
        """Tell it."""
        self._tell("close")

    def _tell(self, what: str, *arguments: Any, **place: Any) -> None:
        try:
            getattr(self._progress, what)(*arguments, **place)
        except OSError:
            self._progress = Progress()
