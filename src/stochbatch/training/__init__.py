"""One trial: build it, run it, checkpoint it, resume it."""

from stochbatch.training.trial import Trial, TrialError

__all__ = ["Trial", "TrialError"]
