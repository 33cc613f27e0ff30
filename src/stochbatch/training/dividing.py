"""A batch divided among processes, and gradients that are those of the whole of it."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from stochbatch.data import Batches

LEAST = 2
"""So many images of a batch, at least, each process gets: batch norm needs two values."""

_BUFFERS_BEFORE_EACH_STEP = next(  # as newer and as older versions of torch call it
    name
    for name in ("forward_sync_buffers", "broadcast_buffers")
    if name in signature(DistributedDataParallel).parameters
)


class Part(NamedTuple):
    """What one process trains on of a batch."""

    images: Tensor
    labels: Tensor
    weight: float
    """Factor on the mean loss over the part. The mean over all processes of the gradients of
    such losses is the gradient of the mean loss over the batch."""
    divided: bool
    """Whether it is less than the batch."""
    counted: bool
    """Whether its images are in no other process's tally."""


class Parts:
    """The batches of a training, as one of its processes gets them.

    A batch with fewer than two images for each process, which the last of an epoch may be, is
    not divided: every process takes the whole of it, and all compute the same.

    Args:
        batches: this process's parts.

    Example:
        >>> from stochbatch import data
        >>> from stochbatch.training.dividing import Parts
        >>> images, labels = data.load("digits")
        >>> batches = data.Batches(images[:35], labels[:35], 33, rank=1, ranks=2)
        >>> [len(Parts(batches).part(0, number).labels) for number in (0, 1)]
        [17, 2]
    """

    def __init__(self, batches: Batches) -> None:
        self._parts = batches
        self._whole = copy(batches)  # of the same images in memory
        self._whole.rank, self._whole.ranks = 0, 1

    def part(self, epoch: int, number: int) -> Part:
        """Return this process's part of a batch."""
        rank, ranks = self._parts.rank, self._parts.ranks
        size = self._size(number)
        if ranks == 1 or size < LEAST * ranks:
            images, labels = self._whole.batch(epoch, number)
            return Part(images, labels, 1.0, divided=False, counted=rank == 0)
        images, labels = self._parts.batch(epoch, number)
        return Part(images, labels, len(labels) * ranks / size, divided=True, counted=True)

    def _size(self, number: int) -> int:
        batch_size, images = self._whole.batch_size, self._whole.shape[0]
        return min(batch_size, images - number * batch_size)


def data_parallel(
    network: nn.Module, forward: nn.Module, example: Tensor
) -> Callable[[Tensor], Tensor]:
    """Return the network such that its gradients are the mean over all processes.

    Args:
        network: the network; its weights become those of process 0.
        forward: the network, or what ``torch.compile`` made of it.
        example: a batch on the network's device.
    """
    device = example.device
    # Running statistics do not enter a training step: they are copied for an evaluation.
    options: dict[str, Any] = {_BUFFERS_BEFORE_EACH_STEP: False}
    if device.type == "cuda":
        options["device_ids"] = [device.index]
    parallel = DistributedDataParallel(forward, **options)
    # It lays gradients out anew after its first backward pass, and the place of a gradient
    # decides in which order three and more processes are summed. With this pass before the
    # first step, a run that resumes has the layout of one that was never stopped.
    network.eval()
    with torch.compiler.set_stance("force_eager"):
        parallel(example).sum().backward()
    network.zero_grad()
    network.train()
    return parallel
