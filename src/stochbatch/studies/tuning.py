r"""Tuning: the same number of settings tried for every method, on images that no verdict uses.

A study with a ``[tuning]`` table tunes each of its cells before its trials run::

    [tuning]
    axis = "method"
    budget = 8                                # settings tried per cell

    [tuning.spaces.SGD]                       # by label of that axis
    lr = { log = [0.001, 1] }

    [tuning.spaces.SBS]
    lr = { log = [0.001, 1] }                 # the same points, as it is the same range
    lambd = [-4, -1, 0]

A cell whose space is empty stays as it is.

All settings are tried with one seed; the best three of them, by validation accuracy, get two more
seeds; the highest mean over the three seeds wins, and of equal ones the earlier. The verdict comes
from other seeds, trained on all images and evaluated on the test images, which tuning never sees.

Everything follows from what lies in the run folders, so tuning resumes like any study.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from stochbatch.data import DATASETS
from stochbatch.registry import hint
from stochbatch.studies.cell import Cell
from stochbatch.studies.outcome import Outcome, outcome_of
from stochbatch.training import Trial

FIRST_SEED = 1_000_000
"""Of tuning; the seeds of verdicts are counted from 0."""
MOST_HELD_OUT = 5_000
"""Validation images, where the share leaves as many unused."""
HELD_OUT_SHARE = 0.2
"""Of the training images, where it does not."""
FEWEST_PER_CLASS = 10
"""Validation images, in the mean over the classes."""
DIGITS = 4
"""Decimal digits of a tried value, so that a person can type it."""
PRIMES = (2, 3, 5, 7, 11, 13)
FIELDS = ("lr", "weight_decay", "momentum", "batch_size")
"""Fields of a trial that can be tuned; any other name is a setting of the method."""

Value = bool | int | float | str


class Range(BaseModel):
    """Numbers between two ends, evenly by their logarithm or by themselves."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    log: tuple[float, float] | None = None
    linear: tuple[float, float] | None = None

    @model_validator(mode="after")
    def _check(self) -> Range:
        if (self.log is None) == (self.linear is None):
            raise ValueError("a range is { log = [low, high] } or { linear = [low, high] }")
        low, high = self.ends
        if not low < high or (self.log and low <= 0):
            needs = "0 < low < high (it is logarithmic)" if self.log else "low < high"
            raise ValueError(f"a range needs {needs}, got {low:g} to {high:g}")
        return self

    @property
    def ends(self) -> tuple[float, float]:
        """The smallest and the largest number."""
        return self.log or self.linear or (0.0, 0.0)

    def at(self, place: float) -> float:
        """Return the number at a place in [0, 1), rounded."""
        low, high = self.ends
        value = low * (high / low) ** place if self.log else low + (high - low) * place
        return rounded(value)


Space = dict[str, Range | list[Value]]


class Tuning(BaseModel):
    """How the cells of a study are tuned."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    axis: str = "method"
    budget: int = Field(default=8, ge=1, le=1000)
    """Settings tried per cell."""
    finalists: int = Field(default=3, ge=1)
    """How many of them get all seeds."""
    seeds: int = Field(default=3, ge=1, le=100)
    spaces: dict[str, Space]
    """By label of the axis, then by name."""

    @model_validator(mode="after")
    def _check(self) -> Tuning:
        for label, space in self.spaces.items():
            for name, values in space.items():
                if isinstance(values, list) and not values:
                    raise ValueError(f"the space of {name} for {label!r} has no value")
        if len(self._names) > len(PRIMES):
            raise ValueError(f"at most {len(PRIMES)} names can be tuned, got {len(self._names)}")
        return self

    @property
    def _names(self) -> list[str]:
        """All tuned names, the rate first, so that its points are the same in all studies."""
        found = {name for space in self.spaces.values() for name in space}
        return [name for name in FIELDS if name in found] + sorted(found - set(FIELDS))

    def check_labels(self, labels: Sequence[str]) -> None:
        """Raise if a label of the axis has no space, or a space no label."""
        for label in self.spaces:
            if label not in labels:
                raise ValueError(f"there is no {label!r} to tune{hint(label, labels)}")
        if missing := [label for label in labels if label not in self.spaces]:
            raise ValueError(
                f"{missing[0]!r} has no space in [tuning.spaces]: give one, or {{}} to leave it"
            )

    def points(self, label: str) -> list[dict[str, Value]]:
        """Return what is tried for a label; methods with one space get the same points."""
        space, names = self.spaces[label], self._names
        found = []
        for number in range(self.budget):
            point: dict[str, Value] = {}
            for name in (name for name in names if name in space):
                place, values = halton(number, names.index(name)), space[name]
                if isinstance(values, Range):
                    point[name] = values.at(place)
                else:
                    point[name] = values[int(place * len(values))]
            if point not in found:  # short lists repeat themselves
                found.append(point)
        return found


def halton(number: int, dimension: int) -> float:
    """Return a coordinate of a point of a scrambled Halton sequence, in [0, 1).

    The digits of the point's number, in a prime base, stand in reverse behind the point, each
    place permuted at random once and for all: any first points are spread evenly.

    Example:
        >>> from stochbatch.studies.tuning import halton
        >>> [round(halton(number, 0), 3) for number in range(4)]
        [0.894, 0.394, 0.644, 0.144]
    """
    base = PRIMES[dimension]
    value, weight = 0.0, 1.0
    for place in range(math.ceil(32 / math.log2(base))):
        number, digit = divmod(number, base)
        weight /= base
        texts = [f"halton {dimension} {place} {one}".encode() for one in range(base)]
        order = sorted(range(base), key=lambda one: blake2b(texts[one]).digest())
        value += weight * order[digit]
    return value


def rounded(value: float) -> float:
    """Return a number with few digits.

    Example:
        >>> from stochbatch.studies.tuning import rounded
        >>> rounded(0.0123456)
        0.01235
    """
    return float(f"{value:.{DIGITS}g}")


def tuned_fields(fields: Mapping[str, Any], point: Mapping[str, Value]) -> dict[str, Any]:
    """Return the fields of a trial at a tried point; a schedule ends as far below its rate."""
    result = dict(fields)
    settings = {name: value for name, value in point.items() if name not in FIELDS}
    result |= {name: value for name, value in point.items() if name in FIELDS}
    if settings:
        result["settings"] = {**result.get("settings", {}), **settings}
    if "lr" in point:
        untuned = Trial(**fields)
        end = untuned.schedule_settings.get("end_lr")
        if isinstance(end, float) and end:
            share = end / untuned.lr
            ends = {"end_lr": rounded(share * float(point["lr"]))}
            result["schedule_settings"] = {**result.get("schedule_settings", {}), **ends}
    return result


def validation_images(trial: Trial) -> int:
    """Return how many training images the tuning of a trial is evaluated on."""
    entry = DATASETS[trial.dataset]
    used = round(trial.share * entry.train.count)
    unused, fewest = entry.train.count - used, FEWEST_PER_CLASS * len(entry.classes)
    if unused >= fewest:
        return min(MOST_HELD_OUT, unused)
    return min(max(round(HELD_OUT_SHARE * used), fewest), used // 2)


@dataclass(frozen=True)
class Tried:
    """One setting that was tried for a cell."""

    settings: Mapping[str, Value]
    fields: Mapping[str, Any]
    """Of the trials that use it for a verdict."""
    outcomes: tuple[Outcome, ...]
    """By seed of tuning, as far as it got: the first, or all if it is a finalist."""

    @property
    def scores(self) -> list[float]:
        """Validation accuracy by seed; what diverged, or has none, is the worst there is."""
        return [
            one.accuracy.mean if one.status == "finished" and one.accuracy else -math.inf
            for one in self.outcomes
            if one.result is not None
        ]

    @property
    def mean(self) -> float:
        """Mean of the scores."""
        return sum(self.scores) / len(self.scores) if self.scores else -math.inf

    def __str__(self) -> str:
        return ", ".join(
            f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in self.settings.items()
        )


@dataclass(frozen=True)
class Tuned:
    """What tuning found for a cell, as far as it got."""

    cell: Cell
    label: str
    tried: tuple[Tried, ...]
    finalists: tuple[int, ...] = ()
    """Their places in ``tried``, best first by the first seed; empty before all are tried."""
    chosen: int | None = None
    """Place of the winner; None before tuning is over."""

    @property
    def winner(self) -> Tried | None:
        """What was chosen."""
        return None if self.chosen is None else self.tried[self.chosen]

    @property
    def trials(self) -> list[Outcome]:
        """All trials that tuning asks for so far."""
        return [outcome for tried in self.tried for outcome in tried.outcomes]

    @property
    def fickle(self) -> float | None:
        """How often another finalist would win if the tuning seeds were drawn again, in [0, 1].

        Over all draws, with replacement, of as many seeds as there are.
        """
        if self.chosen is None or len(self.finalists) < 2:
            return None
        scores = [self.tried[place].scores for place in sorted(self.finalists)]
        winner = sorted(self.finalists).index(self.chosen)
        draws = list(itertools.product(range(len(scores[0])), repeat=len(scores[0])))
        others = sum(
            _first_best([sum(one[seed] for seed in draw) for one in scores]) != winner
            for draw in draws
        )
        return others / len(draws)

    def at_edge(self, tuning: Tuning) -> list[str]:
        """Return the names whose chosen value is the first or the last that was tried.

        Of four values or fewer it often is, and says little.
        """
        found = []
        for name, values in tuning.spaces[self.label].items():
            if isinstance(values, Range) and self.winner is not None:
                tried = sorted({float(one.settings[name]) for one in self.tried})
                if len(tried) > 4 and self.winner.settings[name] in (tried[0], tried[-1]):
                    found.append(name)
        return found


def _first_best(values: Sequence[float]) -> int:
    return max(range(len(values)), key=values.__getitem__)  # of equal ones the first


def tune(cell: Cell, tuning: Tuning, root: Path) -> Tuned:
    """Return what the folders under ``root`` say on the tuning of a cell.

    Raises:
        ValueError: a space does not suit the method.
    """
    label = cell.coordinates[tuning.axis]
    if not tuning.spaces[label]:
        return Tuned(cell, label, (Tried({}, cell.fields, ()),), chosen=0)
    tried = []
    for point in tuning.points(label):
        fields = tuned_fields(cell.fields, point)
        tried.append(Tried(point, fields, tuple(_outcomes(fields, [FIRST_SEED], root))))
    found = Tuned(cell, label, tuple(tried))
    if any(outcome.result is None for outcome in found.trials):
        return found
    by_first_seed = sorted(range(len(tried)), key=lambda place: -tried[place].mean)
    finalists = tuple(by_first_seed[: tuning.finalists])
    more = range(FIRST_SEED + 1, FIRST_SEED + tuning.seeds)
    for place in finalists:
        one = tried[place]
        tried[place] = replace(one, outcomes=(*one.outcomes, *_outcomes(one.fields, more, root)))
    found = Tuned(cell, label, tuple(tried), finalists)
    if any(outcome.result is None for outcome in found.trials):
        return found
    last = sorted(finalists)
    return replace(found, chosen=last[_first_best([tried[place].mean for place in last])])


def _outcomes(fields: Mapping[str, Any], seeds: Sequence[int], root: Path) -> Iterator[Outcome]:
    for seed in seeds:
        trial = Trial(**{**fields, "seed": seed})
        held_out = {"seed": seed, "validation": validation_images(trial)}
        yield outcome_of(Trial(**{**fields, **held_out}), root)
