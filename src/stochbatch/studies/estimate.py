"""How long a study will take, from a measured sample."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from stochbatch.data import DATASETS, Split
from stochbatch.training import RunError, Trial
from stochbatch.training.run_folder import read_metrics
from stochbatch.training.trainer import Trainer
from stochbatch.training.trial import last_tenth

SAMPLE_BATCH, SAMPLE_STEPS = 16, 2

Kind = tuple[str, str, float, str, int]
"""What decides how long an image takes: data set, network, width, precision, batch size."""


@dataclass(frozen=True)
class Speed:
    """Seconds that an image takes in training, and in an evaluation."""

    train: float
    test: float

    def seconds(self, trial: Trial) -> float:
        """Return how long a whole trial takes."""
        entry = DATASETS[trial.dataset]
        train = entry.train.count * trial.share * self.train
        last = last_tenth(trial.epochs)  # all of which are evaluated
        evaluations = last + (trial.epochs - last) // trial.evaluate_every
        return (
            trial.epochs * train + evaluations * (trial.validation or entry.test.count) * self.test
        )


def kind_of(trial: Trial, device: torch.device) -> Kind:
    """Return the kind of a trial on a device."""
    # On a CPU an image takes as long in a small batch; only large ones keep a GPU busy.
    size = SAMPLE_BATCH if device.type == "cpu" else trial.batch_size
    return trial.dataset, trial.network, trial.width, trial.precision, size


def measure(kind: Kind, device: torch.device) -> Speed:
    """Return the speed of a kind of trials, with SGD and one thread, on random pixels."""
    dataset, network, width, precision, size = kind
    trial = Trial(dataset=dataset, network=network, width=width, batch_size=size, epochs=1)
    trial = trial.model_copy(update={"precision": precision})
    entry = DATASETS[dataset]
    count = size * (SAMPLE_STEPS + 1)
    images = torch.randint(256, (count, *entry.shape), dtype=torch.uint8)
    labels = torch.randint(len(entry.classes), (count,))
    split = Split(images, labels, dataset, "train", entry.classes, False, "0" * 64)
    trainer = Trainer(trial, split, split, device)
    began = 0.0

    def after_step(epoch: int, step: int) -> None:
        nonlocal began
        if step == 1:  # the first one is not measured
            trainer.tally.read()
            began = time.perf_counter()

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the trials of a study have
    try:
        trainer.train_epoch(0, after_step=after_step)
        middle = time.perf_counter()
        trainer.evaluate(0)
        end = time.perf_counter()
    finally:
        torch.set_num_threads(threads)
    return Speed((middle - began) / (SAMPLE_STEPS * size), (end - middle) / count)


def estimate(
    trials: Sequence[Trial],
    root: Path,
    device: torch.device,
    told: Callable[[Kind], None] = lambda kind: None,
    measured: Callable[[Kind, torch.device], Speed] = measure,
) -> list[float]:
    """Return the seconds that each trial still takes, by the epochs that its folder lacks.

    ``told`` is called before the speed of a kind of trials is measured.
    """
    speeds: dict[Kind, Speed] = {}
    seconds = []
    for trial in trials:
        kind = kind_of(trial, device)
        if kind not in speeds:
            told(kind)
            speeds[kind] = measured(kind, device)
        done = 0
        with suppress(RunError):  # odd metrics do not hinder a run: it writes them again
            done = len(read_metrics(root / trial.folder))
        seconds.append(speeds[kind].seconds(trial) * max(0, trial.epochs - done) / trial.epochs)
    return seconds


def duration(seconds: float) -> str:
    """Return a time in words.

    Example:
        >>> from stochbatch.studies.estimate import duration
        >>> duration(42), duration(400), duration(9000), duration(300000)
        ('42 s', '7 min', '2.5 h', '3.5 days')
    """
    for limit, unit, name in ((90, 1, "s"), (5400, 60, "min")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {name}"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"
