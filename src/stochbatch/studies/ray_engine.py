"""The engine for a cluster: each trial of a study is a task of Ray.

A task goes on with a trial where its folder says, so a trial whose node died goes on elsewhere,
and a study whose driver was killed goes on when it is started again. All nodes must see the
folder of all runs under the same path.

All trials are handed to Ray at once, which keeps them in a queue: only so can a cluster that
grows with its work know how much there is. A few thousand are nothing to it.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from stochbatch.data.folders import ROOT_VARIABLE
from stochbatch.data.folders import data_root as data_root_of
from stochbatch.studies.engine import (
    Answer,
    Count,
    StudyStopped,
    StudyWatcher,
    UnfailingWatcher,
    record,
)
from stochbatch.studies.ray_cluster import RETRIES, Cluster, ClusterError, Share, connected
from stochbatch.studies.ray_task import (
    LOCK_SECONDS,
    MARK_SECONDS,
    STOPPED,
    TOLD_EVERY,
    UNFIT,
    board_class,
    marked,
    train_on_node,
    versions,
)
from stochbatch.training import Trial
from stochbatch.training.result import plugins_of
from stochbatch.training.signals import StopSignals

SAVING_SECONDS = 60.0
"""How long to wait for trials that are told to save and stop."""

LOOK_EVERY = 0.5
"""Seconds between two looks at signals and progress."""

ROOM_EVERY = 60.0
"""Seconds between two notes that no node can take a trial."""


def run_trials(
    trials: Sequence[Trial],
    root: str | Path,
    *,
    address: str | None = None,
    share: Share | None = None,
    workers: int | None = None,
    threads: int = 1,
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
        address: of the cluster, see :func:`stochbatch.studies.ray_cluster.connected`.
        share: what each trial takes of its node.
        workers: trials at work at the same time, at most.
        threads: threads of each trial. One, unless told: the last bits of a result depend on it.
        retries: how often a trial is tried again after its node died.
        watcher: is told how it goes.
        device: ``"auto"``: a GPU if the share has a part of one, or else the CPU.
        data_root: the folder of all data on every node; by default each node has its own.
        **options: as for :func:`stochbatch.training.run`: ``accept_hash``, ...

    Raises:
        ClusterError: there is no cluster, or a node of it is unfit; what was trained is saved.
        StudyStopped: SIGINT or SIGTERM came; everything so far is saved.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be 1 or more, got {workers}")
    if retries < 0:
        raise ValueError(f"retries must be 0 or more, got {retries}")
    share = share or Share()
    options |= {"device": share.device(device), "data_root": _data_root(data_root)}
    watcher = UnfailingWatcher(watcher)
    if not trials:
        return Count()
    # Not `resolve`: what a path leads to may differ from node to node, its name may not.
    root = Path(root).absolute()
    cpus = None if workers is None else math.ceil(workers * share.cpus)
    with marked(root) as mark, connected(address, cpus) as cluster:
        order = {
            "versions": versions(),
            "mark": str(mark),
            "mark_seconds": MARK_SECONDS,
            "lock_seconds": LOCK_SECONDS,
            "told_every": TOLD_EVERY,
            "root": str(root),
            "threads": threads,
            "options": options,
        }
        engine = _Engine(cluster, list(trials), order, watcher)
        engine.prepare(share, retries)
        watcher.begin(len(trials))
        try:
            with StopSignals() as signals:
                try:
                    return engine.run(workers or len(trials), signals)
                finally:
                    engine.stop()
        finally:
            watcher.close()


def _data_root(root: str | Path | None) -> str | None:
    """Return the folder that is named here, for all nodes; or None, then each has its own."""
    named = root or os.environ.get(ROOT_VARIABLE)
    return str(data_root_of(named).absolute()) if named else None


class _Engine:
    def __init__(
        self, cluster: Cluster, trials: list[Trial], order: dict[str, Any], watcher: StudyWatcher
    ) -> None:
        self.cluster, self.ray, self.watcher = cluster, cluster.ray, watcher
        self.waiting, self.order = trials[::-1], order
        self.trials = {trial.hash: trial for trial in trials}
        self.under_way: dict[Any, Trial] = {}
        self.count = Count()
        self.look_again = 0.0

    def prepare(self, share: Share, retries: int) -> None:
        """Make the task and the board, and see whether a trial fits anywhere."""
        ray = self.ray
        self.needs, self.tries = share, retries + 1
        if self.cluster.is_ours and not self.cluster.find_room(share):
            raise ClusterError(f"this machine has no room for a trial that needs {share}")
        self.task = ray.remote(
            num_cpus=share.cpus, num_gpus=share.gpus, max_retries=retries, retry_exceptions=False
        )(train_on_node)
        # Beside the engine: what ends the one, ends the other.
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        actor = ray.remote(num_cpus=0, max_restarts=-1, scheduling_strategy=here)(board_class())
        self.board = actor.remote()
        self.news = self.board.read.remote()
        ray.wait([self.news])  # or the first trials would tell of epochs long past

    def run(self, workers: int, signals: StopSignals) -> Count:
        while self.waiting or self.under_way:
            self._hand_out(workers)
            self._look_for_room()
            over, _ = self.ray.wait(list(self.under_way), timeout=LOOK_EVERY)
            if signals.received is not None:
                raise StudyStopped(signals.received)
            for one in over:
                self._hear(one)
            self._read_board()
        return self.count

    def _hand_out(self, workers: int) -> None:
        while self.waiting and len(self.under_way) < workers:
            trial = self.waiting.pop()
            plugins = plugins_of(trial).get("plugins", [])
            order = {**self.order, "trial": trial.to_json(), "plugins": plugins}
            self.under_way[self.task.remote(order, self.board)] = trial

    def _hear(self, one: Any) -> None:
        trial = self.under_way.pop(one)
        status, text = self._answer(one, trial)
        if status == UNFIT:
            # To go on would give it trial after trial, and all of them would fail at once.
            raise ClusterError(f"{text}. The study is stopped, and everything so far is saved")
        if status == STOPPED:
            self.waiting.append(trial)  # by somebody else than this engine
            return
        self.count.add(trial, status, text)
        self.watcher.end_of(trial, status, text)

    def _answer(self, one: Any, trial: Trial) -> Answer:
        errors = self.ray.exceptions
        try:
            answer: Answer = self.ray.get(one)
        except errors.RayTaskError as error:
            # A task catches everything that a trial may raise: this came before it, or after.
            reason = _first_line(error.cause or error).split(". ")[0]
            raise ClusterError(
                f"a node cannot run trials, is 'stochbatch[ray]' installed there? {reason}"
            ) from error
        except errors.RayError as error:
            text = f"the process that trained it died {self.tries} times: {_first_line(error)}"
            record(Path(self.order["root"]) / trial.folder, text)
            return "failed", text
        return answer

    def _read_board(self) -> None:
        """Tell the watcher what is new. That is a courtesy: nothing here stops a study."""
        if self.ray.wait([self.news], timeout=0)[0]:
            with suppress(self.ray.exceptions.RayError):
                at_work = {trial.hash for trial in self.under_way.values()}
                for name, done in self.ray.get(self.news).items():
                    if name in at_work:
                        self.watcher.epoch(self.trials[name], done)
            self.news = self.board.read.remote()

    def _look_for_room(self) -> None:
        """Say that nothing can begin, as long as that is so: a cluster may grow, or never."""
        if time.monotonic() < self.look_again:
            return
        self.look_again = time.monotonic() + ROOM_EVERY
        if self.cluster.find_room(self.needs):
            self.look_again = math.inf
        else:
            self.watcher.note(f"no node has room for a trial that needs {self.needs}: waiting")

    def stop(self) -> None:
        """Let all trials that are at work save and end; those in the queue never begin."""
        rest = list(self.under_way)
        for one in rest:
            self.ray.cancel(one)
        if rest:
            self.ray.wait(rest, num_returns=len(rest), timeout=SAVING_SECONDS)
        self.ray.kill(self.board)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
