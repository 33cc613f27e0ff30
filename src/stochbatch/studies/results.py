"""What a study has left so far, cell by cell. Reads folders of runs; never trains."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stochbatch.studies.cell import Cell
from stochbatch.studies.grid import Study
from stochbatch.studies.scales import Scale
from stochbatch.training import Result, RunError, Trial
from stochbatch.training.run_folder import RunFolder, read_result

Status = Literal["finished", "diverged", "failed", "missing"]

ERROR = "error.json"
"""Written by an engine into the folder of a run that failed."""


@dataclass(frozen=True)
class Outcome:
    """One trial of a cell."""

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
    def metrics(self) -> list[dict[str, Any]]:
        """One dict per epoch, as in ``metrics.jsonl``; not kept, as a study has thousands."""
        return RunFolder(self.folder, self.trial).metrics


@dataclass(frozen=True)
class CellOutcomes:
    """A cell with its trials, in the order of their seeds."""

    cell: Cell
    outcomes: tuple[Outcome, ...]

    @property
    def done(self) -> tuple[Outcome, ...]:
        """The trials that are over, finished or diverged."""
        return tuple(outcome for outcome in self.outcomes if outcome.result is not None)


@dataclass(frozen=True)
class StudyResults:
    """A study at a scale, as far as it has been run."""

    study: Study
    scale: Scale
    root: Path
    cells: tuple[CellOutcomes, ...]
    narrowed: str = ""
    """How much of the study this is, if it is not all of it."""

    @property
    def trials(self) -> list[Outcome]:
        """The distinct trials: two cells may stand on the same ones."""
        found = {outcome.trial.hash: outcome for cell in self.cells for outcome in cell.outcomes}
        return list(found.values())

    @property
    def labels(self) -> dict[str, str]:
        """By hash: each trial's cell and seed, without axes on which there is a single label."""
        cells = [cell.cell.coordinates for cell in self.cells]
        axes = [axis for axis in cells[0] if len({cell[axis] for cell in cells}) > 1]
        found: dict[str, str] = {}
        for cell in self.cells:
            for outcome in cell.outcomes:
                parts = [f"{axis} {cell.cell.coordinates[axis]}" for axis in axes]
                text = ", ".join([*parts, f"seed {outcome.seed}"])
                found.setdefault(outcome.trial.hash, text)
        return found

    @property
    def missing(self) -> list[Trial]:
        """The distinct trials that are not over, seed by seed."""
        missing = [outcome.trial for outcome in self.trials if outcome.result is None]
        return sorted(missing, key=lambda trial: trial.seed)


def collect(
    study: Study,
    scale: Scale,
    root: str | Path,
    *,
    only: Mapping[str, Sequence[str]] | None = None,
    named: Sequence[str] = (),
    repetitions: int | None = None,
) -> StudyResults:
    """Return what the folders under ``root`` say about a study.

    Args:
        study: the study.
        scale: at which scale.
        root: the folder of all runs.
        only: labels to keep, by the name of the axis.
        named: of what is left, the cells to keep, by patterns of their names.
        repetitions: trials of each cell; by default the study's, or else the scale's.
    """
    root = Path(root)
    usual = study.repetitions or scale.repetitions
    count = repetitions or usual
    cells = study.cells(scale, only, named)
    parts = [
        f"{part} of {whole} {what}"
        for part, whole, what in (
            (len(cells), len(study.cells(scale)), "cells"),
            (count, usual, "trials a cell"),
        )
        if part < whole
    ]
    study.check_size(len(cells), count)
    study.trials(cells, 1)  # refuses what cannot be, with the cell's name
    return StudyResults(
        study,
        scale,
        root,
        tuple(
            CellOutcomes(cell, tuple(outcome_of(cell.trial(seed), root) for seed in range(count)))
            for cell in cells
        ),
        ", ".join(parts),
    )


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
