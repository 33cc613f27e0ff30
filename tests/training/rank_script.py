"""What the ranks do in ``test_distributed.py``: torchrun runs this file with a job and a folder.

Every rank leaves what it saw in a file of its own.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from stochbatch.data import MissingFileError
from stochbatch.nets import NETWORKS
from stochbatch.training import Interrupted, RunError, Trial, run, trainer
from stochbatch.training.distributed import Slices, launched

SMALL = {"epochs": 2, "share": 65 / 1352, "batch_size": 31, "lr": 0.01, "width": 0.25}
"""Batches of 31, 31 and 3 images: slices of 15 and 16, and one that is too small to be sliced."""

TRIALS: list[dict[str, Any]] = [
    {"network": "plain", "momentum": 0.9},
    {"network": "plain", "method": "sbs", "momentum": 0.5},
    {"network": "plain", "method": "entropy-sgd"},
    {"method": "sbs", "momentum": 0.9, "width": 1.0},
    {"method": "entropy-sgd"},
    {"method": "dropout", "precision": "bf16"},
    {"network": "resnet18", "width": 0.0625, "method": "adaptive-dropout", "precision": "fp16"},
]
"""The first three have no batch norm, so that one process trains them to the same weights."""

RANK = launched()[0]


def plain(classes: int = 10, channels: int = 1, width: float = 1.0, **_: Any) -> nn.Module:
    """Return a network without batch norm."""
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, classes)
    )


def trial_of(fields: dict[str, Any]) -> Trial:
    if "plain" not in NETWORKS:
        NETWORKS.add("plain", "For tests: a network without batch norm.", plain)
    return Trial(**{**SMALL, **fields})


def weights_of(optimizer: Optimizer) -> str:
    """Return a hash of all weights and of the state of the optimizer."""
    digest = hashlib.sha256()
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    states = optimizer.state_dict()["state"].values()
    for value in [*weights, *(v for s in states for v in s.values())]:
        digest.update(torch.as_tensor(value).detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def train(root: Path) -> list[dict[str, Any]]:
    """Train all trials; return slices, weights after every step, and results."""
    seen: list[dict[str, Any]] = []
    take = Slices.__call__

    def noting(self: Slices, epoch: int, number: int) -> Any:
        found = take(self, epoch, number)
        images = found.images.double().sum((1, 2, 3)).tolist()
        seen[-1]["slices"].append([epoch, number, images, found.weight])
        return found

    Slices.__call__ = noting  # type: ignore[method-assign]
    register_optimizer_step_post_hook(
        lambda optimizer, *_: seen[-1]["weights"].append(weights_of(optimizer))
    )
    for fields in (*TRIALS, TRIALS[0]):  # the last one is over
        seen.append({"slices": [], "weights": []})
        seen[-1]["result"] = run(trial_of(fields), root).model_dump(mode="json")
    return seen


def stop(root: Path) -> list[Any]:
    """Train as a whole, and stopped on one rank and resumed; then only stopped."""
    seen: list[Any] = []
    for fields in (TRIALS[0], TRIALS[3]):
        steps = itertools.count()

        def stopping(*_: Any, steps: Iterator[int] = steps) -> None:
            if (next(steps), RANK) == (3, 2):  # the first one of the second epoch
                os.kill(os.getpid(), signal.SIGTERM)

        hook = register_optimizer_step_pre_hook(stopping)
        try:
            run(trial_of(fields), root / "stopped")
        except Interrupted as stop:
            seen.append(stop.signal_number)
        hook.remove()
    for name in ("stopped", "whole"):
        seen.append(run(trial_of(TRIALS[3]), root / name).weights_sha256)
    return seen


def refuse(root: Path) -> list[str]:
    """Return the errors of what several ranks cannot do."""

    def straying(optimizer: Optimizer, *_: Any) -> None:
        if RANK == 1:
            optimizer.param_groups[0]["params"][0].data.view(-1)[0] += 1e-6

    errors = []
    for fields, options in (
        ({"batch_size": 3}, {}),
        ({"sync_bn": True}, {}),
        ({}, {"device": "nonsense"}),
        ({"dataset": "cifar10"}, {"data_root": root}),
        ({"seed": RANK}, {}),
        ({"seed": 7}, {}),
    ):
        if fields == {"seed": 7}:
            register_optimizer_step_post_hook(straying)
        try:
            run(trial_of(fields), root / "refused", **options)
        except (RunError, MissingFileError) as error:
            errors.append(str(error))
    return errors


def fail(root: Path) -> None:
    """Run the command; one rank has no memory."""

    def full(trial: Trial) -> nn.Module:
        raise MemoryError("no room for a network")

    if RANK == 1:
        trainer.build_network = full  # type: ignore[attr-defined, assignment]
    from stochbatch.cli import main

    sys.argv = ["stochbatch", "train", "--root", str(root), "--epochs", "1", "--quiet"]
    main()


if __name__ == "__main__":
    torch.set_num_threads(1)
    job, folder = sys.argv[1], Path(sys.argv[2])
    answer = globals()[job](folder)
    (folder / f"{job}-{RANK}.json").write_text(json.dumps(answer))
