"""TensorBoard's event files."""

from __future__ import annotations

from typing import Any

from stochbatch.optional import optional
from stochbatch.training.exceptions import RunError
from stochbatch.training.observers import Observer, Start


class TensorBoard(Observer):
    """Writes metrics, and for SBS those of every layer, to ``events/`` in the run's folder.

    Raises:
        ModuleNotFoundError: TensorBoard is not installed.
        RunError: the files cannot be opened.
    """

    def __init__(self) -> None:
        optional("tensorboard", "tensorboard")  # now, and not in the midst of a start
        self._writer: Any = None

    def on_start(self, start: Start) -> None:
        """Open the files; steps that an earlier process did after its last save are dropped."""
        from torch.utils.tensorboard import SummaryWriter

        folder = start.folder / "events"
        try:
            self._writer = SummaryWriter(str(folder), purge_step=start.epoch)
        except OSError as error:
            raise RunError(f"cannot write to {folder}: {error.strerror or error}") from error
        self._writer.add_text("trial", start.trial.hash, start.epoch)

    def on_epoch(self, metrics: dict[str, Any]) -> None:
        """Write the numbers of an epoch."""
        epoch = metrics["epoch"]
        for name, value in metrics.items():
            if isinstance(value, float | int) and name != "epoch":
                self._writer.add_scalar(name, value, epoch)
        for layer in metrics.get("layers", []):
            for name in ("probability", "batches"):
                if layer[name] is not None:
                    self._writer.add_scalar(f"{name}/{layer['name']}", layer[name], epoch)

    def close(self) -> None:
        """Close the files."""
        if self._writer is not None:
            self._writer.close()
