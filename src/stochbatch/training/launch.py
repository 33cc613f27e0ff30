"""What torchrun says to the processes that it starts, and which of them has the word.

Torchrun tells a process its number in the environment, and keeps a store that all of its
processes reach, dead or alive others notwithstanding. What goes wrong mostly goes wrong in
all of them; the first that asks the store has the word, the others end in silence.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
from datetime import timedelta
from typing import NamedTuple

from torch import distributed
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

PATIENCE = timedelta(minutes=10)
"""How long a process waits for another. One that dies is noticed at once; this is for one that
hangs, and must be longer than the longest thing that one of them does alone."""

_WORD = timedelta(seconds=10)


class Launch(NamedTuple):
    """A process among those that were started together."""

    rank: int
    size: int
    local_rank: int | None
    """Its number on this machine; None if nobody said."""
    has_group: bool
    """Whether the caller has made a process group already."""


def find_launch() -> Launch | None:
    """Return how this process was started, or None if it trains alone.

    Whoever made a process group meant it; otherwise torchrun has to have started this very
    process, and not one of its ancestors.
    """
    local_rank = os.environ.get("LOCAL_RANK")
    local = None if local_rank is None else int(local_rank)
    if not distributed.is_available():
        return None
    if distributed.is_initialized():
        launch = Launch(distributed.get_rank(), distributed.get_world_size(), local, True)
    elif distributed.is_torchelastic_launched() and multiprocessing.parent_process() is None:
        launch = Launch(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), local, False)
    else:
        return None
    return launch if launch.size > 1 else None


def is_first() -> bool:
    """Return whether this process is the one that writes and prints."""
    launch = find_launch()
    return launch is None or launch.rank == 0


class _Meetings:
    """How many trainings this process took part in: each has words of its own in the store."""

    count = 0

    @classmethod
    def name(cls) -> str:
        # Processes that were started again must not find what the former left.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return f"stochbatch, attempt {attempt}, training {cls.count}"


@functools.cache
def _store() -> Store:
    # Kept: without torchrun's own, it is process 0 that serves it, on the one port there is.
    store: Store = next(rendezvous("env://", timeout=PATIENCE))[0]
    return store


def begin_training() -> None:
    """Count one more training: all processes of a launch must call this for each."""
    _Meetings.count += 1


def meeting() -> Store:
    """Return a store for the processes of this launch and training."""
    return PrefixStore(_Meetings.name(), _store())


def has_the_word() -> bool:
    """Return whether this process is the first to ask about a training; then it should speak.

    If the store cannot be reached, it should, too: better twice than not at all.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return True
    try:
        store = TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=False,
            timeout=_WORD,
        )
        return bool(store.add(f"{_Meetings.name()}, the word", 1) == 1)
    except (RuntimeError, KeyError, ValueError):
        return True


def decide_who_tells(error: Exception) -> None:
    """Mark an error that ends a training as told, if another process has the word."""
    if "told" not in vars(error):
        error.told = not has_the_word()  # type: ignore[attr-defined]
