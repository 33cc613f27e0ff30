"""Everything that moves weights; depends on torch alone."""

from stochbatch.optim.acc_sgd import AccSGD
from stochbatch.optim.alternating import AlternatingSGD
from stochbatch.optim.coins import uniform
from stochbatch.optim.entropy_sgd import EntropySGD
from stochbatch.optim.exact import ExactSBS
from stochbatch.optim.kinds import KINDS, param_groups
from stochbatch.optim.methods import Method
from stochbatch.optim.probability import update_probability
from stochbatch.optim.report import LayerReport, LayerRow, SlowLayersWarning
from stochbatch.optim.sbs import SBS
from stochbatch.optim.schedules import SigmoidLR
from stochbatch.registry import METHODS, SCHEDULES

__all__ = [
    "KINDS",
    "METHODS",
    "SBS",
    "SCHEDULES",
    "AccSGD",
    "AlternatingSGD",
    "EntropySGD",
    "ExactSBS",
    "LayerReport",
    "LayerRow",
    "Method",
    "SigmoidLR",
    "SlowLayersWarning",
    "param_groups",
    "uniform",
    "update_probability",
]
