"""Pictures and tables made from what trainings left; nothing here trains."""

from stochbatch.report.curve import learning_curve

__all__ = ["learning_curve"]
