"""A real Ray cluster of two nodes on this machine, and a look at the processes it consists of."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray sets it to the CPUs of a task, unless it is set. Either way it must not matter.
    "OMP_NUM_THREADS": "2",
}
STORE = {"object_store_memory": 80 * 2**20}


class Process(NamedTuple):
    pid: int
    name: str
    parent: int
    session: int
    started: str


def processes() -> list[Process]:
    """Return all processes that are alive."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            head, _, tail = (folder / "stat").read_text().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue
        state, parent, _, session, *rest = tail.split()
        if state != "Z":
            name = head.partition("(")[2]
            found.append(Process(int(folder.name), name, int(parent), int(session), rest[15]))
    return found


def below(pid: int) -> list[Process]:
    """Return the children of a process, theirs, and so on."""
    alive, found = processes(), []
    parents = {pid}
    while parents:
        children = [process for process in alive if process.parent in parents]
        found += children
        parents = {process.pid for process in children}
    return found


def of_session(pid: int) -> list[Process]:
    """Return what is left of a process that began a session, and of all that it started."""
    return [process for process in processes() if process.session == pid]


def left_after(watched: list[Process], seconds: float = 20.0) -> list[Process]:
    """Return which processes are still there after some time, or as soon as there is none."""
    until = time.monotonic() + seconds
    while True:
        left = [process for process in processes() if process in watched]
        if not left or time.monotonic() > until:
            return left
        time.sleep(0.1)


@contextmanager
def two_nodes() -> Iterator[Any]:
    """Start a cluster of two nodes with a CPU each; the first says that it has a GPU, too."""
    from ray.cluster_utils import Cluster

    # The names of Ray's sockets must be short.
    folder = tempfile.mkdtemp(prefix="sb", dir="/tmp")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**ENVIRONMENT, "RAY_TMPDIR": folder}.items():
            patch.setenv(name, value)
        patch.delenv("RAY_ADDRESS", raising=False)
        head = {"num_cpus": 1, "num_gpus": 1, "include_dashboard": False, **STORE}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            cluster.add_node(num_cpus=1, **STORE)
            yield cluster
        finally:
            started = [process for process in below(os.getpid()) if "ray" in process.name]
            cluster.shutdown()
            left = left_after(started)
            shutil.rmtree(folder, ignore_errors=True)
    assert started
    assert not left
