"""Observers: callbacks that watch a training, such as progress bars and TensorBoard."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from stochbatch.training.result import Result
    from stochbatch.training.trial import Trial


class Start(NamedTuple):
    """Where a training starts, or resumes."""

    trial: Trial
    folder: Path
    epoch: int
    """Epochs that an earlier process did."""
    batch: int
    """Batches that it did in the epoch after those."""
    batches: int
    """Batches per epoch."""
    note: str | None = None
    """Anything unusual, such as a damaged checkpoint."""

    @property
    def resumed(self) -> bool:
        """Whether an earlier process did a part of it."""
        return bool(self.epoch or self.batch)


class Observer:
    """Watches a training. Subclasses override what they need; by default nothing happens.

    An ``OSError`` of an observer does not stop the training; other exceptions do.
    """

    def on_start(self, start: Start) -> None:
        """The training starts or resumes. Not called for a run that has finished already."""

    def on_batch(self, metrics: dict[str, Any]) -> None:
        """Some batches are done; called at most five times per second.

        ``metrics`` has ``epoch``, ``batch`` (how many are done), ``batches``, and over the epoch so
        far ``train_loss``, ``train_accuracy`` and ``images_per_second``.
        """

    def on_epoch(self, metrics: dict[str, Any]) -> None:
        """An epoch is done, evaluated and saved; ``metrics`` is its line of ``metrics.jsonl``."""

    def on_end(self, result: Result) -> None:
        """The training has finished or diverged, now or in an earlier call."""

    def close(self) -> None:
        """The last call, whatever happened."""


class Observers(Observer):
    """Several observers as one that never stops a training.

    A closed terminal, a pipe that nobody reads or a full disk is no reason to lose it.
    """

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._all = tuple(observers)

    def __len__(self) -> int:
        return len(self._all)

    def on_start(self, start: Start) -> None:  # noqa: D102
        self._tell("on_start", start)

    def on_batch(self, metrics: dict[str, Any]) -> None:  # noqa: D102
        self._tell("on_batch", metrics)

    def on_epoch(self, metrics: dict[str, Any]) -> None:  # noqa: D102
        self._tell("on_epoch", metrics)

    def on_end(self, result: Result) -> None:  # noqa: D102
        self._tell("on_end", result)

    def close(self) -> None:  # noqa: D102
        self._tell("close")

    def _tell(self, method: str, *arguments: Any) -> None:
        for observer in self._all:
            with suppress(OSError):
                getattr(observer, method)(*arguments)


class IgnoresLostStreams:
    """Passes every call on to a watcher, and ignores its ``OSError``."""

    def __init__(self, watcher: Any) -> None:
        self.watcher = watcher

    def __getattribute__(self, name: str) -> Any:
        method = getattr(object.__getattribute__(self, "watcher"), name)

        def tell(*arguments: Any, **named: Any) -> None:
            with suppress(OSError):
                method(*arguments, **named)

        return tell
