"""Stochastic batch size: an optimizer that gives every weight its own, random batch size."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stochbatch.optim import (
        KINDS,
        SBS,
        LayerReport,
        LayerRow,
        Masked,
        SlowLayersWarning,
        param_groups,
        uniform,
        update_probability,
    )

__version__ = "0.1.0"

__all__ = [
    "KINDS",
    "SBS",
    "LayerReport",
    "LayerRow",
    "Masked",
    "SlowLayersWarning",
    "__version__",
    "param_groups",
    "uniform",
    "update_probability",
]


# The names are fetched when they are asked for, so that the command line can print its help
# without waiting for torch.
def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("stochbatch.optim"), name)
    raise AttributeError(f"module 'stochbatch' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
