"""A trial's loop against the loop that people write, and that both learn the same."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable

import torch

from benchmarks import tutorial
from benchmarks.result import Goal, Result
from benchmarks.timing import in_turn, ratios, times
from stochbatch.data import DATASETS, MissingFileError, Split, load
from stochbatch.training import Trial
from stochbatch.training.builders import build_network
from stochbatch.training.trainer import Trainer

WORKERS = 2


def _cifar(images: int) -> tuple[Split, str]:
    """Return some of CIFAR-10's training images, or of noise if they are not there."""
    try:
        whole = load("cifar10", accept_hash=True)
        pixels, labels, what = whole.images[:images], whole.labels[:images], "CIFAR-10 pixels"
    except MissingFileError:
        pixels = torch.randint(256, (images, 3, 32, 32), dtype=torch.uint8)
        labels, what = torch.randint(10, (images,)), "random pixels (CIFAR-10 is not there)"
    classes = DATASETS["cifar10"].classes
    return Split(pixels, labels, "cifar10", "train", classes, False, "0" * 64), what


def _ours(trial: Trial, split: Split) -> Callable[[], object]:
    trainer = Trainer(trial, split, split, torch.device("cpu"))
    epochs = itertools.count()
    return lambda: trainer.train_epoch(next(epochs))


def _theirs(trial: Trial, split: Split) -> Callable[[], object]:
    trainer = Trainer(trial, split, split, torch.device("cpu"))  # for its statistics only
    network = build_network(trial)
    pictures = tutorial.Pictures(
        split.images,
        split.labels,
        DATASETS[trial.dataset].augmentation,
        trainer.batches.normalisation,
    )
    optimizer = torch.optim.SGD(network.parameters(), trial.lr, weight_decay=trial.weight_decay)
    return tutorial.loop(network, optimizer, pictures, trial.batch_size, WORKERS)


def has_bf16() -> bool:
    """Whether the processor computes in bfloat16 itself; emulated, it is slower than float32."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def run(quick: bool) -> Result:
    """Time epochs of a few batches, and compare accuracies on digits."""
    _, what = _cifar(1)
    result = Result(
        f"a trial's loop against a DataLoader with transforms of single images, {what}, "
        f"{WORKERS} workers",
        ["network", "batch", "precision", "theirs images/s", "ours images/s", "times faster"],
    )
    for network in ("vgg11",) if quick else ("vgg11", "resnet18"):
        for batch in (128, 16):
            for precision in ("fp32", "bf16") if has_bf16() else ("fp32",):
                _compare(result, network, batch, precision, quick)
    if not has_bf16():
        result.notes.append("this processor has no bfloat16 arithmetic: bf16 was not measured")
    result.notes += _accuracies(seeds=2 if quick else 5)
    return result


def _compare(result: Result, network: str, batch: int, precision: str, quick: bool) -> None:
    images = batch * (2 if quick else 5)
    split, _ = _cifar(images)
    trial = Trial(dataset="cifar10", network=network, batch_size=batch)
    ours = trial.model_copy(update={"precision": precision})
    calls = {"theirs": _theirs(trial, split), "ours": _ours(ours, split)}
    seconds = in_turn(calls, rounds=4 if quick else (6 if batch == 128 else 12), warmup=1)
    ratio = ratios(seconds["theirs"], seconds["ours"]).median
    speeds = [images / times(seconds[name]).median for name in calls]
    result.rows.append([network, batch, precision, *speeds, ratio])
    what = f"{network}, batch {batch}, {precision}: times faster"
    limit = 2.0 if (batch, precision) == (128, "bf16") else 1.0
    result.goals.append(Goal(what, ratio, limit, at_least=True))


def _accuracies(seeds: int, epochs: int = 8) -> list[str]:
    """Return a line for each loop: test accuracy on digits over some seeds."""
    train, test = load("digits"), load("digits", split="test")
    found: dict[str, list[float]] = {"theirs": [], "ours": []}
    for seed in range(seeds):
        trial = Trial(epochs=epochs, batch_size=32, lr=0.02, schedule="constant", seed=seed)
        trainer = Trainer(trial, train, test, torch.device("cpu"))
        for epoch in range(epochs):
            trainer.train_epoch(epoch)
        found["ours"].append(trainer.evaluate(0)["test_accuracy"])
        other = Trainer(trial, train, test, torch.device("cpu"))
        pictures = tutorial.Pictures(
            train.images,
            train.labels,
            DATASETS["digits"].augmentation,
            other.batches.normalisation,
        )
        epoch_of_theirs = tutorial.loop(other.network, other.optimizer, pictures, 32, workers=0)
        for _ in range(epochs):
            epoch_of_theirs()
        found["theirs"].append(other.evaluate(0)["test_accuracy"])
    return [
        f"accuracy on digits after {epochs} epochs, {seeds} seeds, {name}: "
        f"{statistics.mean(values):.2f} % (standard deviation {statistics.stdev(values):.2f})"
        for name, values in found.items()
    ]
