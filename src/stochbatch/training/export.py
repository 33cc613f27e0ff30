"""The weights of a run, in a file that others can read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

import torch
from torch import Tensor

from stochbatch import __version__
from stochbatch.data import DATASETS
from stochbatch.data.atomic import write_atomically
from stochbatch.data.optional import optional

if TYPE_CHECKING:
    from stochbatch.training import RunFolder

Form = Literal["safetensors", "state_dict"]
FORMS: tuple[Form, ...] = ("safetensors", "state_dict")
_SUFFIXES: dict[str, Form] = {
    ".safetensors": "safetensors",
    ".pt": "state_dict",
    ".pth": "state_dict",
}


class ExportError(ValueError):
    """Weights that cannot be written as it was asked."""


def export(
    read: RunFolder,
    path: str | os.PathLike[str],
    form: Form | None = None,
    *,
    force: bool = False,
) -> Path:
    """Write the weights of a run, in full or not at all.

    ``safetensors`` carries, as text beside the weights, the trial, the names of the classes,
    and the mean and deviation that pixels must be normalised with. ``state_dict`` has the
    tensors alone, for ``torch.load(path, weights_only=True)``.

    Args:
        read: the run, from `read_run`.
        path: the file.
        form: ``"safetensors"`` or ``"state_dict"``; None goes by the name: ``.pt`` and
            ``.pth`` are a state dict, everything else is safetensors.
        force: whether a file that is there may be replaced.

    Returns:
        The file's path.

    Raises:
        ExportError: the file is there already, its folder is not, or it cannot be written.
    """
    path = Path(path)
    form = form or _SUFFIXES.get(path.suffix.lower(), "safetensors")
    if form not in FORMS:
        raise ExportError(f"form must be one of {', '.join(FORMS)}, got {form!r}")
    if path.is_dir():
        raise ExportError(f"{path} is a folder: a file is wanted")
    if path.exists() and not force:
        raise ExportError(f"{path} is there already, and is replaced by force only")
    if not path.parent.is_dir():
        raise ExportError(f"there is no folder {path.parent}")
    weights = {
        name: tensor.detach().cpu().contiguous().clone()
        for name, tensor in read.network().state_dict().items()
    }
    facts = _facts(read)
    try:
        write_atomically(path, lambda file: _save(weights, facts, form, file))
    except OSError as error:
        raise ExportError(f"cannot write {path}: {error.strerror or error}") from error
    return path


def _save(weights: dict[str, Tensor], facts: dict[str, str], form: Form, file: BinaryIO) -> None:
    if form == "safetensors":
        file.write(optional("safetensors.torch").save(weights, metadata=facts))
    else:
        torch.save(weights, file)


def _facts(read: RunFolder) -> dict[str, str]:
    """Return what a reader needs besides the weights; the format has texts only."""
    return {
        "format": "pt",
        "stochbatch": __version__,
        "trial": read.trial.to_json(),
        "classes": json.dumps(DATASETS[read.trial.dataset].classes),
        "normalisation": json.dumps(read.normalisation._asdict()),
    }
