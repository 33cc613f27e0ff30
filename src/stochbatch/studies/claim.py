"""A claim: that one side of an axis is better than another, all else being equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator


class Growth(BaseModel):
    """Between which labels of another axis a gain grows."""

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    axis: str
    start: str = Field(alias="from")
    end: str = Field(alias="to")


class Claim(BaseModel):
    """That one point of an axis is better than another, in every place of the rest of the grid.

    A side may have several points: then the best of them, in each place, stands for it. With
    ``grows`` the claim is on the gain instead: that one is ahead of the other by more at one label
    of another axis than at another label, averaged over the rest of the grid.

    Example:
        >>> from stochbatch.studies import Claim
        >>> print(Claim(axis="method", better="SBS", than="SGD"))
        SBS is better than SGD (method), all else being equal.
        >>> print(Claim(name="tuned", axis="rate", better=["fast", "slow"], than="still"))
        tuned: the best of “fast”, “slow” is better than still (rate), all else being equal.
        >>> growth = {"axis": "share", "from": "1/2", "to": "1/8"}
        >>> print(Claim(axis="method", better="SBS", than="SGD", grows=growth))
        the gain of SBS over SGD at share 1/8 is larger than that at share 1/2.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    axis: str
    better: tuple[str, ...]
    than: tuple[str, ...]
    name: str = ""
    """A few words for it."""
    primary: bool = False
    """Whether it is the study's main claim, marked before its trials run."""
    best: bool = False
    """Whether it says that its one label is better than each of the others."""
    grows: Growth | None = None
    """Where the gain is said to be larger."""

    @field_validator("better", "than", mode="before")
    @classmethod
    def _listed(cls, side: Any) -> Any:
        """Return labels: an axis makes texts of its values, so a claim may name the values."""
        listed = side if isinstance(side, list | tuple) else [side]
        values = (str, int, float)
        return tuple(str(label) if isinstance(label, values) else label for label in listed)

    @model_validator(mode="after")
    def _check(self) -> Claim:
        for side in (self.better, self.than):
            if not side:
                raise ValueError(f"the claim on {self.axis!r} has a side without a label")
        if self.best and len(self.better) > 1:
            raise ValueError(f"the claim on {self.axis!r} names {len(self.better)} as the best")
        if self.grows and (self.best or self.chooses):
            raise ValueError(f"the claim on {self.axis!r} grows: it has one label on each side")
        labels = [*self.better, *self.than]
        if twice := [label for label in labels if labels.count(label) > 1]:
            raise ValueError(f"the claim on {self.axis!r} names {twice[0]!r} twice")
        return self

    @property
    def chooses(self) -> bool:
        """Whether a side has several points, of which the best is taken."""
        return len(self.better) > 1 or (len(self.than) > 1 and not self.best)

    @property
    def sides(self) -> tuple[str, str]:
        """What is compared, in words that may stand within a sentence."""
        if at := self.grows:
            number = f"{self.axis} " if self.better[0][0] in "-.0123456789" else ""
            gain = f"the gain of {number}{_side(self.better)} over {_side(self.than)}"
            return f"{gain} at {at.axis} {at.end}", f"that at {at.axis} {at.start}"
        return _side(self.better), _side(self.than)

    def __str__(self) -> str:
        name = f"{self.name}: " if self.name else ""
        if self.grows:
            return f"{name}{self.sides[0]} is larger than {self.sides[1]}."
        rest = " and ".join(map(_quoted, self.than)) if self.best else _side(self.than)
        text = f"{_side(self.better)} is better than {rest} ({self.axis})"
        return f"{name}{text}, all else being equal."


def _side(labels: Sequence[str]) -> str:
    if len(labels) > 1:
        return f"the best of {', '.join(_quoted(label) for label in labels)}"
    return _quoted(labels[0]) if "," in labels[0] else labels[0]


def _quoted(label: str) -> str:
    return f"\N{LEFT DOUBLE QUOTATION MARK}{label}\N{RIGHT DOUBLE QUOTATION MARK}"
