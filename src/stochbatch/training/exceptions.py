"""What can go wrong with a run, each in one clear line."""

from __future__ import annotations

from pathlib import Path


class RunError(RuntimeError):
    """A run that cannot go on as it is: one line that says what is wrong, and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.splitlines()))  # an odd file may have put breaks in


class Interrupted(RunError):  # noqa: N818 (not an error, an order)
    """A run was told to stop by a signal; everything so far is saved."""

    def __init__(self, signal_number: int, folder: Path) -> None:
        super().__init__(f"stopped by signal {signal_number}; everything so far is in {folder}")
        self.signal_number = signal_number
        self.folder = folder

    def __reduce__(self) -> tuple[type[Interrupted], tuple[int, Path]]:
        """Copy it to another process, such as the driver of a cluster."""
        return type(self), (self.signal_number, self.folder)
