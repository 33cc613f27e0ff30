"""One trial: build it, run it, checkpoint it, resume it."""

from stochbatch.registry import METHODS, SCHEDULES
from stochbatch.training.errors import Interrupted, RunError
from stochbatch.training.folder import RunFolder, read_run
from stochbatch.training.methods import Method
from stochbatch.training.result import Accuracy, DataFacts, Result
from stochbatch.training.running import run
from stochbatch.training.trial import Trial, TrialError
from stochbatch.training.watching import Progress

__all__ = [
    "METHODS",
    "SCHEDULES",
    "Accuracy",
    "DataFacts",
    "Interrupted",
    "Method",
    "Progress",
    "Result",
    "RunError",
    "RunFolder",
    "Trial",
    "TrialError",
    "read_run",
    "run",
]
