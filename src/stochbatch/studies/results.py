"""What a study has left so far, cell by cell. Reads folders of runs; never trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stochbatch.studies.cell import Cell, StudyError
from stochbatch.studies.grid import Study
from stochbatch.studies.outcome import Outcome, outcome_of
from stochbatch.studies.scales import Scale
from stochbatch.studies.tuning import Tuned, Tuning, tune
from stochbatch.training import Trial


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
    tuned: tuple[Tuned, ...] = ()
    """One per cell, if the study tunes them."""

    @property
    def trials(self) -> list[Outcome]:
        """The distinct trials behind the cells: two cells may stand on the same ones."""
        found = {outcome.trial.hash: outcome for cell in self.cells for outcome in cell.outcomes}
        return list(found.values())

    @property
    def labels(self) -> dict[str, str]:
        """By hash: each trial's cell and seed, without axes on which there is a single label."""
        cells = [cell.cell.coordinates for cell in self.cells]
        axes = [axis for axis in cells[0] if len({cell[axis] for cell in cells}) > 1]
        found: dict[str, str] = {}

        def note(cell: Cell, outcome: Outcome, *more: str) -> None:
            parts = [f"{axis} {cell.coordinates[axis]}" for axis in axes]
            found.setdefault(outcome.trial.hash, ", ".join([*parts, *more]))

        for one in self.cells:
            for outcome in one.outcomes:
                note(one.cell, outcome, f"seed {outcome.seed}")
        for cell in self.tuned:
            for tried in cell.tried:
                for number, outcome in enumerate(tried.outcomes):
                    note(cell.cell, outcome, str(tried), f"tuning seed {number}")
        return found

    @property
    def missing(self) -> list[Trial]:
        """The distinct trials that can be run now and are not over, seed by seed.

        Of a cell that is being tuned these are trials of tuning; what comes after them depends on
        how they end.
        """
        tuning = [outcome for cell in self.tuned for outcome in cell.trials]
        found = {
            outcome.trial.hash: outcome.trial
            for outcome in (*tuning, *self.trials)
            if outcome.result is None
        }
        return sorted(found.values(), key=lambda trial: trial.seed)


def collect(
    study: Study,
    scale: Scale,
    root: str | Path,
    *,
    only: Mapping[str, Sequence[str]] | None = None,
    repetitions: int | None = None,
) -> StudyResults:
    """Return what the folders under ``root`` say about a study.

    Args:
        study: the study.
        scale: at which scale.
        root: the folder of all runs.
        only: labels to keep, by the name of the axis.
        repetitions: trials of each cell; by default the study's, or else the scale's.
    """
    root, usual, cells = Path(root), study.planned(scale), study.cells(scale, only)
    count = repetitions or usual
    sizes = (len(cells), len(study.cells(scale)), "cells"), (count, usual, "trials per cell")
    narrowed = [f"{part} of {whole} {what}" for part, whole, what in sizes if part < whole]
    study.check_size(len(cells), count)
    study.trials(cells, 1)  # refuses what cannot be, with the cell's name
    tuned = tuple(_tuned(study, cell, study.tuning, root) for cell in cells if study.tuning)
    if tuned:
        cells = [_at_choice(one) for one in tuned]
    # What a cell that is still being tuned will train is not known.
    unknown = {one.cell.key for one in tuned if one.winner is None}
    found = []
    for cell in cells:
        seeds = range(0 if cell.key in unknown else count)
        outcomes = tuple(outcome_of(cell.trial(seed), root) for seed in seeds)
        found.append(CellOutcomes(cell, outcomes))
    return StudyResults(study, scale, root, tuple(found), ", ".join(narrowed), tuned)


def _tuned(study: Study, cell: Cell, tuning: Tuning, root: Path) -> Tuned:
    try:
        return tune(cell, tuning, root)
    except ValueError as error:
        raise StudyError(f"{study.name}, {cell}: {error}") from None


def _at_choice(tuned: Tuned) -> Cell:
    """Return a cell with the settings that tuning chose; they are not the article's."""
    if tuned.winner is None:
        return replace(tuned.cell, published=None)
    if not tuned.winner.settings:
        return tuned.cell
    return replace(tuned.cell, fields=tuned.winner.fields, published=None)
