"""Observers: callbacks that watch a training, such as progress bars and TensorBoard."""

from __future__ import annotations

from collections.abc import Callable
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

    Example:
        >>> import tempfile
        >>> from stochbatch.training import Observer, Trial, run
        >>> class Printer(Observer):
        ...     def on_epoch(self, metrics):
        ...         print("epoch", metrics["epoch"])
        >>> trial = Trial(method="sbs", epochs=2, share=0.25, batch_size=32)
        >>> with tempfile.TemporaryDirectory() as root:
        ...     result = run(trial, root, observers=[Printer()])
        epoch 0
        epoch 1
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


class Unfailing:
    """Passes every call on to some watchers, whatever becomes of the places where they write.

    A closed terminal, a pipe that nobody reads or a full disk must not stop a training.
    """

    def __init__(self, *watchers: object) -> None:
        self._watchers = watchers

    def __bool__(self) -> bool:
        return bool(self._watchers)

    def __getattr__(self, name: str) -> Callable[..., None]:
        def tell(*arguments: Any, **named: Any) -> None:
            for watcher in self._watchers:
                with suppress(OSError):
                    getattr(watcher, name)(*arguments, **named)

        return tell
