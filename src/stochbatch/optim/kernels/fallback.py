"""What to do when a compiled step cannot be had."""

from __future__ import annotations

import sys
import warnings


class UnavailableError(RuntimeError):
    """Why a compiled step cannot be had on this machine."""


def give_up(fused: bool | None, reason: UnavailableError) -> None:
    """Raise if a compiled step was asked for, warn if it would have been welcome."""
    if fused:
        raise RuntimeError(f"fused=True: {reason}") from reason
    warnings.warn(f"SBS takes slow, eager steps: {reason}", stacklevel=level_of_caller())


def level_of_caller() -> int:
    """Return how far up the first frame is that belongs neither to torch nor to this package."""
    level = 1
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in _OWN:
        frame = frame.f_back
        level += 1
    return level


_OWN = ("torch", "stochbatch")
