"""Checks of options: what was given, what is allowed."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any


def shown(value: object) -> str:
    """Return what to show of a value in an error: one line, not a long one."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:60]}..."


def check_real(name: str, value: object) -> None:
    """Raise unless ``value`` is a finite number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}: {shown(value)}")
    number: Any = value
    if not abs(number) <= sys.float_info.max:  # where math.isfinite fails for a larger int
        raise ValueError(f"{name} must be finite, got {value}")


def check_not_negative(name: str, value: float) -> None:
    """Raise unless ``value`` is a number of 0 or more."""
    check_real(name, value)
    if value < 0:
        raise ValueError(f"{name} must be 0 or more, got {value}")


def check_positive(name: str, value: float) -> None:
    """Raise unless ``value`` is a number above 0."""
    check_real(name, value)
    if value <= 0:
        raise ValueError(f"{name} must be above 0, got {value}")


def check_count(name: str, value: object) -> None:
    """Raise unless ``value`` is an int of 1 or more."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}: {shown(value)}")
    if value < 1:
        raise ValueError(f"{name} must be 1 or more, got {value}")


def check_bool(name: str, value: object, allowed: str = "True or False") -> None:
    """Raise unless ``value`` is a bool."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be {allowed}, got {type(value).__name__}: {shown(value)}")


def check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raise unless ``value`` is one of ``allowed``."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name} must be one of {allowed}, got {shown(value)}")


def check_momentum(momentum: float) -> None:
    """Raise unless ``momentum`` is a number in [0, 1); begins with torch's words."""
    check_real("momentum", momentum)
    if not 0 <= momentum < 1:
        raise ValueError(f"Invalid momentum value: {momentum} (momentum must be in [0, 1))")


def check_weight_decay(weight_decay: float) -> None:
    """Raise unless ``weight_decay`` is a number of 0 or more; begins with torch's words."""
    check_real("weight_decay", weight_decay)
    if weight_decay < 0:
        raise ValueError(
            f"Invalid weight_decay value: {weight_decay} (weight_decay must be 0 or more)"
        )


def check_agreement(groups: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    """Raise unless the options ``names``, which decide a step as a whole, agree in all groups."""
    for name in names:
        given = [group[name] for group in groups]
        if any(value != given[0] for value in given):
            raise ValueError(f"{name} must be the same in all parameter groups, got {given}")


def check_seed(seed: object) -> None:
    """Raise unless ``seed`` is an int in [0, 2**64)."""
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"seed must be an int, got {type(seed).__name__}: {shown(seed)}")
    if not 0 <= seed < 1 << 64:
        raise ValueError(f"seed must be in [0, 2**64), got {seed}")
