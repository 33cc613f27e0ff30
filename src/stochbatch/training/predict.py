"""Classify pictures with the network of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from stochbatch.data import DATASETS, Batches, Dataset
from stochbatch.data.pictures import read_picture
from stochbatch.optional import optional

if TYPE_CHECKING:
    from stochbatch.training import RunFolder


class Prediction(NamedTuple):
    """The likeliest classes of a picture with their probabilities, best first."""

    path: Path
    classes: list[tuple[str, float]]
    inverted: bool


def classify(read: RunFolder, paths: Sequence[Path], top: int = 3) -> list[Prediction]:
    """Classify the pictures at ``paths``; each gets its ``top`` likeliest classes."""
    entry = DATASETS[read.trial.dataset]
    images, inverted = zip(*(prepare(path, entry) for path in paths), strict=True)
    labels, norm = torch.zeros(len(images), dtype=torch.int64), read.normalisation
    batches = Batches(torch.stack(images), labels, 64, shuffle=False, normalisation=norm)
    network = read.network()
    with torch.inference_mode():
        chances = torch.cat([network(pixels).softmax(1) for pixels, _ in batches.epoch(0)])
    best = chances.topk(min(top, len(entry.classes)))
    rows = zip(paths, best.indices.tolist(), best.values.tolist(), inverted, strict=True)
    return [
        Prediction(path, [(entry.classes[at], p) for at, p in zip(places, values, strict=True)], by)
        for path, places, values, by in rows
    ]


def prepare(path: Path, entry: Dataset) -> tuple[Tensor, bool]:
    """Return a picture as uint8 [C, H, W] of a data set, and whether it was inverted."""
    ops, (channels, height, width) = optional("PIL.ImageOps"), entry.shape
    picture = read_picture(path, "L" if channels == 1 else "RGB")
    size, box, inverted = (width, height), optional("PIL.Image").Resampling.BOX, False
    if channels == 1:  # the grey data sets are light on dark, and have a margin
        tones = np.asarray(picture)
        border = np.median(np.concatenate([*tones[[0, -1]], *tones[:, [0, -1]].T]))
        inverted = bool(border > 127.5)
        picture = ops.pad(picture, size, box, color=round(border))
        picture = ops.invert(picture) if inverted else picture
    else:
        picture = ops.fit(picture, size, box)
    pixels = np.array(picture, dtype=np.uint8).reshape(height, width, channels)
    return torch.from_numpy(pixels).permute(2, 0, 1), inverted
