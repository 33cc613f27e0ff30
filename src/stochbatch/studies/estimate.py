"""How long a study will take on this machine, from a measured sample."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from stochbatch.data import DATASETS, Split
from stochbatch.training import Trial
from stochbatch.training.run_folder import read_metrics
from stochbatch.training.trainer import Trainer

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
        evaluations = sum(trial.evaluates(epoch) for epoch in range(trial.epochs))
        return trial.epochs * train + evaluations * entry.test.count * self.test


def kind_of(trial: Trial, device: torch.device) -> Kind:
    """Return the kind of a trial."""
    # On a CPU an image takes as long in a small batch; a GPU is busy with large ones alone.
    size = SAMPLE_BATCH if device.type == "cpu" else trial.batch_size
    return trial.dataset, trial.network, trial.width, trial.precision, size


def measure(kind: Kind, device: torch.device) -> Speed:
    """Return the speed of a kind of trials, with SGD, on random pixels."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the trials of a study have
    try:
        return _measure(kind, device)
    finally:
        torch.set_num_threads(threads)


def _measure(kind: Kind, device: torch.device) -> Speed:
    dataset, network, width, precision, size = kind
    trial = Trial(
        dataset=dataset, network=network, width=width, batch_size=size, epochs=1
    ).model_copy(update={"precision": precision})
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

    trainer.train_epoch(0, after_step=after_step)
    middle = time.perf_counter()
    trainer.evaluate(0)
    end = time.perf_counter()
    return Speed((middle - began) / (SAMPLE_STEPS * size), (end - middle) / count)


def estimate(
    trials: Sequence[Trial],
    root: Path,
    device: torch.device,
    told: Callable[[Kind], None] = lambda kind: None,
    measured: Callable[[Kind, torch.device], Speed] = measure,
) -> list[float]:
    """Return the seconds that each trial takes yet, by the epochs that its folder lacks.

    Args:
        trials: what is to be run.
        root: the folder of all runs.
        device: where.
        told: is called before the speed of a kind is measured.
        measured: measures it.
    """
    speeds: dict[Kind, Speed] = {}
    seconds = []
    for trial in trials:
        kind = kind_of(trial, device)
        if kind not in speeds:
            told(kind)
            speeds[kind] = measured(kind, device)
        left = max(0, trial.epochs - len(read_metrics(root / trial.folder)))
        seconds.append(speeds[kind].seconds(trial) * left / trial.epochs)
    return seconds


def until_all_are_done(seconds: Iterable[float], workers: int) -> float:
    """Return when the last of so many workers is done, each taking the next as it gets free.

    Example:
        >>> from stochbatch.studies.estimate import until_all_are_done
        >>> until_all_are_done([10, 10, 10], workers=2)
        20.0
    """
    free = [0.0] * workers
    for each in seconds:
        heapq.heapreplace(free, free[0] + each)
    return max(free)
