"""One training over several processes that torchrun started.

Each rank takes a slice of every batch, ``DistributedDataParallel`` averages the gradients, and
rank 0 evaluates, writes and prints. An error ends the process of its rank; the other ranks lose
their connection to it and end, too.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from stochbatch.data import Batches
from stochbatch.training.device import choose_device
from stochbatch.training.exceptions import RunError

T = TypeVar("T")

LEAST = 2
"""Images per rank and batch, at least: batch norm needs two values."""


def launched() -> tuple[int, int]:
    """Return the rank of this process and the number of ranks; 0 and 1 without torchrun."""
    # A child, such as a worker of a study, only inherits the variables of its parent.
    if "TORCHELASTIC_RUN_ID" not in os.environ or multiprocessing.parent_process() is not None:
        return 0, 1
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def is_first_to_report() -> bool:
    """Return whether no other rank has reported an error: the first one ends all ranks."""
    if launched()[1] == 1:
        return True
    try:
        # Torchrun's own store, which outlives every rank.
        store = next(rendezvous("env://", timeout=timedelta(seconds=10)))[0]
        return bool(store.add("stochbatch: errors", 1) == 1)
    except (RuntimeError, ValueError):
        return True  # better twice than never


class Ranks:
    """The processes of a training. All ranks must call the methods in the same order."""

    def __init__(self, rank: int = 0, count: int = 1) -> None:
        self.rank, self.count = rank, count

    def first(self, work: Callable[[], T]) -> T:
        """Do something on rank 0; return its outcome on every rank."""
        if self.count == 1:
            return work()
        outcome: list[Any] = [work() if self.rank == 0 else None]
        distributed.broadcast_object_list(outcome, src=0)
        return outcome[0]  # type: ignore[no-any-return]

    def check_same(self, fact: object, otherwise: str) -> None:
        """Raise, saying ``otherwise``, if the ranks do not have the same fact."""
        if self.count > 1:
            facts: list[object] = [None] * self.count
            distributed.all_gather_object(facts, fact)
            if any(other != fact for other in facts):
                raise RunError(f"the ranks of this training {otherwise}")

    def agree(self, stop: int, save: bool) -> tuple[int, bool]:
        """Return the highest signal number of all ranks, and whether any of them wants to save."""
        if self.count > 1:
            wishes = torch.tensor([stop, save])
            distributed.all_reduce(wishes, distributed.ReduceOp.MAX)
            stop, save = int(wishes[0]), bool(wishes[1])
        return stop, save

    def sum(self, parts: Iterable[Tensor]) -> list[Tensor]:
        """Return the sums over all ranks."""
        if self.count == 1:
            return list(parts)
        sums = [part.clone() for part in parts]
        for total in sums:
            distributed.all_reduce(total)
        return sums

    def choose_device(self, name: str) -> torch.device:
        """Return the device of this rank: of several, each has its own GPU."""
        if self.count == 1:
            return choose_device(name)
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        device = choose_device(f"cuda:{os.environ['LOCAL_RANK']}" if name == "cuda" else name)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        return device

    def check_trial(self, batch_size: int, sync_bn: bool, device: torch.device) -> None:
        """Raise if several ranks cannot train such batches on this device."""
        if self.count > 1 and batch_size < LEAST * self.count:
            raise RunError(
                f"batches of {batch_size} images are too small for {self.count} processes, each "
                f"of which needs {LEAST}: start at most {max(1, batch_size // LEAST)}"
            )
        if self.count > 1 and sync_bn and device.type != "cuda":
            raise RunError("sync_bn over several processes needs GPUs: use --no-sync-bn")

    def data_parallel(self, forward: nn.Module, example: Tensor) -> nn.Module:
        """Return a network whose gradients are the mean over all ranks, given a batch for it."""
        if self.count == 1:
            return forward
        on_gpu = example.device.type == "cuda"
        parallel = DistributedDataParallel(forward, [example.device] if on_gpu else None)
        # After its first backward pass DDP arranges gradients anew, and the order of a sum over
        # three or more ranks depends on that. With this pass before the first step a resumed run
        # has the same order as an undisturbed one.
        forward.eval()
        with torch.compiler.set_stance("force_eager"):
            parallel(example).sum().backward()
        forward.zero_grad()
        forward.train()
        return parallel


ALONE = Ranks()
"""A process that trains by itself."""


class Slice(NamedTuple):
    """What one rank trains on of a batch."""

    images: Tensor
    labels: Tensor
    weight: float
    """Factor on the mean loss over the slice: the mean over all ranks of the gradients of such
    losses is the gradient of the mean loss over the batch. 0 if rank 0 counts for all."""


class Slices:
    """One rank's slices of all batches, whose sizes differ by at most one image between ranks.

    The last batch of an epoch may be too small to be sliced. Then every rank computes the whole
    of it, and that of rank 0 counts.
    """

    def __init__(self, batches: Batches, ranks: Ranks) -> None:
        self._whole, self._ranks = batches, ranks
        self._sliced = copy(batches) if ranks.count > 1 else batches  # of the same images in memory
        self._sliced.rank, self._sliced.ranks = ranks.rank, ranks.count

    def __call__(self, epoch: int, number: int) -> Slice:
        """Return this rank's slice of a batch."""
        rank, count, whole = self._ranks.rank, self._ranks.count, self._whole
        size = min(whole.batch_size, whole.shape[0] - number * whole.batch_size)
        if size < LEAST * count:
            return Slice(*whole.batch(epoch, number), 0.0 if rank else float(count))
        images, labels = self._sliced.batch(epoch, number)
        return Slice(images, labels, len(labels) * count / size)


@contextmanager
def joined() -> Iterator[Ranks]:
    """Connect this process to the other ranks, if there are any; an error says if one is lost."""
    rank, count = launched()
    if count == 1:
        yield ALONE
        return
    try:
        if not distributed.is_initialized():
            cuda = torch.cuda.is_available()
            distributed.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
            atexit.register(distributed.destroy_process_group)
        yield Ranks(rank, count)
    except Exception as error:
        atexit.unregister(distributed.destroy_process_group)  # NCCL would wait for a lost rank
        # Torchrun now terminates all ranks, which must be able to report.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # An error of gloo has no class of its own, but names gloo's source.
        lost = isinstance(error, distributed.DistError) or "gloo" in str(error)
        if lost and not isinstance(error, RunError):
            raise RunError(
                "another rank died, or does not answer; run the same command again to resume"
            ) from error
        raise
