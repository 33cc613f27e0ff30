"""Everything that moves weights; depends on torch alone."""

from stochbatch.optim.article.algorithm1 import ExactSBS
from stochbatch.optim.baselines.acc_sgd import AccSGD
from stochbatch.optim.baselines.alternating import AlternatingSGD
from stochbatch.optim.baselines.entropy_sgd import EntropySGD
from stochbatch.optim.coins import uniform
from stochbatch.optim.kinds import KINDS, param_groups
from stochbatch.optim.layer_report import LayerReport, LayerRow, SlowLayersWarning
from stochbatch.optim.masked import Masked
from stochbatch.optim.probability import update_probability
from stochbatch.optim.sbs import SBS
from stochbatch.optim.schedules import SigmoidLR

__all__ = [
    "KINDS",
    "SBS",
    "AccSGD",
    "AlternatingSGD",
    "EntropySGD",
    "ExactSBS",
    "LayerReport",
    "LayerRow",
    "Masked",
    "SigmoidLR",
    "SlowLayersWarning",
    "param_groups",
    "uniform",
    "update_probability",
]
