"""Checkpoints: written whole or not at all, verified when they are read, the last two kept.

The name of a checkpoint has its place in the training and the SHA-256 of its content
(``checkpoint-00003-0000012-0123456789abcdef.pt`` is epoch 3 after 12 steps), so a file is
complete and unspoiled if and only if its content has the hash in its name.
"""

from __future__ import annotations

import hashlib
import io
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from stochbatch.files import write_atomically
from stochbatch.training.exceptions import RunError

FORMAT = 1
KEPT = 2
_DIGITS = 16
_NAME = re.compile(r"checkpoint-(\d{5,})-(\d{7,})-([0-9a-f]{16})\.pt")


class Place(NamedTuple):
    """Epochs that are over, and steps done in the one under way."""

    epoch: int
    step: int


class Loaded(NamedTuple):
    """The newest checkpoint that is good, and what was wrong with newer ones."""

    state: dict[str, Any] | None
    note: str | None


def save(folder: Path, place: Place, state: dict[str, Any]) -> Path:
    """Write a checkpoint and remove all but the last two."""
    content = to_bytes({"format": FORMAT, "epoch": place.epoch, "step": place.step, **state})
    digest = hashlib.sha256(content).hexdigest()[:_DIGITS]
    path = folder / f"checkpoint-{place.epoch:05d}-{place.step:07d}-{digest}.pt"
    try:
        write_atomically(path, lambda file: file.write(content))
    except OSError as error:
        good = next((old.name for old in _newest_first(folder)), "none")
        raise RunError(
            f"cannot write a checkpoint into {folder}: {error.strerror or error}; the last one "
            f"that is there: {good}. Make room and run it again to resume from there"
        ) from error
    for old in _newest_first(folder)[KEPT:]:
        if old != path:
            with suppress(OSError):
                old.unlink()
    return path


def load(folder: Path, *, put_aside: bool = False) -> Loaded:
    """Return the newest checkpoint that is good.

    Damaged ones are passed over, and said. A file that has the hash in its name is not damaged:
    if it cannot be read, or not be loaded, that is an error, and the file stays.

    Args:
        folder: of the run.
        put_aside: rename damaged ones, so that they do not count among the last two; for whoever
            trains, not for those who look.

    Raises:
        RunError: a good checkpoint cannot be read, or not by this version.
    """
    damaged: list[str] = []
    listed = _newest_first(folder)
    while listed:
        path = listed.pop(0)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            listed = _newest_first(folder)  # whoever trains has saved newer ones
            damaged.clear()
            continue
        except OSError as error:
            raise RunError(f"{path} cannot be read: {error.strerror or error}") from error
        if hashlib.sha256(content).hexdigest()[:_DIGITS] != path.stem.rsplit("-", 1)[1]:
            damaged.append(
                f"{path.name} is damaged (its content does not have the hash in its name)"
            )
            if put_aside:
                with suppress(OSError):
                    path.rename(path.with_suffix(".damaged"))
            continue
        return Loaded(_state(path, content), _note(damaged, f"resumes from {path.name}"))
    return Loaded(None, _note(damaged, "starts from the beginning"))


def _state(path: Path, content: bytes) -> dict[str, Any]:
    try:
        state = from_bytes(content)
        if state.get("format") == FORMAT:
            return dict(state)
        why = f"its format is {state.get('format')}, expected {FORMAT}"
    except ValueError as error:
        why = str(error)
    raise RunError(f"{path} is not a checkpoint of this version ({why}): remove it to start over")


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
    import pickle  # only for the name of the error

    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(str(error).splitlines()[0]) from error


def _note(damaged: list[str], what: str) -> str | None:
    return "; ".join([*damaged, what]) if damaged else None


def _newest_first(folder: Path) -> list[Path]:
    ages = []
    for path in folder.glob("checkpoint-*.pt"):
        match = _NAME.fullmatch(path.name)
        if match is not None:
            with suppress(FileNotFoundError):  # whoever trains may remove it
                ages.append((int(match[1]), int(match[2]), path.stat().st_mtime_ns, path))
    return [path for *_, path in sorted(ages, reverse=True)]
