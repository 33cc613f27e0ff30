"""Checks of a network's options: what was given, what is allowed."""

from __future__ import annotations

from stochbatch.checks import check_count, check_real
from stochbatch.nets.dropout import DROPOUTS


def check_options(
    classes: object, channels: object, width: float, dropout: object, dropout_rate: float
) -> None:
    """Raise ``TypeError`` or ``ValueError`` for the first option that is not allowed."""
    check_count("classes", classes)
    check_count("channels", channels)
    check_real("width", width)
    if width <= 0:
        raise ValueError(f"width must be above 0, got {width}")
    if dropout is not None and dropout not in DROPOUTS:
        raise ValueError(f"dropout must be None or one of {DROPOUTS}, got {dropout!r}")
    check_real("dropout_rate", dropout_rate)
    if not 0 <= dropout_rate < 1:
        raise ValueError(f"dropout_rate must be in [0, 1), got {dropout_rate}")
