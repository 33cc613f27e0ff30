"""What the folder of one trial says: its result, its error, or nothing yet."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stochbatch.training import Accuracy, Result, RunError, Trial
from stochbatch.training.run_folder import RunFolder, read_result

Status = Literal["finished", "diverged", "failed", "missing"]

ERROR = "error.json"
"""Written by an engine into the folder of a run that failed."""


@dataclass(frozen=True)
class Outcome:
    """One trial of a study."""

    trial: Trial
    folder: Path
    status: Status
    result: Result | None = None
    error: str | None = None

    @property
    def seed(self) -> int:
        """The trial's seed."""
        return self.trial.seed

    @property
    def accuracy(self) -> Accuracy | None:
        """What the trial reached; None if it is not over, or was never evaluated."""
        return None if self.result is None else self.result.accuracy

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One dict per epoch, as in ``metrics.jsonl``; not kept, as a study has thousands."""
        return RunFolder(self.folder, self.trial).metrics


def outcome_of(trial: Trial, root: Path) -> Outcome:
    """Return what the folder of a trial says; a result that is odd or another's has failed."""
    folder = root / trial.folder
    try:
        result = read_result(folder)
    except RunError as error:
        return Outcome(trial, folder, "failed", error=str(error))
    if result is None:
        what = read_error(folder, trial)
        return Outcome(trial, folder, "missing" if what is None else "failed", error=what)
    return Outcome(trial, folder, result.status, result)


def read_error(folder: Path, trial: Trial) -> str | None:
    """Return the error that an engine left in the folder of a trial, or None."""
    try:
        content = json.loads((folder / ERROR).read_bytes())
        found, error = content.get("trial_hash", trial.hash), str(content["error"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, AttributeError, RecursionError):
        return f"{folder / ERROR} is not an error that an engine wrote: remove it"
    if found != trial.hash:
        return f"{folder / ERROR} is of the trial {str(found)[:16]}: remove it"
    return error
