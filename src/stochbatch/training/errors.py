"""What can go wrong with a run, each in one clear line."""

from __future__ import annotations

from pathlib import Path


class RunError(RuntimeError):
    """A run that cannot go on as it is: what is wrong, and what to do."""

    told: bool = False
    """Whether another process of the same training says it, so that it is said once."""


class LostProcess(RunError):  # noqa: N818 (a fact about others, not an error of this process)
    """Another process of the same training is gone, and nothing can go on without it."""

    def __init__(self, saved: str | None) -> None:
        then = f"{saved}, and the same command goes on from there" if saved else "nothing is saved"
        super().__init__(f"another process of this training died, or does not answer; {then}")


class Interrupted(RunError):  # noqa: N818 (not an error, an order)
    """A run was told to stop by a signal; everything so far is saved."""

    def __init__(self, signal_number: int, folder: Path) -> None:
        super().__init__(f"stopped by signal {signal_number}; everything so far is in {folder}")
        self.signal_number = signal_number
        self.folder = folder
