"""The engine for a cluster: one Ray task per trial.

A task resumes its trial from the run folder, so a trial whose node died continues elsewhere, and a
study whose driver was killed continues when it is started again. All nodes must see the folder of
all runs under the same path; progress is read from there.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Any

import torch

import stochbatch
from stochbatch.data.folder import ROOT_VARIABLE
from stochbatch.data.folder import data_root as data_root_of
from stochbatch.data.own_data import remember
from stochbatch.optional import optional
from stochbatch.studies.engine import (
    Ended,
    StudyWatcher,
    check_data,
    run_study,
    train,
)
from stochbatch.studies.outcome import ERROR
from stochbatch.training import Interrupted, Trial
from stochbatch.training.exceptions import RunError
from stochbatch.training.result import plugins_of
from stochbatch.training.run_folder import RESULT

RETRIES = 10
"""How often a trial is tried again after its node or its process died."""
SAVING_SECONDS = 60.0
"""How long to wait for trials that were told to save and stop."""
LOOK_EVERY = 0.5
"""Seconds between two looks at signals and progress."""
MARK_SECONDS = 10.0
"""How late a network file system may show a new file."""
LOCK_SECONDS = 600.0
"""How long to wait for another process that is training the same trial."""

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Trials on the CPU ask for it by name; Ray need not hide the GPUs, and warn about that.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Nodes import the package that is installed there, even if uv started this process.
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    # By default a task that runs out of memory is tried again for ever.
    "RAY_task_oom_retries": str(RETRIES),
}
TO_JOIN = {"RAY_py_gcs_connect_timeout_s": "5", "RAY_NUM_REDIS_GET_RETRIES": "2"}
"""Give up joining a cluster after half a minute, not after six."""


class ClusterError(RunError):
    """There is no cluster, or it cannot run the study."""


def run_trials(
    trials: Sequence[Trial],
    root: str | Path,
    *,
    address: str | None = None,
    cpus: float = 1.0,
    gpus: float = 0.0,
    workers: int | None = None,
    retries: int = RETRIES,
    watcher: StudyWatcher | None = None,
    device: str = "auto",
    data_root: str | Path | None = None,
    **options: Any,
) -> list[Ended]:
    """Run trials on a cluster, as many at a time as there is room for.

    Args:
        trials: what to run, in this order.
        root: the folder of all runs, in a file system that all nodes share.
        address: ``"auto"`` for the cluster that this machine belongs to, or ``"host:port"``; by
            default ``RAY_ADDRESS``, or else Ray is started on this machine and stopped afterwards.
            A process that has called ``ray.init`` stays connected as it is.
        cpus: CPUs that each trial reserves.
        gpus: part of a GPU that each trial reserves; without one, trials train on CPUs.
        workers: trials to run in parallel, at most.
        retries: how often a trial is tried again after its node died.
        watcher: is told how it goes.
        device: ``"auto"``, or what follows from ``gpus``: ``"cpu"`` or ``"cuda"``.
        data_root: the folder of all data on every node; by default each node has its own.
        **options: as for :func:`stochbatch.training.run`: ``accept_hash``, ...

    Raises:
        ClusterError: there is no cluster, or a node cannot run trials; everything so far is saved.
        StudyStopped: SIGINT or SIGTERM came; everything so far is saved.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be 1 or more, got {workers}")
    if not (0 < cpus <= 1 or (cpus > 1 and cpus % 1 == 0)):
        raise RunError(f"a trial needs a part of a CPU or several whole ones, got {cpus:g}")
    if not 0 <= gpus <= 1:
        raise RunError(f"a trial trains on one GPU or a part of one, got {gpus:g}")
    place = "cuda" if gpus else "cpu"
    if device not in ("auto", place):
        raise RunError(f"with {gpus:g} GPUs per trial the device is {place!r}, got {device!r}")
    if not trials:
        return []
    data = data_root or os.environ.get(ROOT_VARIABLE)
    options["data_root"] = str(data_root_of(data).absolute()) if data else None
    root = Path(root).absolute()  # not `resolve`: the target of a link may differ between nodes
    address = address or os.environ.get("RAY_ADDRESS")
    there = sys.modules.get("ray")
    if not address and not (there and there.is_initialized()):  # then Ray is started here
        check_data(trials, data_root, options.get("accept_hash", False))
    with connected(address, workers and math.ceil(workers * cpus)) as ray, _mark(root) as mark:
        lacking = _lacking(ray, cpus, gpus)
        if lacking and not address:
            raise ClusterError(lacking)
        task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=retries)(train_on_node)
        remote = partial(task.remote, mark=mark.name, options=options | {"device": place})
        # All at once, so that a cluster that grows with its queue knows its length.
        engine = RayEngine(ray, remote, root, workers or len(trials), retries + 1)
        note = lacking and f"{lacking}: waiting for one"  # a cluster may grow
        return run_study(engine, trials, root, watcher, note)


@dataclass
class RayEngine:
    """Trains each trial in a Ray task."""

    ray: Any
    remote: Callable[..., Any]
    root: Path
    room: int
    tries: int
    tasks: dict[Any, Trial] = field(default_factory=dict)
    queues = True

    def start(self, trial: Trial) -> None:
        """Put a trial into Ray's queue."""
        self.tasks[self.remote(trial.to_json(), software(trial))] = trial

    def poll(self) -> Iterator[tuple[Trial, str | None]]:
        """Yield trials whose tasks ended."""
        over, _ = self.ray.wait(list(self.tasks), timeout=LOOK_EVERY)
        for task in over:
            trial = self.tasks.pop(task)
            try:
                fault = self._fault(task)
            except Interrupted:  # by a signal to its process, not by us
                self.start(trial)
                continue
            if fault is None:
                self._await_files(trial)
            yield trial, fault

    def _fault(self, task: Any) -> str | None:
        """Return what went wrong with a task; raise what would go wrong with the next one, too."""
        errors = self.ray.exceptions
        try:
            self.ray.get(task)
            return None
        except errors.RayTaskError as error:
            # A trial's own failure is in its folder. This is the node's, where the next trial would
            # fail just as fast.
            if isinstance(error.cause, Interrupted):
                raise error.cause from None
            reason = _first_line(error.cause or error)
            if not isinstance(error.cause, RunError):
                reason = f"a node cannot run trials, is 'stochbatch[ray]' installed there? {reason}"
            raise ClusterError(f"{reason} (stopped; everything so far is saved)") from error
        except (errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError) as error:
            return f"the process that trained it died {self.tries} times: {_first_line(error)}"
        except errors.RayError as error:
            return f"Ray could not run it: {type(error).__name__}: {_first_line(error)}"

    def _await_files(self, trial: Trial) -> None:
        """Wait until a network file system shows what a node has written."""
        deadline = time.monotonic() + MARK_SECONDS
        while time.monotonic() < deadline:
            with suppress(OSError):  # to list a folder lets NFS look at it anew
                if {RESULT, ERROR} & set(os.listdir(self.root / trial.folder)):
                    return
            time.sleep(0.2)

    def stop(self) -> None:
        """Let running trials save and end; those in the queue never begin."""
        for task in self.tasks:
            self.ray.cancel(task)
        if self.tasks:
            self.ray.wait([*self.tasks], num_returns=len(self.tasks), timeout=SAVING_SECONDS)


def train_on_node(text: str, needs: str, *, mark: str, options: dict[str, Any]) -> None:
    """Train a trial on a node of the cluster, or resume it if another node began it."""
    node, root = f"the node {socket.gethostname()}", Path(mark).parent
    deadline = time.monotonic() + MARK_SECONDS
    while not os.path.exists(mark):
        if time.monotonic() > deadline:
            raise ClusterError(
                f"{node} does not see {root}, or has another folder of that name: --root must be "
                "in a file system that all nodes share"
            )
        time.sleep(0.2)
    remember(options.get("data_root"))
    try:
        trial = Trial.from_text(text, "json")
    except ValueError as error:  # a plugin is missing, or the version is another
        raise ClusterError(f"{node} cannot make a trial, which needs {needs}: {error}") from None
    if software(trial) != needs:
        raise ClusterError(f"{node} has {software(trial)}, the study was started with {needs}")
    try:
        train(trial, root, patience=LOCK_SECONDS, **options)
    except Interrupted as stop:
        if stop.signal_number == signal.SIGTERM:
            # Not from the engine: the node is going down. Die, so that Ray tries elsewhere.
            signal.raise_signal(signal.SIGTERM)
        raise


def software(trial: Trial) -> str:
    """Return the versions that results depend on; ``+cpu`` or ``+cu128`` may differ."""
    plugins = plugins_of(trial).get("plugins", [])
    version = torch.__version__.split("+")[0]
    return ", ".join([f"stochbatch {stochbatch.__version__}", f"torch {version}", *plugins])


def _mark(root: Path) -> IO[bytes]:
    """Put a file into the folder of all runs, by which nodes see that they have the same folder."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        return NamedTemporaryFile(prefix=".study-", dir=root)
    except OSError as error:
        raise RunError(f"cannot write into {root}: {error.strerror or error}") from error


@contextmanager
def connected(address: str | None, cpus: int | None = None) -> Iterator[Any]:
    """Yield Ray, connected to a cluster, or to one on this machine that is stopped afterwards."""
    for name, value in (ENVIRONMENT | (TO_JOIN if address else {})).items():
        os.environ.setdefault(name, value)
    ray = optional("ray", extra="ray")
    if ray.is_initialized():
        yield ray
        return
    own = {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": 100 << 20}
    with redirect_stdout(sys.stderr):  # where Ray prints about nodes that die
        try:
            if address and "://" in address:
                raise ValueError("expected auto or HOST:PORT of the head (`ray start`), not a URL")
            if address and address != "auto":  # Ray itself would knock for half a minute
                host, _, port = address.rpartition(":")
                there: Any = (host.strip("[]"), port)  # a text does, whatever it says
                socket.create_connection(there, timeout=5).close()
            options = {"log_to_driver": False, "logging_level": "ERROR"}
            ray.init(address or "local", **options, **({} if address else own))
        except (OSError, RuntimeError, ValueError) as error:
            where = f"at {address}" if address else "on this machine"
            raise ClusterError(f"no Ray cluster {where}: {' '.join(str(error).split())}") from error
        try:
            yield ray
        finally:
            ray.shutdown()


def _lacking(ray: Any, cpus: float, gpus: float) -> str | None:
    """Return what to say if no node is large enough for a trial, even when others are done."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if any(cpus <= node.get("CPU", 0) and gpus <= node.get("GPU", 0) for node in nodes):
        return None
    return f"no node has room for a trial that needs {cpus:g} CPU and {gpus:g} GPU"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
