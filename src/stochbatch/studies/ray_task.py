"""What is done on a node of a Ray cluster: one trial, and telling how far it is.

This is imported there from the package that is installed on the node. An order is a plain dict,
so that a node with another version can still read which one is wanted.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import filelock
import torch

import stochbatch
from stochbatch.studies.engine import Answer, is_free, train
from stochbatch.training import Interrupted, Trial
from stochbatch.training.errors import RunError
from stochbatch.training.result import plugins_of

STOPPED, UNFIT = "stopped", "unfit"
"""Answers besides those of :func:`~stochbatch.studies.engine.train`: saved and stopped as it was
told to be; nothing done, as nothing can be done on this node."""

MARK = ".study-"
"""How the names of marks begin."""

MARK_SECONDS = 10.0
"""A network file system may show a new file that late."""

LOCK_SECONDS = 600.0
"""How long to wait for another process that is at work on the same trial."""

TOLD_EVERY = 0.5
"""Seconds between two reports of a trial's progress."""


@contextmanager
def marked(root: Path) -> Iterator[Path]:
    """Put a file into the folder of all runs, by which a node sees that it has the same folder.

    The file is locked: one that is not was left by a process that was killed, and is removed.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        for old in root.glob(f"{MARK}*"):
            with suppress(OSError), filelock.FileLock(old, timeout=0):  # held: a TimeoutError
                old.unlink()
        mark = root / f"{MARK}{uuid4().hex}"
        lock = filelock.FileLock(mark)
        lock.acquire()
    except OSError as error:
        raise RunError(f"cannot write into {root}: {error.strerror or error}") from error
    try:
        yield mark
    finally:
        mark.unlink(missing_ok=True)
        lock.release()


def versions() -> dict[str, str]:
    """Return the versions that must be the same everywhere, as results depend on them.

    What follows a plus, ``cpu`` or ``cu128``, may differ.
    """
    return {"stochbatch": stochbatch.__version__, "torch": torch.__version__.split("+")[0]}


def board_class() -> type[Any]:
    """Return the class of the board where trials write how many epochs are done.

    It is an actor beside the engine, which reads it. A class that is made in a function is sent to
    its process instead of being imported there: to count, none of this package is needed.
    """

    class Board:
        def __init__(self) -> None:
            self.done: dict[str, int] = {}

        def tell(self, trial: str, epochs: int) -> None:
            self.done[trial] = epochs

        def read(self) -> dict[str, int]:
            """Return what is new since the last call."""
            news, self.done = self.done, {}
            return news

    return Board


def train_on_node(order: dict[str, Any], board: Any) -> Answer:
    """Train a trial as ordered; go on with it, if another node has begun it."""
    wrong = what_is_wrong(order)
    if wrong is not None:
        return UNFIT, f"the node {socket.gethostname()} {wrong}"
    try:
        trial = Trial.from_text(order["trial"], "json")
        plugins = plugins_of(trial).get("plugins", [])
    except ValueError as error:
        return UNFIT, f"the node {socket.gethostname()} cannot make a trial of the study: {error}"
    if plugins != order["plugins"]:
        return UNFIT, (
            f"the node {socket.gethostname()} has the plugins {', '.join(plugins) or '(none)'}, "
            f"where the study was started they are {', '.join(order['plugins']) or '(none)'}"
        )
    root = Path(order["root"])
    try:
        wait = is_free(root / trial.folder, order["lock_seconds"])
        tell = _Teller(trial.hash, board, order["told_every"])
        return train(trial, root, tell, threads=order["threads"], wait=wait, **order["options"])
    except Interrupted as stop:
        if stop.signal_number == signal.SIGTERM:
            # Not by the engine, which uses SIGINT: this node is going down. Ray is to see a
            # process that died, and to try elsewhere.
            signal.raise_signal(signal.SIGTERM)
        return STOPPED, ""


def what_is_wrong(order: dict[str, Any]) -> str | None:
    """Return why no trial of an order can be trained here, or None."""
    ours = versions()
    for name, version in order["versions"].items():
        if ours.get(name) != version:
            return f"has {name} {ours.get(name)}, where the study was started it is {version}"
    mark, began = Path(order["mark"]), time.monotonic()
    while not os.path.exists(mark):  # unlike its method, False where a file system is gone, too
        if time.monotonic() - began > order["mark_seconds"]:
            return (
                f"does not see {mark.parent}, or has another folder of that name: --root must be "
                "in a file system that all nodes share"
            )
        time.sleep(0.2)
    return None


class _Teller:
    """Tells the board how far a trial is, but not too often."""

    def __init__(self, trial: str, board: Any, every: float) -> None:
        self.trial, self.board, self.every = trial, board, every
        self.told = -math.inf

    def __call__(self, epochs: int) -> None:
        now = time.monotonic()
        if now - self.told >= self.every:
            self.told = now
            self.board.tell.remote(self.trial, epochs)
