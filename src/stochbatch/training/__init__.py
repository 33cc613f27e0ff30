"""One trial: build it, run it, checkpoint it, resume it."""

from stochbatch.registry import METHODS, SCHEDULES
from stochbatch.training.exceptions import Interrupted, RunError
from stochbatch.training.methods import Method
from stochbatch.training.observers import Progress
from stochbatch.training.result import Accuracy, DataFacts, Result
from stochbatch.training.run_folder import RunFolder, read_run
from stochbatch.training.runner import run
from stochbatch.training.trial import Trial, TrialError

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
