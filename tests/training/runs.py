"""Small runs, and what two runs of one trial must have in common."""

import json
from pathlib import Path
from typing import Any

import pytest

from stochbatch.training import Observer, Trial, run
from stochbatch.training.observers import Start

SMALL = {"epochs": 3, "share": 0.2, "batch_size": 32, "width": 0.25}


def small_trial(**fields: Any) -> Trial:
    return Trial(**{**SMALL, **fields})


def lasting(folder: Path) -> dict[str, Any]:
    """Return everything that a run left but for times and environments."""
    result = json.loads((folder / "result.json").read_text())
    for name in ("times", "environment", "earlier_environments"):
        result.pop(name, None)
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in metrics:
        del line["seconds"], line["images_per_second"]
    return {
        "result": json.dumps(result),
        "metrics": [json.dumps(line) for line in metrics],
        "weights": (folder / "weights.safetensors").read_bytes(),
        "trial": (folder / "trial.json").read_bytes(),
        "files": sorted(path.name for path in folder.iterdir() if path.name != "lock"),
    }


class Witness(Observer):
    """Remembers what it was told, and does something at a place of the training."""

    def __init__(self, act: Any = None, at: tuple[int, int] | None = None) -> None:
        self.act, self.at = act, at
        self.begun: Start | None = None
        self.batches: list[tuple[int, int]] = []
        self.epochs: list[dict[str, Any]] = []
        self.result: Any = None
        self.closed = 0

    def on_start(self, start) -> None:
        self.begun = start

    def on_batch(self, metrics) -> None:
        place = metrics["epoch"], metrics["batch"]
        self.batches.append(place)
        if place == self.at:
            self.act()

    def on_epoch(self, metrics) -> None:
        self.epochs.append(metrics)

    def on_end(self, result) -> None:
        self.result = result

    def close(self) -> None:
        self.closed += 1


class CrashError(Exception):
    """Stands for whatever ends a process."""


def crash() -> None:
    """End as a process that crashes."""
    raise CrashError


def crashed(trial: Trial, root: Path, at: tuple[int, int], **options: Any) -> Path:
    """Return the folder of a run that crashed at an epoch and a batch of it."""
    with pytest.raises(CrashError):
        run(trial, root, observers=[Witness(crash, at)], **options)
    return root / trial.folder
