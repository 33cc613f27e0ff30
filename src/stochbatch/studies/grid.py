"""A study: a named grid of trials, each cell tied to a cell of the article's tables.

Most are TOML files: ``examples/three-rates.toml`` has what may stand in one. An axis is a field
with ``values``, a ``zip`` of fields that go together, or ``points`` with labels of their own.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from stochbatch.registry import METHODS, STUDIES
from stochbatch.studies.cell import Cell, StudyError, with_labels
from stochbatch.studies.claim import Claim
from stochbatch.studies.published import check_table, published_value
from stochbatch.studies.scales import Scale
from stochbatch.studies.tuning import Tuning
from stochbatch.training import Trial, TrialError
from stochbatch.training.exceptions import what_is_wrong

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


MOST_TRIALS = 100_000
"""Of a study; the largest of the article's has 2,520."""


class Axis(BaseModel):
    """One direction of the grid: a field with values, fields that go together, or points."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    name: str
    field: str | None = None
    values: list[Any] = Field(default_factory=list)
    zip: dict[str, list[Any]] = Field(default_factory=dict)
    points: list[dict[str, Any]] = Field(default_factory=list)

    @model_validator(mode="after")
    def _check(self) -> Axis:
        given = [bool(self.field), bool(self.zip), bool(self.points)]
        if given.count(True) != 1:
            raise ValueError(f"axis {self.name!r} must have one of: field and values, zip, points")
        if bool(self.field) != bool(self.values):
            raise ValueError(f"axis {self.name!r} must have values for its field")
        if len({len(values) for values in self.zip.values()}) > 1:
            raise ValueError(f"axis {self.name!r}: lists that go together must be equally long")
        labels = [point.label for point in self.expanded()]
        if not labels:
            raise ValueError(f"axis {self.name!r} has no point")
        if len(set(labels)) != len(labels):
            raise ValueError(f"axis {self.name!r} has a label twice: {labels}")
        return self

    def fields(self) -> set[str]:
        """Return the names of all fields that a point sets; of tables those of their entries."""
        return {name for point in self.expanded() for name in _names(point.fields)}

    def expanded(self) -> list[Point]:
        """Return the points of the axis."""
        if self.field:
            return [Point(str(value), {self.field: value}) for value in self.values]
        if self.zip:
            rows = zip(*self.zip.values(), strict=True)
            return [Point(str(row[0]), dict(zip(self.zip, row, strict=True))) for row in rows]
        if missing := [point for point in self.points if "label" not in point]:
            raise ValueError(f"axis {self.name!r}: a point has no label: {missing[0]}")
        fields = [{**point} for point in self.points]
        return [Point(str(each.pop("label")), each) for each in fields]


_PUBLISHED_FOR = ("dataset", "network", "evaluate_every")
"""Where a scale changes these, a printed number of the study's own is not one of its trials'."""


class Point(NamedTuple):
    """A place on an axis: its label, and the fields it sets."""

    label: str
    fields: Mapping[str, Any]


class Study(BaseModel):
    """A grid of trials."""

    model_config = ConfigDict(frozen=True, extra="forbid", ignored_types=(cached_property,))

    name: str
    title: str
    caption: str = ""
    published: str | None = None
    """Name of the article's table."""
    figure: str | None = None
    """Caption of the article's figure that goes with it."""
    data: str = ""
    """Path of data of your own that ``base`` names by their hash."""
    base: dict[str, Any] = Field(default_factory=dict)
    axes: list[Axis] = Field(min_length=1)
    claims: list[Claim] = Field(default_factory=list)
    repetitions: int | None = Field(None, ge=1)
    """Trials of each cell; by default the scale's."""
    extended: bool = False
    """Whether its trials were doubled, once, after a first look: then each look has half of 5 %."""
    margin: float = Field(default=1.0, gt=0)
    """Percentage points within which a difference does not matter."""
    tuning: Tuning | None = None
    """How cells are tuned first, if they are."""

    @model_validator(mode="after")
    def _check(self) -> Study:
        names = [axis.name for axis in self.axes]
        if len(set(names)) != len(names):
            raise ValueError(f"two axes have one name: {names}")
        self.check_size(math.prod(len(axis.expanded()) for axis in self.axes), 1)
        if set(self.name) & set("/\\") or self.name.startswith("."):
            raise ValueError(f"a name must not be a path, got {self.name!r}")
        if self.published is not None:
            check_table(self.published)
        self._check_fields()
        for claim in self.claims:
            self._check_claim(claim)
        if self.tuning is None and sum(claim.primary for claim in self.claims) > 1:
            raise ValueError("a study has at most one primary claim, unless it is tuned")
        if self.tuning is not None:
            self.tuning.check_labels(self._labels(self.tuning.axis, "[tuning]"))
        # The same claim twice would be corrected for twice, two of one name be taken for one.
        texts = [claim.name or str(claim) for claim in self.claims]
        if twice := [text for text in texts if texts.count(text) > 1]:
            raise ValueError(f"two claims are called {twice[0]!r}")
        return self

    def _check_fields(self) -> None:
        """Raise if a field is set where it would be overwritten without a word."""
        set_by: dict[str, str] = {}
        for axis in self.axes:
            for field in sorted(axis.fields()):
                if field in set_by:
                    raise ValueError(
                        f"the axes {set_by[field]!r} and {axis.name!r} both set {field}"
                    )
                set_by[field] = axis.name
        if "seed" in {*self.base, *set_by}:
            raise ValueError(
                "seeds are counted from 0 and the same for all cells: leave out seed, "
                "and say with repetitions how many"
            )

    def _labels(self, name: str, what: str) -> list[str]:
        """Return the labels of an axis that a part of the study is about."""
        axis = next((axis for axis in self.axes if axis.name == name), None)
        if axis is None:
            names = [axis.name for axis in self.axes]
            raise ValueError(f"{what} is about {name!r}, axes are {names}")
        return [point.label for point in axis.expanded()]

    def _check_claim(self, claim: Claim) -> None:
        labels = self._labels(claim.axis, "the claim")
        for label in (claim.better, *claim.than):
            if label not in labels:
                raise ValueError(f"the claim names {label!r}, {claim.axis!r} has {labels}")
        if at := claim.grows:
            if self.tuning:
                raise ValueError("a tuned study cannot claim that a gain grows")
            there = self._labels(at.axis, "the growth of a claim")
            if at.axis == claim.axis or not {at.start, at.end} <= {*there} or at.start == at.end:
                raise ValueError(
                    f"a gain grows between two labels of another axis; got {at.axis!r} from "
                    f"{at.start!r} to {at.end!r}, it has {there}"
                )

    def check_size(self, cells: int, repetitions: int) -> None:
        """Raise if there would be more trials than anyone can run."""
        if cells * repetitions > MOST_TRIALS:
            given = f"{cells:,} cells of {repetitions:,}"
            raise StudyError(f"a study has at most {MOST_TRIALS:,} trials, got {given}")

    def cells(self, scale: Scale, only: Mapping[str, Sequence[str]] | None = None) -> list[Cell]:
        """Return the cells at a scale, in the order of the axes.

        Args:
            scale: what is reduced.
            only: labels to keep, by the name of the axis.
        """
        pairs = list(self._cells(scale))
        found = [cell for cell, _ in pairs]
        given = {cell.key: text for cell, text in pairs}
        for name, labels in (only or {}).items():
            found = with_labels(found, name, labels)
        first: dict[str, Cell] = {}
        for cell in found:
            other = first.setdefault(_text(cell.fields), cell)
            if given[other.key] != given[cell.key]:
                raise StudyError(
                    f"{self.name}: “{other}” and “{cell}” would be the same trials at the scale "
                    f"{scale.name}, under two names"
                )
        return found

    def _cells(self, scale: Scale) -> Iterator[tuple[Cell, str]]:
        """Yield the cells, with what they were before the scale reduced them."""
        axes = [(axis.name, scale.points(axis.name, axis.expanded())) for axis in self.axes]
        for name, there in axes:
            self._check_scale(scale, name, there)
        seen = set()
        for points in product(*(points for _, points in axes)):
            coordinates = {name: point.label for (name, _), point in zip(axes, points, strict=True)}
            fields = _merged(self.base, *(point.fields for point in points))
            if not scale.keeps(coordinates, fields):
                continue
            known = {name: scale.fields[name] for name in _PUBLISHED_FOR if name in scale.fields}
            value = published_value(self.published, coordinates, {**fields, **known})
            cell = Cell(coordinates, _possible(scale.reduced(fields)), value)
            if cell.key not in seen:
                seen.add(cell.key)
                yield cell, _text(_possible(fields))

    def _check_scale(self, scale: Scale, axis: str, points: Sequence[Point]) -> None:
        """Raise if a scale sets what an axis varies: its labels would say what is not so."""
        for name, value in scale.fields.items():
            given = {json.dumps(point.fields[name]) for point in points if name in point.fields}
            if given - {json.dumps(value)} and len(points) > 1:
                raise StudyError(
                    f"{self.name}: the axis {axis!r} varies {name}, which the scale {scale.name} "
                    f"sets to {value}: use the scale paper, where nothing is set"
                )

    def planned(self, scale: Scale) -> int:
        """Return how many trials of each cell are planned: verdicts need exactly these."""
        return (self.repetitions or scale.repetitions) * (2 if self.extended else 1)

    def trials(self, cells: Sequence[Cell], repetitions: int) -> list[Trial]:
        """Return the distinct trials of some cells, seed by seed: all of seed 0 first."""
        found: dict[str, Trial] = {}
        for seed in range(repetitions):
            for cell in cells:
                try:
                    trial = cell.trial(seed)
                except TrialError as error:
                    raise StudyError(f"{self.name}, {cell}: {error}") from None
                found.setdefault(trial.hash, trial)
        return list(found.values())

    def to_toml(self, comment: str = "") -> str:
        """Return the text that `from_text` reads, below a line of comment."""
        import tomli_w

        fields = self.model_dump(by_alias=True, exclude_defaults=True, exclude_none=True)
        return f"# {comment}\n" + tomli_w.dumps(fields)

    @classmethod
    def from_text(cls, text: str, name: str) -> Study:
        """Return the study that a TOML text describes."""
        try:
            return cls(**{"name": name, **tomllib.loads(text)})
        except tomllib.TOMLDecodeError as error:
            raise StudyError(f"{name}: not valid TOML: {error}") from None
        except ValidationError as error:
            raise StudyError(f"{name}: {what_is_wrong(error)}") from None

    @classmethod
    def from_file(cls, path: str | Path) -> Study:
        """Return the study in a TOML file; its name is the file's."""
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise StudyError(f"{path} cannot be read: {error}") from None
        return cls.from_text(text, path.stem)


def _merged(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return all fields; of tables (settings) the entries are merged too."""
    result: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            there = result.get(name, {})
            if isinstance(value, Mapping) and isinstance(there, Mapping):
                result[name] = {**there, **value}
            else:
                result[name] = value  # whether it may be is the trial's to say
    return result


def _names(fields: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of fields; of tables (settings) those of the entries."""
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from (f"{name}.{entry}" for entry in value)
        else:
            yield name


def _text(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, sort_keys=True, default=str)


def _possible(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields without a momentum or weight decay where the method has none."""
    common = METHODS[fields.get("method", "sgd")].common
    absent = {name: 0.0 for name in ("momentum", "weight_decay") if name not in common}
    return {**fields, **absent}


for _file in (resources.files("stochbatch.studies") / "definitions").iterdir():
    _name, _, _form = _file.name.partition(".")
    if _form == "toml":
        STUDIES.provide(_name, Study.from_text(_file.read_text(encoding="utf-8"), _name))
