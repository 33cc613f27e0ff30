"""TensorBoard's event files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stochbatch.training.exceptions import RunError


class Events:
    """TensorBoard's event files, or nothing."""

    def __init__(self, writer: Any = None) -> None:
        self._writer = writer

    def write(self, metrics: dict[str, Any]) -> None:
        """Write an epoch's numbers, and for SBS those of every layer."""
        if self._writer is None:
            return
        epoch = metrics["epoch"]
        for name, value in metrics.items():
            if isinstance(value, float | int) and name != "epoch":
                self._writer.add_scalar(name, value, epoch)
        for layer in metrics.get("layers", []):
            for name in ("probability", "batches"):
                if layer[name] is not None:
                    self._writer.add_scalar(f"{name}/{layer['name']}", layer[name], epoch)


def check_tensorboard() -> None:
    """Raise a `RunError` if there is no TensorBoard."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError:
        raise RunError(
            "TensorBoard is not installed: pip install 'stochbatch[tensorboard]'"
        ) from None


@contextmanager
def events(folder: Path, wanted: bool, epoch: int) -> Iterator[Events]:
    """Enter event files in a run's folder.

    Args:
        folder: the folder of the run.
        wanted: whether there should be any.
        epoch: what they have of this epoch and later ones is written anew.
    """
    if not wanted:
        yield Events()
        return
    check_tensorboard()
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder / "events"), purge_step=epoch)
    try:
        yield Events(writer)
    finally:
        writer.close()
