"""The folder of a run: its files, who may write there, and how to read it later.

=======================  =================================================================
``trial.json``           the trial
``metrics.jsonl``        one line of JSON an epoch
``result.json``          the outcome, when it is over (:mod:`stochbatch.training.result`)
``weights.safetensors``  the network's ``state_dict``, when it is over
``checkpoint-*.pt``      while it is under way (:mod:`stochbatch.training.checkpoint`)
``lock``                 held by the process at work
=======================  =================================================================
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import filelock
import safetensors.torch
from pydantic import ValidationError
from torch import nn

from stochbatch.data import Normalisation
from stochbatch.files import write_atomically
from stochbatch.training import checkpoint
from stochbatch.training.build import build_network
from stochbatch.training.distributed import Ranks
from stochbatch.training.exceptions import RunError
from stochbatch.training.result import Result
from stochbatch.training.trial import Trial, TrialError

TRIAL, METRICS, RESULT, WEIGHTS, LOCK = (
    "trial.json",
    "metrics.jsonl",
    "result.json",
    "weights.safetensors",
    "lock",
)

LOOK_UP = 60.0
"""Seconds after which a rank that waits for a folder says so to the others, which wait for it."""


def write(path: Path, text: str) -> None:
    """Replace a text file, whole or not at all."""
    try:
        write_atomically(path, lambda file: file.write(text.encode()))
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error


@contextmanager
def locked(folder: Path, wait: bool, ranks: Ranks) -> Iterator[None]:
    """Make the folder and hold it; another that holds it is waited for, or an error.

    Of several ranks the first one holds it. A start that fails leaves no folder behind.
    """
    lock = filelock.FileLock(folder / LOCK)
    missing = [path for path in (folder, folder.parent) if not path.exists()]
    try:
        while not ranks.first(lambda: _take(lock, folder, wait)):
            pass
        yield
    finally:
        with suppress(OSError):
            if lock.is_locked and folder in missing and os.listdir(folder) == [LOCK]:
                (folder / LOCK).unlink()
                for path in missing:
                    path.rmdir()
        lock.release()


def _take(lock: filelock.FileLock, folder: Path, wait: bool) -> bool:
    """Return whether the lock is taken; raise if it should be at once and is not."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make the folder {folder}: {error.strerror or error}") from error
    try:
        lock.acquire(timeout=LOOK_UP if wait else 0.0)
    except FileNotFoundError:
        return False  # another process that failed to start has just removed the folder
    except filelock.Timeout:
        if wait:
            return False
        raise RunError(
            f"another process is at work on {folder}: let it finish, or wait for it (--wait)"
        ) from None
    return True


def read_result(folder: Path) -> Result | None:
    """Return the result, or None if the run is not over."""
    path = folder / RESULT
    try:
        return Result.model_validate_json(path.read_bytes()).in_folder(folder)
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        first = str(error).splitlines()[0]
        raise RunError(
            f"{path} is not a result of this version ({first}): remove it, or begin anew (--again)"
        ) from None


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of ``metrics.jsonl`` up to one that is cut short or damaged."""
    try:
        lines = (folder / METRICS).read_bytes().splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            epoch = json.loads(line)
        except ValueError:
            break
        if not isinstance(epoch, dict):
            break
        found.append(epoch)
    return found


@dataclass(frozen=True)
class RunFolder:
    """A run as it lies in its folder, over or under way.

    Example:
        >>> from stochbatch.training import read_run
        >>> read_run("no/such/folder")
        Traceback (most recent call last):
        ...
        stochbatch.training.exceptions.RunError: no/such/folder is no run: it has no trial.json
    """

    folder: Path
    trial: Trial

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """One dict an epoch."""
        return read_metrics(self.folder)

    @cached_property
    def result(self) -> Result | None:
        """The outcome, or None."""
        return read_result(self.folder)

    @cached_property
    def _last(self) -> dict[str, Any]:
        state, _ = checkpoint.load(self.folder)
        if state is None and (self.folder / RESULT).exists():
            raise RunError(f"{self.folder} was finished in this moment: ask again")
        if state is None:
            raise RunError(f"{self.folder} has no weights yet: train it for an epoch at least")
        return state

    @property
    def normalisation(self) -> Normalisation:
        """Mean and standard deviation of the images it was trained on."""
        if self.result is not None:
            return Normalisation(self.result.data.mean, self.result.data.std)
        return Normalisation(*(tuple(part) for part in self._last["normalisation"]))

    def network(self) -> nn.Module:
        """Return the network, ready to evaluate, with its final or its last saved weights."""
        network = build_network(self.trial)
        network.load_state_dict(self.weights())
        return network.eval()

    def weights(self) -> dict[str, Any]:
        """Return the ``state_dict`` of the trained network."""
        if self.result is None:
            return dict(self._last["network"])
        path = self.folder / WEIGHTS
        try:
            content = path.read_bytes()
        except OSError as error:
            raise RunError(f"{path} cannot be read: {error.strerror or error}") from error
        if hashlib.sha256(content).hexdigest() != self.result.weights_sha256:
            raise RunError(f"{path} is damaged: it does not have the hash in {RESULT}")
        return safetensors.torch.load(content)


def read_run(folder: str | Path) -> RunFolder:
    """Return the run that lies in ``folder``."""
    folder = Path(folder)
    try:
        trial = Trial.from_file(folder / TRIAL)
    except TrialError as error:
        if not (folder / TRIAL).exists():
            raise RunError(f"{folder} is no run: it has no {TRIAL}") from None
        raise RunError(str(error)) from None
    return RunFolder(folder, trial)
