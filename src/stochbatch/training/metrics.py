"""The schema of ``metrics.jsonl``: one line of JSON per epoch."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stochbatch.training.exceptions import what_is_wrong


class LayerMetrics(BaseModel):
    """What SBS did to one layer in an epoch."""

    model_config = ConfigDict(strict=True)

    name: str
    kind: str
    """Layers of one kind are compared with each other."""
    size: int
    """Number of weights."""
    probability: float | None
    """Mean update probability."""
    batches: float | None
    """Mean number of batches in the average gradient of a weight."""


class EpochMetrics(BaseModel):
    """A line of ``metrics.jsonl``; numbers that are not finite are null."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    epoch: int = Field(ge=0)
    """Counted from 0."""
    lr: float
    """Learning rate."""
    train_loss: float | None
    """Mean loss of the batches as they were trained on."""
    train_accuracy: float
    """Percent of them that were right."""
    test_loss: float | None = None
    """Loss on the test images; left out where the epoch was not evaluated."""
    test_accuracy: float | None = None
    """Percent of the test images that were right."""
    images_per_second: float
    seconds: float
    """How long the epoch took."""
    layers: list[LayerMetrics] = []
    """A row for each layer; only SBS has them."""
    skipped_steps: int = 0
    """Steps that SBS skipped so far because a gradient was not finite."""
    trial: str | None = None
    """The first 16 digits of the trial's hash; lines of earlier versions have none."""
    data: str | None = None
    """The key of the data, see :class:`stochbatch.training.result.DataFacts`."""


def parse(lines: list[bytes], trial: str) -> list[dict[str, Any]]:
    """Return the lines of a run as dicts; ``trial`` is the first 16 digits of its trial's hash.

    Raises:
        ValueError: which line is odd, and why.
    """
    found = []
    for number, line in enumerate(lines):
        try:
            epoch = EpochMetrics.model_validate_json(line)
        except ValidationError as error:
            raise ValueError(f"line {number + 1} is not valid ({what_is_wrong(error)})") from None
        if epoch.epoch != number:
            raise ValueError(f"line {number + 1} is not valid (it is of epoch {epoch.epoch})")
        if epoch.trial not in (None, trial):
            raise ValueError(f"line {number + 1} is of the trial {epoch.trial}, not of {trial}")
        found.append(json.loads(line))
    if len({line.get("data") for line in found}) > 1:
        raise ValueError("its lines are of different data")
    return found
