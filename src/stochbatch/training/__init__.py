"""One trial: build it, run it, checkpoint it, resume it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stochbatch.registry import METHODS, SCHEDULES
from stochbatch.training.exceptions import Interrupted, RunError
from stochbatch.training.observers import Observer
from stochbatch.training.trial import Trial, TrialError

if TYPE_CHECKING:
    from stochbatch.training.builders import build_network, build_optimizer
    from stochbatch.training.methods import Method
    from stochbatch.training.result import Accuracy, DataFacts, Result
    from stochbatch.training.run_folder import RunFolder, read_run
    from stochbatch.training.runner import run

__all__ = [
    "METHODS",
    "SCHEDULES",
    "Accuracy",
    "DataFacts",
    "Interrupted",
    "Method",
    "Observer",
    "Result",
    "RunError",
    "RunFolder",
    "Trial",
    "TrialError",
    "build_network",
    "build_optimizer",
    "read_run",
    "run",
]

# These need torch, and are imported when they are first used: trials are read without it.
_WITH_TORCH = {
    **dict.fromkeys(("build_network", "build_optimizer"), "builders"),
    **dict.fromkeys(("Accuracy", "DataFacts", "Result"), "result"),
    **dict.fromkeys(("RunFolder", "read_run"), "run_folder"),
    "Method": "methods",
    "run": "runner",
}


def __getattr__(name: str) -> Any:
    if name in _WITH_TORCH:
        return getattr(import_module(f"stochbatch.training.{_WITH_TORCH[name]}"), name)
    raise AttributeError(f"module 'stochbatch.training' has no attribute {name!r}")
