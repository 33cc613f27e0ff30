"""Checks of options: what was given, what is allowed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any


def check_real(name: str, value: object) -> None:
    """Raise unless ``value`` is a finite number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}: {value!r}")
    if not math.isfinite(value):
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
        raise TypeError(f"{name} must be an int, got {type(value).__name__}: {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be 1 or more, got {value}")


def check_bool(name: str, value: object, allowed: str = "True or False") -> None:
    """Raise unless ``value`` is a bool."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be {allowed}, got {type(value).__name__}: {value!r}")


def check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raise unless ``value`` is one of ``allowed``."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {allowed}, got {value!r}")


def check_momentum(momentum: float) -> None:
    """Raise unless ``momentum`` is a number in [0, 1)."""
    check_real("momentum", momentum)
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum must be in [0, 1), got {momentum}")


def check_agreement(groups: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    """Raise unless the options ``names``, which decide a step as a whole, agree in all groups."""
    for name in names:
        given = [group[name] for group in groups]
        if any(value != given[0] for value in given):
            raise ValueError(f"{name} must be the same in all parameter groups, got {given}")


def check_seed(seed: object) -> None:
    """Raise unless ``seed`` is an int in [0, 2**64)."""
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"seed must be an int, got {type(seed).__name__}: {seed!r}")
    if not 0 <= seed < 1 << 64:
        raise ValueError(f"seed must be in [0, 2**64), got {seed}")
