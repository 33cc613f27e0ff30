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
from typing import Any
from uuid import uuid4

import torch

import stochbatch
from stochbatch.data.folder import ROOT_VARIABLE
from stochbatch.data.folder import data_root as data_root_of
from stochbatch.optional import optional
from stochbatch.studies.engine import (
    Answer,
    Count,
    StudyStopped,
    StudyWatcher,
    UnfailingWatcher,
    is_free,
    record,
    train,
)
from stochbatch.training import Interrupted, Trial
from stochbatch.training.exceptions import RunError
from stochbatch.training.result import plugins_of
from stochbatch.training.run_folder import METRICS, read_metrics
from stochbatch.training.signals import StopSignals

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
) -> Count:
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
        return Count()
    data = data_root or os.environ.get(ROOT_VARIABLE)
    options["data_root"] = str(data_root_of(data).absolute()) if data else None
    watcher = UnfailingWatcher(watcher or StudyWatcher())
    root = Path(root).absolute()  # not `resolve`: the target of a link may differ between nodes
    address = address or os.environ.get("RAY_ADDRESS")
    with connected(address, workers and math.ceil(workers * cpus)) as ray, _marked(root) as mark:
        task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=retries)(train_on_node)
        start = partial(task.remote, mark=str(mark), options=options | {"device": place})
        engine = _Engine(ray, start, root, watcher, list(reversed(trials)), retries + 1)
        watcher.begin(len(trials))
        try:
            with StopSignals() as signals:
                if not _has_room(ray, cpus, gpus):
                    text = f"no node has room for a trial that needs {cpus:g} CPU and {gpus:g} GPU"
                    if not address:
                        raise ClusterError(text)
                    watcher.note(f"{text}: waiting for one")  # a cluster may grow
                try:
                    # All at once, so that a cluster that grows with its queue knows its length.
                    return engine.run(workers or len(trials), signals)
                finally:
                    engine.stop()
        finally:
            watcher.close()


@dataclass
class _Engine:
    ray: Any
    start: Callable[[str, str], Any]
    root: Path
    watcher: StudyWatcher
    waiting: list[Trial]
    tries: int
    tasks: dict[Any, tuple[Trial, Path]] = field(default_factory=dict)
    sizes: dict[Path, int] = field(default_factory=dict)
    count: Count = field(default_factory=Count)

    def run(self, workers: int, signals: StopSignals) -> Count:
        while self.waiting or self.tasks:
            while self.waiting and len(self.tasks) < workers:
                trial = self.waiting.pop()
                task = self.start(trial.to_json(), software(trial))
                self.tasks[task] = trial, self.root / trial.folder
            over, _ = self.ray.wait(list(self.tasks), timeout=LOOK_EVERY)
            if signals.received is not None:
                raise StudyStopped(signals.received)
            for task in over:
                self._end(task, *self.tasks.pop(task))
            with suppress(OSError):  # a file server may be slow to answer
                self._look()
        return self.count

    def _look(self) -> None:
        """Tell the watcher how many epochs are done, by the files that trials write."""
        begun = set(os.listdir(self.root))
        for trial, folder in self.tasks.values():
            if folder.name in begun and (folder / METRICS).exists():
                size = (folder / METRICS).stat().st_size
                if size != self.sizes.get(folder):
                    self.sizes[folder] = size
                    self.watcher.epoch(trial, len(read_metrics(folder)))

    def _end(self, task: Any, trial: Trial, folder: Path) -> None:
        errors = self.ray.exceptions
        try:
            status, text = self.ray.get(task)
        except errors.RayTaskError as error:
            # A trial's own failure is an answer. This is the node's, where the next trial would
            # fail just as fast.
            if isinstance(error.cause, Interrupted):  # by a signal to its process, not by us
                self.waiting.append(trial)
                return
            reason = _first_line(error.cause or error)
            if not isinstance(error.cause, ClusterError):
                reason = f"a node cannot run trials, is 'stochbatch[ray]' installed there? {reason}"
            raise ClusterError(f"{reason} (stopped; everything so far is saved)") from error
        except errors.RayError as error:
            status = "failed"
            text = f"the process that trained it died {self.tries} times: {_first_line(error)}"
            record(folder, text)
        self.count.add(trial, status, text)
        self.watcher.end_of(trial, status, text)

    def stop(self) -> None:
        """Let running trials save and end; those in the queue never begin."""
        for task in self.tasks:
            self.ray.cancel(task)
        if self.tasks:
            self.ray.wait([*self.tasks], num_returns=len(self.tasks), timeout=SAVING_SECONDS)


def train_on_node(text: str, needs: str, *, mark: str, options: dict[str, Any]) -> Answer:
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
    try:
        trial = Trial.from_text(text, "json")
    except ValueError as error:  # a plugin is missing, or the version is another
        raise ClusterError(f"{node} cannot make a trial, which needs {needs}: {error}") from None
    if software(trial) != needs:
        raise ClusterError(f"{node} has {software(trial)}, the study was started with {needs}")
    wait = is_free(root / trial.folder, LOCK_SECONDS)
    try:
        return train(trial, root, wait=wait, **options)
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


@contextmanager
def _marked(root: Path) -> Iterator[Path]:
    """Put a file into the folder of all runs, by which nodes see that they have the same folder."""
    mark = root / f".study-{uuid4().hex}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        mark.touch()
    except OSError as error:
        raise RunError(f"cannot write into {root}: {error.strerror or error}") from error
    try:
        yield mark
    finally:
        mark.unlink(missing_ok=True)


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


def _has_room(ray: Any, cpus: float, gpus: float) -> bool:
    """Return whether a node is large enough for a trial, now or when others are done."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return any(cpus <= node.get("CPU", 0) and gpus <= node.get("GPU", 0) for node in nodes)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
