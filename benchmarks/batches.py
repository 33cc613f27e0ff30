"""Making batches (index, crop, flip, normalise) against the network's forward and backward."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from benchmarks.result import Goal, Result
from benchmarks.timing import in_turn, ratios, times
from stochbatch.data import Augmentation, Batches
from stochbatch.nets import vgg11

BATCH, LIMIT = 128, 3.0


def _images(count: int) -> torch.Tensor:
    return torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8)


def _maker(batches: Batches) -> Callable[[], object]:
    epoch = -1

    def one_epoch() -> None:
        nonlocal epoch
        epoch += 1  # order, crops and flips are drawn anew, which is part of the cost
        for _ in batches.epoch(epoch):
            pass

    return one_epoch


def run(quick: bool) -> Result:
    """Time an epoch's batches, and forward and backward of one batch times their number."""
    result = Result(
        f"batches: index, crop, flip and normalise an epoch of CIFAR-10's size at batch {BATCH}, "
        "in percent of VGG11's forward and backward",
        ["images", "batches ms", "VGG11 ms", "percent", "10 % to 90 %"],
    )
    count = 12_800 if quick else 50_000
    batches = Batches(
        _images(count),
        torch.randint(10, (count,)),
        BATCH,
        augmentation=Augmentation(4, flip=True),
    )
    model = vgg11().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images, labels = batches.batch(0, 0)

    def forward_and_backward() -> None:
        model.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(model(images), labels))

    seconds = in_turn(
        {"batches": _maker(batches), "VGG11": forward_and_backward}, rounds=4 if quick else 12
    )
    whole = [len(batches) * second for second in seconds["VGG11"]]
    ratio = ratios([100 * second for second in seconds["batches"]], whole)
    spread = f"{ratio.low:.2f} to {ratio.high:.2f}"
    both = [1000 * times(row).median for row in (seconds["batches"], whole)]
    result.rows.append([count, *both, ratio.median, spread])
    result.goals.append(Goal("batches, percent of forward and backward", ratio.median, LIMIT))
    return result
