"""When to compile a step, and what to do when that fails."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any

from torch import Tensor


class UnavailableError(RuntimeError):
    """Why a compiled step cannot be had on this machine."""


def wanted(groups: Sequence[dict[str, Any]], device_types: Sequence[str]) -> bool:
    """Return whether to compile the steps of parameters on devices of these types."""
    members: list[Tensor] = [weight for group in groups for weight in group["params"]]
    fused = groups[0]["fused"]
    return fused is not False and bool(members) and members[0].device.type in device_types


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
