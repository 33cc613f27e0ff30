"""The folder of a run: its files, who may write there, and how to read it later.

It is ``root/<first 16 digits of the trial's hash>/``. Each file carries the hash; one of another
trial is refused when it is read.

=======================  =================================================================
``trial.json``           the trial
``metrics.jsonl``        one line of JSON per epoch (:mod:`stochbatch.training.metrics`)
``result.json``          the outcome of a finished run (:mod:`stochbatch.training.result`)
``weights.safetensors``  the network's ``state_dict`` of a finished run
``checkpoint-*.pt``      while it is running: the last two, read with ``weights_only=True``
                         after their SHA-256 and schema are checked
``log.txt``              start, resumptions, warnings, end; also in the logger ``stochbatch``
``error.json``           why a trial of a study failed
``events/``              TensorBoard's files, with ``--tensorboard``
``lock``                 held by the running process
=======================  =================================================================
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock
from pydantic import ValidationError

from stochbatch import data
from stochbatch.files import write_atomically
from stochbatch.training.exceptions import RunError, what_is_wrong
from stochbatch.training.metrics import parse
from stochbatch.training.result import Accuracy, DataFacts, Result
from stochbatch.training.trial import Trial, TrialError

if TYPE_CHECKING:
    from torch import nn

    from stochbatch.training.distributed import Ranks

TRIAL, METRICS, RESULT, WEIGHTS, LOG, LOCK = (
    "trial.json",
    "metrics.jsonl",
    "result.json",
    "weights.safetensors",
    "log.txt",
    "lock",
)


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
        ranks.first(lambda: _take(lock, folder, wait))
        yield
    finally:
        with suppress(OSError):
            if lock.is_locked and folder in missing and os.listdir(folder) == [LOCK]:
                (folder / LOCK).unlink()
                for path in missing:
                    path.rmdir()
        lock.release()


def _take(lock: filelock.FileLock, folder: Path, wait: bool) -> None:
    """Take the lock, or raise; another that has it is waited for, or an error."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make the folder {folder}: {error.strerror or error}") from error
    try:
        lock.acquire(timeout=-1 if wait else 0)
    except FileNotFoundError:  # another process that failed to start has just removed the folder
        _take(lock, folder, wait)
    except filelock.Timeout:
        raise RunError(
            f"another process is training in {folder}: let it finish, or wait for it (--wait)"
        ) from None
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {error.strerror or error}") from error


def read_result(folder: Path) -> Result | None:
    """Return the result, or None if the run is not over."""
    path = folder / RESULT
    content = read(path)
    if content is None:
        return None
    try:
        result = Result.model_validate_json(content).in_folder(folder)
        _check_whose(path, result.trial_hash[:16])
        _check_whole(result)
    except ValueError as error:
        why = what_is_wrong(error) if isinstance(error, ValidationError) else str(error)
        raise RunError(
            f"{path} is not a result of this version ({why}): remove it, or start over (--again)"
        ) from None
    return result


def read(path: Path) -> bytes | None:
    """Return the content of a file, or None if there is none."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}") from error


def _check_whole(result: Result) -> None:
    """Raise if the parts of a result contradict each other."""
    trial = Trial.stored(result.trial)
    if trial.hash != result.trial_hash:
        raise ValueError(f"its trial is {trial.folder}, its hash is of {result.trial_hash[:16]}")
    diverged = result.status == "diverged"
    epochs = result.epochs if diverged else trial.epochs
    if not 0 < len(result.curve) == result.epochs == epochs <= trial.epochs:
        raise ValueError(f"{result.status} after {result.epochs} of {trial.epochs} epochs")
    if result.accuracy != Accuracy.of(result.curve, diverged):
        raise ValueError("its accuracy is not that of its curve")
    images, count = result.image_accuracy, result.data.test_images
    if result.accuracy is not None and images is not None:
        missed = abs(math.fsum(images) - count * result.accuracy.mean)
        if len(images) != count or missed > 1e-6 * count:
            raise ValueError("its accuracy is not that of its images")


def _check_whose(path: Path, trial: str) -> None:
    """Raise if a file in the folder of a run is another trial's."""
    name = path.parent.resolve().name
    if trial != name:
        remedy = f"put it back into {trial}, or remove it"
        if path.name == TRIAL:  # the whole folder was copied or renamed
            remedy = f"rename the folder to {trial}"
        raise RunError(f"{path} is of the trial {trial}, but lies in the folder {name}: {remedy}")


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of ``metrics.jsonl``.

    Raises:
        RunError: a line is odd, or another run's.
    """
    path = folder / METRICS
    try:
        return parse((read(path) or b"").splitlines(), folder.resolve().name)
    except ValueError as error:
        raise RunError(f"{path}: {error}") from None


@dataclass(frozen=True)
class RunFolder:
    """A run as it lies in its folder, finished or not.

    Example:
        >>> from stochbatch.training import read_run
        >>> read_run("no/such/folder")
        Traceback (most recent call last):
        ...
        stochbatch.training.exceptions.RunError: no/such/folder is not a run folder (no trial.json)
    """

    folder: Path
    trial: Trial

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """One dict per epoch."""
        result = self.result  # first: a run may finish meanwhile, and then its lines are more
        lines = read_metrics(self.folder)
        if lines and result is not None:
            key = lines[0].get("data", result.data.key)
            curve = [line.get("test_accuracy") for line in lines]
            if (curve, key) != (result.curve, result.data.key):
                raise RunError(f"{self.folder / METRICS} is of another run than {RESULT}")
        return lines

    @cached_property
    def result(self) -> Result | None:
        """The outcome, or None."""
        return read_result(self.folder)

    @cached_property
    def _last(self) -> dict[str, Any]:
        from stochbatch.training import checkpoint

        path, state, _ = checkpoint.load(self.folder, self.trial)
        if path is None and (self.folder / RESULT).exists():
            raise RunError(f"{self.folder}: the run finished while it was being read; try again")
        if path is None:
            raise RunError(f"{self.folder} has no weights yet: train it for at least an epoch")
        return state

    @property
    def normalisation(self) -> data.Normalisation:
        """Mean and standard deviation of the images it was trained on."""
        if self.result is not None:
            facts = self.result.data
        else:
            facts = DataFacts.model_validate_json(self._last["data"])
        return data.Normalisation(facts.mean, facts.std)

    def network(self) -> nn.Module:
        """Return the network, ready to evaluate, with its final or its last saved weights."""
        from stochbatch.training.builders import build_network

        network, weights = build_network(self.trial), self.weights()
        try:
            network.load_state_dict(weights)
        except Exception as error:  # torch lets through whatever odd tensors make happen
            why = str(error)[:200]
            raise RunError(f"{self.folder} has the weights of another network ({why})") from None
        return network.eval()

    def weights(self) -> dict[str, Any]:
        """Return the ``state_dict`` of the trained network."""
        if self.result is None:
            return dict(self._last["network"])
        path = self.folder / WEIGHTS
        content = read(path)
        if content is None:
            raise RunError(f"{path} is missing")
        if hashlib.sha256(content).hexdigest() != self.result.weights_sha256:
            raise RunError(f"{path} is damaged: it does not have the hash in {RESULT}")
        import safetensors.torch

        try:
            return safetensors.torch.load(content)
        except Exception as error:  # it has the right hash, so that somebody has made it
            raise RunError(f"{path} cannot be read as safetensors ({error})") from None


def read_run(folder: str | Path) -> RunFolder:
    """Return the run that lies in ``folder``."""
    folder = Path(folder)
    trial = read_trial(folder)
    if trial is None:
        raise RunError(f"{folder} is not a run folder (no {TRIAL})")
    return RunFolder(folder, trial)


def read_trial(folder: Path) -> Trial | None:
    """Return the trial of a folder, or None if it has none."""
    path = folder / TRIAL
    content = read(path)
    if content is None:
        return None
    try:
        fields = json.loads(content)
        if not isinstance(fields, dict):
            raise TrialError(f"a trial is a table of fields, got {type(fields).__name__}")
        trial = Trial.stored(fields)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} cannot be read as a trial ({error}): remove it") from None
    _check_whose(path, trial.folder)
    return trial


def find_finished(folder: Path, data_root: str | Path | None, accept_hash: bool) -> Result | None:
    """Return the result of a run that is over, if the data are still those it was trained on.

    Nothing is locked or written, so the folder may be on read-only media.
    """
    done = read_result(folder)
    if done is None:
        return None
    if not done.data.official and not accept_hash:
        raise RunError(
            f"{folder} was trained on files that are not the published ones: accept it "
            "(--accept-hash), or start over (--again)"
        )
    try:
        splits = [
            data.load(done.trial["dataset"], data_root, split, accept_hash=accept_hash)
            for split in ("train", "test")
        ]
    except data.MissingFileError:
        return done  # nothing to compare with
    if [split.sha256 for split in splits] != [done.data.train_sha256, done.data.test_sha256]:
        raise RunError(
            f"{folder} was trained on data that differ from those here now: put the former data "
            "back, or start over (--again)"
        )
    return done


def clear(folder: Path) -> None:
    """Remove what a run left, over or running, but its trial and its log."""
    from stochbatch.training import checkpoint

    # The result first: without it, what is left is a running run.
    for name in (RESULT, WEIGHTS, METRICS):
        (folder / name).unlink(missing_ok=True)
    checkpoint.remove_all(folder)
