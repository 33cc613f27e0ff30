"""How the processes of a training find each other, on which devices, and how they part."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import distributed
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from stochbatch.training.errors import LostProcess, RunError
from stochbatch.training.launch import (
    PATIENCE,
    Launch,
    begin_training,
    decide_who_tells,
    find_launch,
    meeting,
)
from stochbatch.training.ranks import Ranks, Several

NO_DEVICE = "no device: "
"""What a process says to the others that has found none."""


def choose_device(name: str) -> torch.device:
    """Return the device of this name; ``"auto"`` is the best there is."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, ValueError) as error:
        raise RunError(f"no device {name!r} here: {str(error).splitlines()[0]}") from None
    return device


@contextmanager
def joined(device: str, alone: bool = False) -> Iterator[Ranks]:
    """Enter the group of the processes that were started together, if there are any.

    An error that ends one of them ends all. It is marked as told in all but one.

    Args:
        device: name of the device, for a process among several; see :func:`choose_device`.
        alone: train in this process alone, however it was started.
    """
    launch = None if alone else find_launch()
    if launch is None:
        yield Ranks()
        return
    begin_training()
    try:
        with _group(launch, _agreed_device(device, launch)) as ranks:
            try:
                yield ranks
            except Exception as error:
                ending = LostProcess(ranks.saved) if _is_loss(error) else error
                decide_who_tells(ending)  # before the others notice
                if ending is error:
                    raise
                raise ending from error
    except Exception as error:
        decide_who_tells(error)
        raise


def own_device(name: str, launch: Launch) -> torch.device:
    """Return the device of a process among several: every one has its own GPU."""
    if name.startswith("cuda:") and int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1:
        raise RunError(f"several processes cannot share {name}: leave it out, each takes its own")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and torch.cuda.is_available():
        # Before it is tried: to try another one would take memory there.
        name = f"cuda:{_own_gpu(launch)}"
    device = choose_device(name)
    if device.type not in ("cpu", "cuda"):
        raise RunError(f"several processes train on CPUs or CUDA devices, not on {device.type}")
    return device


def _agreed_device(name: str, launch: Launch) -> torch.device:
    """Return the device of this process; raise in all of them if they are of different kinds."""
    if launch.has_group:  # whose backend is chosen already
        return own_device(name, launch)
    with _finding_each_other(launch):
        store = meeting()
        try:
            device = own_device(name, launch)
        except RunError as error:
            store.set(f"device {launch.rank}", f"{NO_DEVICE}{error}")
            raise
        store.set(f"device {launch.rank}", device.type)
        said = [store.get(f"device {rank}").decode() for rank in range(launch.size)]
    for rank, text in enumerate(said):
        if text.startswith(NO_DEVICE):
            raise RunError(f"process {rank}: {text.removeprefix(NO_DEVICE)}")
    if len(set(said)) > 1:
        kinds = ", ".join(f"process {rank} on {kind}" for rank, kind in enumerate(said))
        raise RunError(f"all processes must train on devices of one kind: {kinds}; see --device")
    return device


def _own_gpu(launch: Launch) -> int:
    if launch.has_group:
        bound = _bound_device()
        if bound is not None and bound.type == "cuda":
            return int(bound.index)
        begun: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        if begun and torch.cuda.current_device():
            return torch.cuda.current_device()  # the caller's choice
    if launch.local_rank is None:
        return torch.cuda.current_device()
    count = torch.cuda.device_count()
    if launch.local_rank >= count:
        raise RunError(
            f"no GPU is left for process {launch.local_rank + 1} of this machine, which has "
            f"{count}: start fewer, or use --device cpu"
        )
    return launch.local_rank


def _bound_device() -> torch.device | None:
    """Return the device that the caller's group was made for, if it was made for one."""
    return getattr(distributed.group.WORLD, "bound_device_id", None)


@contextmanager
def _group(launch: Launch, device: torch.device) -> Iterator[Several]:
    """Enter the process group; leave it as it was, if it was the caller's."""
    if not launch.has_group:
        _make_group(launch, device)
    control = distributed.new_group(backend="gloo", timeout=PATIENCE)
    try:
        yield Several(launch.rank, launch.size, device, control)
    except BaseException as error:
        # NCCL may wait in vain for a process that is gone. What is no loss, all of them know.
        known = isinstance(error, RunError) and not isinstance(error, LostProcess)
        if device.type != "cuda" or known:
            _part(launch, control)
        raise
    _part(launch, control)


def _make_group(launch: Launch, device: torch.device) -> None:
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    with _finding_each_other(launch):
        distributed.init_process_group(
            "nccl" if on_gpu else "gloo",
            store=PrefixStore("group", meeting()),
            rank=launch.rank,
            world_size=launch.size,
            timeout=PATIENCE,
            device_id=device if on_gpu else None,
        )


@contextmanager
def _finding_each_other(launch: Launch) -> Iterator[None]:
    """Say in a line what goes wrong where processes wait for each other."""
    try:
        yield
    except RunError:
        raise
    except RuntimeError as error:
        first = str(error).splitlines()[0]
        raise RunError(f"the {launch.size} processes did not find each other: {first}") from error


def _part(launch: Launch, control: distributed.ProcessGroup) -> None:
    distributed.destroy_process_group(control if launch.has_group else None)


def _is_loss(error: Exception) -> bool:
    """Whether an error says that another process does not answer any more."""
    if isinstance(error, RunError) or not isinstance(error, RuntimeError):
        return False
    # What gloo reports has no class of its own, but the path of its source.
    return isinstance(error, distributed.DistError) or "gloo" in str(error)
