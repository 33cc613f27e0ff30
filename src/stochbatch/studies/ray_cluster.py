"""The way to a Ray cluster: one that is running, or one on this machine for as long as it is used.

Ray itself is patient: it tries for many minutes to reach an address where nobody is. What can
be known at once is checked here first, and said in one line.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Any

from stochbatch.optional import optional
from stochbatch.training.errors import RunError

REACH_SECONDS = 5.0
"""How long to knock at an address."""

GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
SETTINGS = b"\4"
"""A cluster speaks gRPC: a client begins with these bytes, and both send a frame of this type."""

STORE_BYTES = 100 * 2**20
"""Ray's memory for objects, where it is started here: trials send a few words."""

RETRIES = 10
"""How often a trial is tried again after its node, or its process, died. One that kills its
process every time must end, too."""
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Trials on the CPU are told so; Ray need not hide the GPUs from them, and warn of it.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Nodes import the package that is installed there, also if this process was begun by uv.
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    # One that needs more memory than there is would be tried again for ever.
    "RAY_task_oom_retries": str(RETRIES),
}
"""What Ray reads from the environment, unless it is already there."""

IMPATIENT = {"RAY_py_gcs_connect_timeout_s": "5", "RAY_NUM_REDIS_GET_RETRIES": "2"}
"""The same for a cluster that is running, and therefore answers soon or not at all."""


class ClusterError(RunError):
    """A cluster that is not there, or that cannot do what is asked: what is wrong with it."""


@dataclass(frozen=True)
class Share:
    """What a trial takes of its node.

    Example:
        >>> from stochbatch.studies.ray_cluster import Share
        >>> str(Share(cpus=1, gpus=0.25))
        '1 CPU and 0.25 GPU'
        >>> Share(gpus=2)
        Traceback (most recent call last):
        ...
        ValueError: GPUs of a trial must be from 0 to 1, as it trains on one, got 2
    """

    cpus: float = 1.0
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.cpus < math.inf or (self.cpus > 1 and self.cpus % 1):
            raise ValueError(
                f"CPUs of a trial must be a part of one, or a whole number, got {self.cpus:g}"
            )
        if not 0 <= self.gpus <= 1:
            raise ValueError(
                f"GPUs of a trial must be from 0 to 1, as it trains on one, got {self.gpus:g}"
            )

    def __str__(self) -> str:
        return f"{self.cpus:g} CPU" + (f" and {self.gpus:g} GPU" if self.gpus else "")

    def fits(self, resources: Mapping[str, float]) -> bool:
        """Return whether a node with these resources can train a trial at all."""
        return self.cpus <= resources.get("CPU", 0) and self.gpus <= resources.get("GPU", 0)

    def device(self, wanted: str) -> str:
        """Return the device to train on: Ray chooses which GPU that is."""
        ours = "cuda" if self.gpus else "cpu"
        if wanted not in ("auto", ours):
            raise ValueError(
                f"with {self.gpus:g} GPUs for each trial the device is {ours!r}, got {wanted!r}"
            )
        return ours


@dataclass(frozen=True)
class Cluster:
    """A connection to Ray."""

    ray: Any
    """The module."""
    is_ours: bool
    """Whether it was started here, and therefore cannot grow."""

    def find_room(self, share: Share) -> bool:
        """Return whether there is a node that can train a trial of this share, now or later."""
        return any(node["Alive"] and share.fits(node["Resources"]) for node in self.ray.nodes())


@contextmanager
def connected(address: str | None, cpus: int | None = None) -> Iterator[Cluster]:
    """Connect to a cluster, or start one on this machine and end it afterwards.

    A process that is connected already stays so: then neither argument matters.

    Args:
        address: ``"auto"`` for the cluster that this machine belongs to, or ``"host:port"``;
            without one, what ``RAY_ADDRESS`` says, or else one is started.
        cpus: CPUs of one that is started; by default all.

    Raises:
        ClusterError: it cannot be reached.
    """
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    with _environment(QUIET if address == "local" else QUIET | IMPATIENT):
        ray = optional("ray", extra="ray")
        if ray.is_initialized():
            yield Cluster(ray, is_ours=False)
            return
        # Ray prints what it has to say of nodes that die to standard output.
        with redirect_stdout(sys.stderr), _same_signals():
            try:
                _init(ray, address, cpus)
                yield Cluster(ray, is_ours=address == "local")
            finally:
                ray.shutdown()


def _init(ray: Any, address: str, cpus: int | None) -> None:
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address == "local":
            options |= {"num_cpus": cpus, "object_store_memory": STORE_BYTES}
            ray.init("local", include_dashboard=False, **options)
            return
        reach(address)
        ray.init(address, **options)
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        if isinstance(error, RunError):
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        if address == "local":
            raise ClusterError(f"Ray cannot be started on this machine: {reason}") from error
        raise ClusterError(
            f"cannot join the Ray cluster at {address}: {reason} (does it ask for a token, "
            "or has it another version?)"
        ) from error


def reach(address: str) -> None:
    """Raise a :class:`ClusterError` if there is surely no cluster at an address."""
    if address == "auto":
        return  # Ray looks for one on this machine, and says at once if there is none
    if "://" in address:
        raise ClusterError(
            f"{address} is not for studies, which run on a machine of the cluster: there "
            "--address auto, from elsewhere ray job submit --address http://HOST:8265 -- "
            "stochbatch study run ... --address auto"
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ClusterError(f"an address is auto or HOST:PORT, got {address!r}")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS) as line:
            line.sendall(GREETING)
            frame = line.recv(9)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ClusterError(f"no Ray cluster at {address}: {reason}") from None
    if frame[3:4] != SETTINGS and not os.environ.get("RAY_USE_TLS"):
        raise ClusterError(
            f"what answers at {address} is no Ray cluster: its port is that of `ray start --head` "
            "(6379 by default), not that of the dashboard"
        )


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set what is not set."""
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


@contextmanager
def _same_signals() -> Iterator[None]:
    """Undo what Ray does to the handler of SIGTERM."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
