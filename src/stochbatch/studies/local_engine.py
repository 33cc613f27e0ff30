"""The local engine: one process of this machine per trial.

A trial that fails leaves its error in its folder and does not disturb the others, nor does a
process that dies. A signal stops everything after it is saved, and the next run resumes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess, SpawnProcess
from pathlib import Path
from typing import Any

import torch

from stochbatch.cores import usable_cores
from stochbatch.studies.engine import (
    Ended,
    StudyWatcher,
    check_data,
    run_study,
    train,
)
from stochbatch.training import Interrupted, Trial
from stochbatch.training.device import choose_device
from stochbatch.training.exceptions import RunError

LOOK_EVERY = 0.2
"""Seconds between two looks at signals and progress."""


def devices(device: str = "auto") -> list[str]:
    """Return the devices that trials can be handed out to: all GPUs, or the one that is named."""
    if device in ("auto", "cuda") and torch.cuda.is_available():
        # Not tried here: the engine itself needs none of them.
        return [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    return [str(choose_device(device))]


def default_workers(device: str = "auto") -> int:
    """Return how many trials to train at once: one per processor core, or one per GPU."""
    found = devices(device)
    return usable_cores() if found == ["cpu"] else len(found)


def run_trials(
    trials: Sequence[Trial],
    root: str | Path,
    *,
    workers: int = 1,
    watcher: StudyWatcher | None = None,
    device: str = "auto",
    data_root: str | Path | None = None,
    accept_hash: bool = False,
    **options: Any,
) -> list[Ended]:
    """Run trials, so many at a time.

    Args:
        trials: what to run, in this order.
        root: the folder of all runs.
        workers: trials to run in parallel.
        watcher: is told how it goes.
        device: where to train; of several GPUs each trial takes the one with the fewest.
        data_root: the folder of all data.
        accept_hash: accept data files whose hash differs.
        **options: as for :func:`stochbatch.training.run`: ``checkpoint_seconds``, ...

    Raises:
        MissingFileError: data are missing; nothing was started.
        StudyStopped: SIGINT or SIGTERM came; everything so far is saved.
    """
    if workers < 1:
        raise ValueError(f"workers must be 1 or more, got {workers}")
    check_data(trials, data_root, accept_hash)
    options |= {"data_root": data_root, "accept_hash": accept_hash}
    engine = LocalEngine(Path(root), workers, devices(device), options)
    return run_study(engine, trials, Path(root), watcher)


@dataclass
class _Running:
    trial: Trial
    process: ForkServerProcess | SpawnProcess
    device: str


class LocalEngine:
    """Trains each trial in a process that is forked from one that has loaded torch.

    Where there is no fork server, processes are spawned: each then starts some seconds later.
    """

    queues = False

    def __init__(
        self, root: Path, workers: int, devices: list[str], options: dict[str, Any]
    ) -> None:
        self.root, self.workers, self.devices, self.options = root, workers, devices, options
        self.running: list[_Running] = []
        self.warming_up = threading.Thread(target=self._warm_up, daemon=True)
        self.context: Any = multiprocessing.get_context("spawn")
        if sys.platform == "linux":
            self.context = multiprocessing.get_context("forkserver")
            self.context.set_forkserver_preload(["stochbatch.studies.fork_server"])
            self.warming_up.start()

    def _warm_up(self) -> None:
        """Wait until the fork server answers, in a thread, as a signal must not wait for it."""
        with _signals_held_back(), suppress(OSError, EOFError):  # the first trial fails by it too
            process = self.context.Process(target=_do_nothing, daemon=True)
            process.start()
            process.join()

    @property
    def room(self) -> int:
        """How many trials to train at once: none while the fork server starts."""
        return 0 if self.warming_up.is_alive() else self.workers

    def start(self, trial: Trial) -> None:
        """Start a process on the device that has the fewest."""
        taken = [each.device for each in self.running]
        device = min(self.devices, key=taken.count)
        options = self.options | {"device": device}
        # The environment too: that of the fork server may be older.
        arguments = (trial, self.root, options, dict(os.environ))
        process = self.context.Process(target=_work, args=arguments, daemon=True)
        with _signals_held_back():
            process.start()
        self.running.append(_Running(trial, process, device))

    def poll(self) -> Iterator[tuple[Trial, str | None]]:
        """Yield trials whose processes ended."""
        if not self.running:
            self.warming_up.join(LOOK_EVERY)
            return
        over = wait([each.process.sentinel for each in self.running], timeout=LOOK_EVERY)
        for each in [each for each in self.running if each.process.sentinel in over]:
            self.running.remove(each)
            each.process.join()
            code = each.process.exitcode
            fault = f"the process that trained it died with exit code {code}" if code else None
            yield each.trial, fault

    def stop(self) -> None:
        """Let all processes save and end."""
        for each in self.running:
            each.process.terminate()
        for each in self.running:
            each.process.join()


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """Start processes that Ctrl-C and SIGTERM do not reach before they can handle them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # which, begun by a first process, would let them through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _do_nothing() -> None:
    """Show that processes can be started."""


def _work(trial: Trial, root: Path, options: dict[str, Any], environment: dict[str, str]) -> None:
    """Train a trial in a process of its own."""
    # Ctrl-C in a terminal reaches every process. The engine tells the others what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, signal.SIGTERM])
    os.environ.clear()
    os.environ.update(environment)
    _stop_with_the_engine()
    try:
        train(trial, root, **options)
    except Interrupted as stop:
        sys.exit(128 + stop.signal_number)
    except RunError as error:
        sys.exit(f"error: {error}")


def _stop_with_the_engine() -> None:
    """Let this process save and end when the engine is no more, by whatever means it ended."""
    engine = multiprocessing.parent_process()
    if engine is None:
        return

    def watch() -> None:
        wait([engine.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
