"""Stochastic batch size: an optimizer that gives every weight its own, random batch size."""

from stochbatch.optim import (
    KINDS,
    SBS,
    LayerReport,
    LayerRow,
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
    "__version__",
    "param_groups",
    "uniform",
    "update_probability",
]
