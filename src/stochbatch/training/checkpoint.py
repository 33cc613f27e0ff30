"""Checkpoints: written whole or not at all, verified when they are read, the last two kept.

The name of a checkpoint has its place in the training and the SHA-256 of its content
(``checkpoint-00003-0000012-0123456789abcdef.pt`` is epoch 3 after 12 steps), so a file is
complete and unspoiled if and only if its content has the hash in its name. The content has the
trial's hash, and what it says is checked against a schema, its name and the trial.
"""

from __future__ import annotations

import hashlib
import io
import re
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field, Json, ValidationError
from torch import Tensor

from stochbatch.files import write_atomically
from stochbatch.training import metrics
from stochbatch.training.device import is_out_of_memory
from stochbatch.training.exceptions import RunError, what_is_wrong
from stochbatch.training.result import DataFacts
from stochbatch.training.run_folder import read
from stochbatch.training.trial import Trial

FORMAT = 2
KEPT = 2
_DIGITS = 16
_NAME = re.compile(r"checkpoint-(\d{5,})-(\d{7,})-([0-9a-f]{16})\.pt")


class Place(NamedTuple):
    """Epochs that are over, and steps done in the one under way."""

    epoch: int
    step: int


class Schema(BaseModel):
    """What a checkpoint has."""

    model_config = ConfigDict(
        extra="forbid", strict=True, arbitrary_types_allowed=True, allow_inf_nan=False
    )

    format: Literal[2]
    trial: str
    """The trial's hash."""
    epoch: int = Field(ge=0)
    step: int = Field(ge=0)
    data: Json[DataFacts]
    metrics: list[str]
    environments: Json[list[dict[str, Any]]]
    seconds: float = Field(ge=0)
    network: dict[str, Tensor]
    optimizer: dict[str, Any]
    scaler: dict[str, Any]
    tally: Annotated[list[Tensor], Field(min_length=3, max_length=3)]
    correct: Tensor | None = None


class Loaded(NamedTuple):
    """The newest checkpoint that is good, and what was wrong with newer ones."""

    path: Path | None
    state: dict[str, Any]
    note: str | None


def save(folder: Path, trial: Trial, place: Place, state: dict[str, Any]) -> None:
    """Write a checkpoint and remove all but the last two."""
    content = to_bytes({"format": FORMAT, "trial": trial.hash, **place._asdict(), **state})
    digest = hashlib.sha256(content).hexdigest()[:_DIGITS]
    path = folder / f"{_prefix(place)}{digest}.pt"
    try:
        write_atomically(path, lambda file: file.write(content))
    except OSError as error:
        good = next((old.name for old in _newest_first(folder)), "none")
        raise RunError(
            f"cannot write a checkpoint into {folder}: {error.strerror or error}; the last one "
            f"that is there: {good}. Make room and run it again to resume from there"
        ) from error
    for old in _newest_first(folder)[KEPT:]:
        with suppress(OSError):
            old.unlink()


def load(folder: Path, trial: Trial, *, put_aside: bool = False) -> Loaded:
    """Return the newest checkpoint that is good.

    Damaged ones are passed over, and said. A file that has the hash in its name is not damaged:
    if it cannot be read, or not be loaded, that is an error, and the file stays. Who trains puts
    damaged ones aside, so that they do not count among the last two; who only looks does not.

    Raises:
        RunError: a good checkpoint cannot be read, or is not one of this version and trial.
    """
    damaged: list[str] = []
    for path in _newest_first(folder):
        content = read(path)
        if content is None:  # whoever trains has saved newer ones
            return load(folder, trial, put_aside=put_aside)
        if hashlib.sha256(content).hexdigest()[:_DIGITS] == path.stem.rsplit("-", 1)[1]:
            state = _state(path, content, trial)
            return Loaded(path, state, _note(damaged, f"resumes from {path.name}"))
        damaged.append(f"{path.name} is damaged (its content does not have the hash in its name)")
        if put_aside:
            with suppress(OSError):
                path.rename(path.with_suffix(".damaged"))
    return Loaded(None, {}, _note(damaged, "starts from the beginning"))


def _state(path: Path, content: bytes, trial: Trial) -> dict[str, Any]:
    try:
        state = from_bytes(content)
        found = state.get("format") if isinstance(state, dict) else None
        if found != FORMAT:
            raise ValueError(f"its format is {found!r}, expected {FORMAT}")
        Schema.model_validate(state)
    except ValidationError as error:
        raise odd(path, what_is_wrong(error)) from None
    except ValueError as error:
        raise odd(path, str(error)) from None
    if state["trial"] != trial.hash:
        raise RunError(
            f"{path} is a checkpoint of the trial {state['trial'][:16]}, not of {trial.folder}: "
            "remove it, or start over (--again)"
        )
    place = Place(state["epoch"], state["step"])
    if not path.name.startswith(_prefix(place)):
        raise odd(path, f"it is of epoch {place.epoch} after {place.step} steps")
    if place > (trial.epochs, 0) or len(state["metrics"]) != place.epoch:
        raise odd(path, f"{place.epoch} epochs, {len(state['metrics'])} lines of metrics")
    try:
        metrics.parse([line.encode() for line in state["metrics"]], trial.folder)
    except ValueError as error:
        raise odd(path, f"metrics: {error}") from None
    return state  # type: ignore[no-any-return]


def odd(path: Path, why: str) -> RunError:
    """Return the error for a checkpoint that is whole, but not what this version writes."""
    return RunError(
        f"{path} is not a checkpoint of this version ({why}): remove it, or start over (--again)"
    )


def remove_all(folder: Path) -> None:
    """Remove all checkpoints, damaged ones too."""
    for path in (*_newest_first(folder), *folder.glob("checkpoint-*.damaged")):
        path.unlink(missing_ok=True)


def to_bytes(state: Any) -> bytes:
    """Return what ``torch.save`` writes."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def from_bytes(content: bytes) -> Any:
    """Return what ``torch.load`` reads: tensors, numbers, texts, and nothing that runs."""
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # a pickle that is not one of ours fails in any way
        if is_out_of_memory(error):
            raise
        raise ValueError(f"{type(error).__name__}: {one_line(error)}") from error


def one_line(error: Exception) -> str:
    """Return the beginning of an error's text, in one line."""
    return " ".join(str(error).split())[:200]


def _prefix(place: Place) -> str:
    return f"checkpoint-{place.epoch:05d}-{place.step:07d}-"


def _note(damaged: list[str], what: str) -> str | None:
    return "; ".join([*damaged, what]) if damaged else None


def _newest_first(folder: Path) -> list[Path]:
    names = ((_NAME.fullmatch(path.name), path) for path in folder.glob("checkpoint-*.pt"))
    ages = [(int(name[1]), int(name[2]), path) for name, path in names if name]
    return [path for *_, path in sorted(ages, reverse=True)]
