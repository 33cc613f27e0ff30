"""What a training leaves behind: its outcome, and what it was computed with.

Schema 1 of ``result.json``: the fields of :class:`Result`. ``times`` and environments may
differ between two runs of one trial; everything else is the same to the last bit on the same
hardware and versions, however often the run was stopped and resumed.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

import stochbatch
from stochbatch.registry import DATASETS, METHODS, NETWORKS, SCHEDULES
from stochbatch.training.trial import Trial, last_tenth

if TYPE_CHECKING:
    import torch


class Accuracy(BaseModel):
    """Test accuracy in percent, in the readings that a table may mean."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mean: float
    """Mean over the last 10 % of the epochs, at least one, as far as they were evaluated; of a
    run that diverged, only its end."""
    max: float
    """Best epoch that was evaluated."""
    final: float
    """Last epoch that was evaluated."""
    best_epoch: int
    """Counted from 0."""

    @classmethod
    def of(cls, curve: list[float | None], diverged: bool = False) -> Accuracy | None:
        """Return the readings of a curve, one number per epoch; None if all are None.

        What diverged counts as it ended, and not as it was before: the latter would depend on
        how often it was evaluated.

        Example:
            >>> from stochbatch.training.result import Accuracy
            >>> Accuracy.of([None, 80.0, None, 90.0, 85.0])
            Accuracy(mean=85.0, max=90.0, final=85.0, best_epoch=3)
            >>> Accuracy.of([80.0] * 19 + [10.0], diverged=True).mean
            10.0
        """
        there = {epoch: value for epoch, value in enumerate(curve) if value is not None}
        if not there:
            return None
        final = there[max(there)]
        best = max(there, key=lambda epoch: (there[epoch], -epoch))
        first = len(curve) - (1 if diverged else last_tenth(len(curve)))
        last = [value for epoch, value in there.items() if epoch >= first] or [final]
        return cls(mean=sum(last) / len(last), max=there[best], final=final, best_epoch=best)

    def in_words(self) -> str:
        """Return all of it as a line.

        Example:
            >>> from stochbatch.training.result import Accuracy
            >>> Accuracy.of([80.0, 90.0, 85.0]).in_words()
            '85.00 % (best 90.00 % in epoch 2, mean of the last tenth 85.00 %)'
        """
        return (
            f"{self.final:.2f} % (best {self.max:.2f} % in epoch {self.best_epoch + 1}, "
            f"mean of the last tenth {self.mean:.2f} %)"
        )


class DataFacts(BaseModel):
    """Which images were used."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    train_sha256: str
    """Digest of the training images and labels."""
    test_sha256: str
    """Digest of the test images and labels."""
    official: bool
    """Whether the files were the published ones."""
    train_images: int
    test_images: int
    """Number of test images; ``train_images`` is that of training images."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    """Standard deviation per channel; ``mean`` is the mean."""

    @property
    def key(self) -> str:
        """Sixteen digits that stand for the images in other files of a run."""
        return hashlib.sha256(f"{self.train_sha256} {self.test_sha256}".encode()).hexdigest()[:16]


class Result(BaseModel):
    """The outcome of a trial."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    """Version of this list of fields."""
    status: Literal["finished", "diverged"]
    """``finished`` or ``diverged``."""
    trial: dict[str, Any]
    """All fields of the trial."""
    trial_hash: str
    """Its identity, 64 digits; the first 16 name the folder."""
    epochs: int
    """Epochs done."""
    accuracy: Accuracy | None
    """None if not even one epoch was evaluated."""
    train_loss: float | None
    """Of the last epoch; None if it was not a number."""
    curve: list[float | None]
    """Test accuracy of every epoch; None where it was not evaluated."""
    correct: str | None = None
    """In how many evaluations of the last 10 % of the epochs each test image was right, in their
    order. Left out for 2,000 test images and more, and where a training diverged."""
    parameters: int
    """Number of scalars of the network."""
    data: DataFacts
    """Which images were used."""
    weights_sha256: str
    """Of the bytes of ``weights.safetensors``."""
    times: dict[str, float]
    """Seconds in all and per epoch."""
    environment: dict[str, Any]
    """Of the process that finished it."""
    earlier_environments: list[dict[str, Any]] = Field(default_factory=list)
    """Of processes that trained it before it was resumed, where they were others than this."""

    _folder: Path | None = PrivateAttr(default=None)

    @property
    def folder(self) -> Path:
        """Where the run lies."""
        assert self._folder is not None, "a result is made by a run, or read from its folder"
        return self._folder

    @property
    def image_accuracy(self) -> list[float] | None:
        """Accuracy on each test image, of which ``accuracy.mean`` is the mean; None if not known.

        What diverged counts as a guess: all images are alike.
        """
        if self.status == "diverged" and self.accuracy is not None:
            return [self.accuracy.mean] * self.data.test_images
        if self.correct is None:
            return None
        return [100 * int(count) / last_tenth(self.epochs) for count in self.correct.split()]

    def in_folder(self, folder: Path) -> Result:
        """Return the result, which then knows where it lies."""
        self._folder = folder
        return self


def environment(device: torch.device, ranks: int = 1) -> dict[str, Any]:
    """Return versions and hardware, and how many processes trained together."""
    import torch

    return {
        "stochbatch": stochbatch.__version__,
        "revision": _revision(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": processor(),
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "ranks": ranks,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }


def plugins_of(trial: Trial) -> dict[str, list[str]]:
    """Return the plugins that a trial needs, with their versions, as a part of an environment."""
    origins = {
        DATASETS.origin(trial.dataset),
        NETWORKS.origin(trial.network),
        METHODS.origin(trial.method),
        SCHEDULES.origin(trial.schedule),
    }
    found = sorted(origin for origin in origins if origin is not None)
    return {"plugins": found} if found else {}


def _revision() -> str | None:
    """Return the commit of the source, if it lies in a repository that keeps it."""
    source = Path(stochbatch.__file__)

    def git(*words: str) -> str:
        command = ["git", "-C", str(source.parent), *words]
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return found.stdout.strip()

    try:
        # An installed package may lie within somebody else's repository.
        git("ls-files", "--error-unmatch", source.name)
        return git("describe", "--always", "--dirty", "--abbrev=40") or None
    except (OSError, subprocess.SubprocessError):
        return None


def processor() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), "")
