"""How long a study will take on this machine, from a measured sample."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from stochbatch.data import DATASETS, Split
from stochbatch.training import Trial
from stochbatch.training.session import Session, Tally

SAMPLE_BATCH, SAMPLE_STEPS = 16, 2

Kind = tuple[str, str, float, str]
"""What decides how long an image takes: data set, network, width, precision."""


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


def kind_of(trial: Trial) -> Kind:
    """Return the kind of a trial."""
    return trial.dataset, trial.network, trial.width, trial.precision


def measure(kind: Kind, device: torch.device) -> Speed:
    """Return the speed of a kind of trials, with SGD and batches of 16, on random pixels."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the trials of a study have
    try:
        return _measure(kind, device)
    finally:
        torch.set_num_threads(threads)


def _measure(kind: Kind, device: torch.device) -> Speed:
    dataset, network, width, precision = kind
    trial = Trial(
        dataset=dataset, network=network, width=width, batch_size=SAMPLE_BATCH, epochs=1
    ).model_copy(update={"precision": precision})
    entry = DATASETS[dataset]
    count = SAMPLE_BATCH * (SAMPLE_STEPS + 1)
    images = torch.randint(256, (count, *entry.shape), dtype=torch.uint8)
    labels = torch.randint(len(entry.classes), (count,))
    split = Split(images, labels, dataset, "train", entry.classes, False, "0" * 64)
    session = Session(trial, split, split, device)
    session.begin_epoch()
    session.step(0, 0)
    float(session.tally.loss)
    began = time.perf_counter()
    for step in range(1, SAMPLE_STEPS + 1):
        session.step(0, step)
    float(session.tally.loss)
    middle = time.perf_counter()
    tally = Tally.zeros(device)
    for _ in session.evaluate(0, tally):
        pass
    float(tally.loss)
    end = time.perf_counter()
    return Speed((middle - began) / (SAMPLE_STEPS * SAMPLE_BATCH), (end - middle) / count)


def estimate(
    trials: Sequence[Trial],
    device: torch.device,
    told: Callable[[Kind], None] = lambda kind: None,
) -> float:
    """Return the seconds that all trials take, one after the other."""
    speeds: dict[Kind, Speed] = {}
    total = 0.0
    for trial in trials:
        kind = kind_of(trial)
        if kind not in speeds:
            told(kind)
            speeds[kind] = measure(kind, device)
        total += speeds[kind].seconds(trial)
    return total
