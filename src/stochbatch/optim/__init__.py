"""Everything that moves weights; depends on torch alone."""

from stochbatch.optim.coins import uniform
from stochbatch.optim.kinds import KINDS, param_groups
from stochbatch.optim.probability import update_probability
from stochbatch.optim.report import LayerReport, LayerRow
from stochbatch.optim.sbs import SBS

__all__ = [
    "KINDS",
    "SBS",
    "LayerReport",
    "LayerRow",
    "param_groups",
    "uniform",
    "update_probability",
]
