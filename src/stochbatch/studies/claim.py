"""A claim: that one side of an axis is better than another, all else being equal."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator


class Growth(BaseModel):
    """Between which labels of another axis a gain grows."""

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    axis: str
    start: str = Field(alias="from")
    end: str = Field(alias="to")


class Claim(BaseModel):
    """That one label of an axis is better than another, in every place of the rest of the grid.

    With ``best`` it is better than each of several others. With ``grows`` the claim is on the gain
    instead: that one is ahead of the other by more at one label of another axis than at another
    label, averaged over the rest of the grid.

    Example:
        >>> from stochbatch.studies import Claim
        >>> print(Claim(axis="method", better="SBS", than="SGD"))
        SBS is better than SGD (method), all else being equal.
        >>> print(Claim(name="top", axis="rate", better="fast", than=["slow", "still"], best=True))
        top: fast is better than “slow” and “still” (rate), all else being equal.
        >>> growth = {"axis": "share", "from": "1/2", "to": "1/8"}
        >>> print(Claim(axis="method", better="SBS", than="SGD", grows=growth))
        the gain of SBS over SGD at share 1/8 is larger than that at share 1/2.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    axis: str
    better: str
    than: tuple[str, ...]
    name: str = ""
    """A few words for it."""
    primary: bool = False
    """Whether it is the study's main claim, marked before its trials run."""
    best: bool = False
    """Whether it says that its label is better than each of the others."""
    grows: Growth | None = None
    """Where the gain is said to be larger."""

    @field_validator("better", mode="before")
    @classmethod
    def _alone(cls, side: Any) -> Any:
        """Return the label of a list of one."""
        return side[0] if isinstance(side, list | tuple) and len(side) == 1 else side

    @field_validator("than", mode="before")
    @classmethod
    def _listed(cls, side: Any) -> Any:
        return side if isinstance(side, list | tuple) else [side]

    @model_validator(mode="after")
    def _check(self) -> Claim:
        if not self.than or (len(self.than) > 1 and not self.best):
            raise ValueError(
                f"the claim on {self.axis!r} names {len(self.than)} labels to be better than: "
                "give one, or several with best = true"
            )
        if self.grows and self.best:
            raise ValueError(f"the claim on {self.axis!r} cannot both grow and be the best")
        labels = [self.better, *self.than]
        if twice := [label for label in labels if labels.count(label) > 1]:
            raise ValueError(f"the claim on {self.axis!r} names {twice[0]!r} twice")
        return self

    @property
    def sides(self) -> tuple[str, str]:
        """What is compared, in words that may stand within a sentence."""
        ours, theirs = _quoted_if_it_must(self.better), _quoted_if_it_must(self.than[0])
        if at := self.grows:
            number = f"{self.axis} " if self.better[0] in "-.0123456789" else ""
            gain = f"the gain of {number}{ours} over {theirs}"
            return f"{gain} at {at.axis} {at.end}", f"that at {at.axis} {at.start}"
        return ours, " and ".join(map(_quoted, self.than)) if self.best else theirs

    def __str__(self) -> str:
        name, (ours, theirs) = f"{self.name}: " if self.name else "", self.sides
        if self.grows:
            return f"{name}{ours} is larger than {theirs}."
        return f"{name}{ours} is better than {theirs} ({self.axis}), all else being equal."


def _quoted_if_it_must(label: str) -> str:
    return _quoted(label) if "," in label else label


def _quoted(label: str) -> str:
    return f"\N{LEFT DOUBLE QUOTATION MARK}{label}\N{RIGHT DOUBLE QUOTATION MARK}"
