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

from stochbatch.data.atomic import write_atomically
from stochbatch.training.errors import RunError

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
            f"that is there: {good}. Make room and run it again: it goes on from there"
        ) from error
    for old in _newest_first(folder)[KEPT:]:
        if old != path:
            with suppress(OSError):
                old.unlink()
    return path


def load(folder: Path, device: torch.device) -> Loaded:
    """Return the newest checkpoint that is good; damaged ones are passed over, and said."""
    damaged = []
    for path in _newest_first(folder):
        try:
            content = path.read_bytes()
            if hashlib.sha256(content).hexdigest()[:_DIGITS] != path.stem.rsplit("-", 1)[1]:
                raise ValueError("its content does not have the hash in its name")
            state = from_bytes(content, device)
            if state.get("format") != FORMAT:
                raise ValueError(f"its format is {state.get('format')}, expected {FORMAT}")
        except (OSError, ValueError, RuntimeError, EOFError) as error:
            damaged.append(f"{path.name} is damaged ({str(error).splitlines()[0]})")
            with suppress(OSError):  # it must not count as one of the last two
                path.rename(path.with_suffix(".damaged"))
            continue
        return Loaded(state, _note(damaged, f"goes on from {path.name}"))
    return Loaded(None, _note(damaged, "starts from the beginning"))


def remove_all(folder: Path) -> None:
    """Remove all checkpoints, damaged ones too."""
    for path in (*_newest_first(folder), *folder.glob("checkpoint-*.damaged")):
        path.unlink(missing_ok=True)


def to_bytes(state: Any) -> bytes:
    """Return what ``torch.save`` writes."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def from_bytes(content: bytes, device: torch.device | str) -> Any:
    """Return what ``torch.load`` reads: tensors, numbers, texts, and nothing that runs."""
    import pickle  # for the name of the error alone

    try:
        return torch.load(io.BytesIO(content), map_location=device, weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(str(error).splitlines()[0]) from error


def _note(damaged: list[str], what: str) -> str | None:
    return "; ".join([*damaged, what]) if damaged else None


def _newest_first(folder: Path) -> list[Path]:
    found = [(_NAME.fullmatch(path.name), path) for path in folder.glob("checkpoint-*.pt")]
    ages = [
        (int(match[1]), int(match[2]), path.stat().st_mtime_ns, path)
        for match, path in found
        if match is not None
    ]
    return [path for *_, path in sorted(ages, reverse=True)]
