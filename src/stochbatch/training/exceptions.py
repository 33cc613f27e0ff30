"""What can go wrong with a run, each in one clear line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


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


def what_is_wrong(error: ValidationError) -> str:
    """Return the first thing that a schema refuses."""
    first = error.errors(include_input=False, include_url=False)[0]
    if "error" in first.get("ctx", {}):  # raised by a validator of ours
        return str(first["ctx"]["error"])
    where, text = ".".join(map(str, first["loc"])), first["msg"][0].lower() + first["msg"][1:]
    return f"{where}: {text}" if where else text
