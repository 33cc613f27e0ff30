"""What these examples share: digits, a small network, two optimizers, and a fingerprint.

Every example trains for three epochs, saves a checkpoint in the middle of the second one, and
resumes from it with ``--resume``. The weights of both are the same to the last bit.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import stochbatch
from stochbatch import data

EPOCHS = 3
BATCH_SIZE = 32
SAVE_AT = 60
"""The step after which the checkpoint is saved; an epoch has 43."""


def digits(split: str = "train") -> TensorDataset:
    """Return 8x8 pictures of digits as vectors, with their labels."""
    images, labels = data.load("digits", split)
    return TensorDataset(images.flatten(1) / 255, labels)


def order(epoch: int) -> Sequence[Tensor]:
    """Return the batches of an epoch, as indices: a function of the epoch, so resuming is easy."""
    generator = torch.Generator().manual_seed(epoch)
    return torch.randperm(len(digits()), generator=generator).split(BATCH_SIZE)


def network() -> nn.Sequential:
    """Return the same network, with the same weights, in every run."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def optimizer_for(model: nn.Module, name: str) -> torch.optim.Optimizer:
    """Return SBS, or its coin around AdamW.

    ``param_groups`` must see the model itself: groups that a framework makes (decay, no decay)
    have neither the kinds of layers nor their names.
    """
    if name == "sbs":
        return stochbatch.SBS(stochbatch.param_groups(model), lr=0.1, lambd=-1.0, seed=0)
    return stochbatch.Masked(torch.optim.AdamW(model.parameters(), lr=3e-3), seed=0)


def options(argv: Sequence[str] | None, doc: str | None) -> argparse.Namespace:
    """Return the options that all examples have."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--optimizer", choices=("sbs", "masked-adamw"), default="sbs")
    parser.add_argument("--folder", type=Path, default=Path("integration"), help="of checkpoints")
    parser.add_argument("--resume", action="store_true", help="resume from the checkpoint")
    return parser.parse_args(argv)


def finish(model: nn.Module) -> str:
    """Print the accuracy on the test images; return and print a hash of the weights."""
    images, labels = digits("test").tensors
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).float().mean().item()
    digest = hashlib.sha256()
    for weight in model.parameters():
        digest.update(weight.detach().numpy().tobytes())
    print(f"test accuracy {100 * right:.1f} %, weights {digest.hexdigest()[:16]}")
    return digest.hexdigest()
