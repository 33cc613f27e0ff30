"""What the processes of these tests do: train trials together, or the first of them alone."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock
import torch
from torch import nn

from stochbatch.nets import NETWORKS
from stochbatch.training import Interrupted, Trial, run
from stochbatch.training import session as sessions
from stochbatch.training.session import Session
from tests.training.runs import Witness

SMALL = {"epochs": 3, "share": 0.15, "batch_size": 30, "lr": 0.05}
"""203 images: parts of 15 or of 7 and 8, and last batches of 23."""


def plain(classes: int = 10, channels: int = 1, width: float = 1.0, **_: Any) -> nn.Module:
    """Return a network without batch norm."""
    return nn.Sequential(
        nn.Conv2d(channels, round(8 * width), 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(round(8 * width), round(16 * width), 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(round(16 * width) * 16, classes),
    )


def add_plain() -> None:
    if "plain" not in NETWORKS:
        NETWORKS.add("plain", "For tests: a network without batch norm.", plain)


def trial_of(fields: dict[str, Any]) -> Trial:
    add_plain()
    return Trial(**{**SMALL, **fields})


@contextmanager
def at_steps(act: Callable[[Session, int, int], None]) -> Iterator[None]:
    """Call ``act`` before every step."""
    step = Session.step

    def acting(self: Session, epoch: int, number: int) -> None:
        act(self, epoch, number)
        step(self, epoch, number)

    Session.step = acting  # type: ignore[method-assign]
    try:
        yield
    finally:
        Session.step = step  # type: ignore[method-assign]


@contextmanager
def hashes_of_epochs(found: list[str]) -> Iterator[None]:
    """Note a hash of all weights, and of all the optimizer knows, when an epoch is over."""
    fingerprint = Session.fingerprint

    def noting(self: Session) -> str:
        weights = [weight.detach() for weight in self.network.parameters()]
        states = self.optimizer.state_dict()["state"].values()
        weights += [value for state in states for value in state.values()]
        digest = hashlib.sha256()
        for weight in weights:
            digest.update(torch.as_tensor(weight).contiguous().numpy().tobytes())
        found.append(digest.hexdigest())
        return fingerprint(self)

    Session.fingerprint = noting  # type: ignore[method-assign]
    try:
        yield
    finally:
        Session.fingerprint = fingerprint  # type: ignore[method-assign]


def together(fields: dict[str, Any], root: str, **options: Any) -> dict[str, Any]:
    """Train a trial; return what this process saw of it."""
    hashes: list[str] = []
    witness = Witness()
    with hashes_of_epochs(hashes):
        result = run(trial_of(fields), root, progress=witness, **options)
    return {
        "hashes": hashes,
        "result": result.model_dump_json(),
        "folder": str(result.folder),
        "watched": len(witness.epochs),
        "begun": witness.begun,
    }


def alone(fields: dict[str, Any], root: str, **options: Any) -> dict[str, Any] | None:
    """Train a trial in the first process, as if there were no others."""
    first = torch.distributed.get_rank() == 0
    return together(fields, root, alone=True, **options) if first else None


def evaluated_in_small_batches(fields: dict[str, Any], root: str, images: int) -> dict[str, Any]:
    """Train, and evaluate about so many images at once in each process."""
    before = sessions.EVALUATION_PIXELS
    sessions.EVALUATION_PIXELS = {"cpu": images * 64}
    try:
        return together(fields, root)
    finally:
        sessions.EVALUATION_PIXELS = before


def stopped(
    fields: dict[str, Any], root: str, where: tuple[int, int], rank: int, just_one: bool = False
) -> dict[str, Any] | None:
    """Train until a process gets a SIGTERM; return how each of them ended."""
    if just_one and torch.distributed.get_rank():
        return None

    def act(session: Session, epoch: int, number: int) -> None:
        if (epoch, number) == where and session.ranks.rank == rank:
            os.kill(os.getpid(), signal.SIGTERM)

    with at_steps(act):
        try:
            together(fields, root, alone=just_one)
        except Interrupted as stop:
            return {"signal": stop.signal_number, "told": stop.told}
    return None


def saved_after(fields: dict[str, Any], root: str, seconds: float) -> tuple[list[str], dict]:
    """Train, saving so often; return the checkpoints that were there at the last step."""
    names: list[str] = []

    def act(session: Session, epoch: int, number: int) -> None:
        if (epoch, number) == (1, session.steps - 1):
            folder = Path(root) / trial_of(fields).folder
            names.extend(sorted(path.name[:25] for path in folder.glob("checkpoint-*.pt")))

    with at_steps(act):
        seen = together(fields, root, checkpoint_seconds=seconds)
    return names, seen


def batches_seen(fields: dict[str, Any], root: str) -> list[tuple[int, int, list[int], float]]:
    """Train; return epoch, number, labels and weight of every part that was trained on."""
    seen = []
    part = sessions.Parts.part

    def noting(self: Any, epoch: int, number: int) -> Any:
        found = part(self, epoch, number)
        pixels = found.images.double().sum((1, 2, 3)).tolist()
        seen.append((epoch, number, list(zip(found.labels.tolist(), pixels, strict=True)), found))
        return found

    sessions.Parts.part = noting  # type: ignore[method-assign]
    try:
        run(trial_of(fields), root)
    finally:
        sessions.Parts.part = part  # type: ignore[method-assign]
    return [(e, n, images, (p.weight, p.divided, p.counted)) for e, n, images, p in seen]


def noise(fields: dict[str, Any], root: str) -> list[str]:
    """Train; return what torch's generator is at when each batch begins."""
    states = []
    seed = sessions.seed_everything

    def noting(number: int, purpose: str) -> None:
        seed(number, purpose)
        if purpose.startswith("batch"):
            states.append(hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest())

    sessions.seed_everything = noting
    try:
        run(trial_of(fields), root)
    finally:
        sessions.seed_everything = seed
    return states


def error_of(
    fields: dict[str, Any], root: str, what: str, options: dict[str, Any]
) -> tuple[str, str, bool | None]:
    """Train what must fail; return class and text of the error, and whether another tells it."""
    rank = torch.distributed.get_rank()
    trial = trial_of(fields)
    lock = filelock.FileLock(Path(root) / trial.folder / "lock")
    build = Trial.build_network
    if what == "missing":
        options = {"data_root": root}
    if what == "locked" and rank == 0:
        (Path(root) / trial.folder).mkdir()
        lock.acquire()
    if what == "different" and rank == 1:
        trial = trial_of({**fields, "seed": 99})
    if what == "full" and rank == 1:

        def full(self: Trial, **_: Any) -> nn.Module:
            raise MemoryError("no room for a network")

        Trial.build_network = full  # type: ignore[method-assign]
    try:
        run(trial, root, **options)
    except Exception as error:
        return type(error).__name__, str(error), vars(error).get("told")
    finally:
        lock.release()
        Trial.build_network = build  # type: ignore[method-assign]
    return "", "", None


def waiting(fields: dict[str, Any], root: str, seconds: float) -> tuple[float, str]:
    """Train in a folder that is held for so long; return how long it took."""
    folder = Path(root) / trial_of(fields).folder
    folder.mkdir(exist_ok=True)
    lock = filelock.FileLock(folder / "lock", thread_local=False)
    began = time.monotonic()
    if torch.distributed.get_rank() == 0:
        lock.acquire()
        threading.Timer(seconds, lock.release).start()
    result = run(trial_of(fields), root, wait=True)
    return time.monotonic() - began, result.status


def stopped_while_waiting(fields: dict[str, Any], root: str) -> tuple[int, bool]:
    """Wait for a folder that is held for good until a process gets a SIGTERM."""
    folder = Path(root) / trial_of(fields).folder
    folder.mkdir(exist_ok=True)
    lock = filelock.FileLock(folder / "lock")
    rank = torch.distributed.get_rank()
    if rank == 0:
        lock.acquire()
    else:
        threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
    try:
        run(trial_of(fields), root, wait=True)
    except Interrupted as stop:
        return stop.signal_number, stop.told
    finally:
        lock.release()
    raise AssertionError("it was not stopped")
