"""Checks of a network's options: what was given, what is allowed."""

from __future__ import annotations

import math
from numbers import Real

from stochbatch.nets.dropout import DROPOUTS


def check_options(
    classes: object, channels: object, width: object, dropout: object, dropout_rate: object
) -> None:
    """Raise ``TypeError`` or ``ValueError`` for the first option that is not allowed."""
    _check_count("classes", classes)
    _check_count("channels", channels)
    if _finite("width", width) <= 0:
        raise ValueError(f"width must be above 0, got {width}")
    if dropout is not None and dropout not in DROPOUTS:
        raise ValueError(f"dropout must be None or one of {DROPOUTS}, got {dropout!r}")
    if not 0 <= _finite("dropout_rate", dropout_rate) < 1:
        raise ValueError(f"dropout_rate must be in [0, 1), got {dropout_rate}")


def _check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}: {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be 1 or more, got {value}")


def _finite(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}: {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}")
    return float(value)
