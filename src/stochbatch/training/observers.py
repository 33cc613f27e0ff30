"""What a training tells those who watch it."""

from __future__ import annotations

from contextlib import suppress
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


class IgnoresLostStreams:
    """Passes every call on to another watcher, whatever becomes of the place where that one writes.

    A closed terminal, a pipe that nobody reads or a full disk under a log must not stop a training.
    """

    def __init__(self, watcher: Any) -> None:
        self.watcher = watcher

    def __getattribute__(self, name: str) -> Any:
        method = getattr(object.__getattribute__(self, "watcher"), name)

        def tell(*arguments: Any, **named: Any) -> None:
            with suppress(OSError):
                method(*arguments, **named)

        return tell


class Unfailing(IgnoresLostStreams, Progress):
    """A watcher of a training that never stops it."""
