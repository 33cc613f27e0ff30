"""The local engine: trials of a study in processes of this machine.

Each process trains one trial after the other. A trial that fails leaves its error in its
folder and does not disturb the others; a process that dies is replaced. A signal stops
everything after it is saved, and the next run goes on.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch

from stochbatch.cores import usable_cores
from stochbatch.studies.engine import (
    Count,
    StudyStopped,
    StudyWatcher,
    UnfailingWatcher,
    is_free,
    record,
    train,
)
from stochbatch.training import Interrupted, Observer, Trial
from stochbatch.training.device import choose_device
from stochbatch.training.observers import Start
from stochbatch.training.signals import StopSignals

BUSY = "busy"
"""An answer besides those of :func:`~stochbatch.studies.engine.train`: another process is training
the trial."""
LOCK_SECONDS = 10.0
"""So long a process that another engine left behind may be saving yet."""


def devices(device: str = "auto") -> list[str]:
    """Return the devices that trials can be handed out to: all GPUs, or the one that is named."""
    if device in ("auto", "cuda") and torch.cuda.is_available():
        # Not tried here: the engine itself needs none of them.
        return [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    return [str(choose_device(device))]


def default_workers(device: str = "auto") -> int:
    """Return how many trials to train at once: one a processor core, or one a GPU."""
    found = devices(device)
    return usable_cores() if found == ["cpu"] else len(found)


def run_trials(
    trials: Sequence[Trial],
    root: str | Path,
    *,
    workers: int = 1,
    watcher: StudyWatcher | None = None,
    device: str = "auto",
    **options: Any,
) -> Count:
    """Run trials, so many at a time.

    Args:
        trials: what to run, in this order.
        root: the folder of all runs.
        workers: processes at work at the same time.
        watcher: is told how it goes.
        device: where to train; of several GPUs each worker takes the next.
        **options: as for :func:`stochbatch.training.run`: ``data_root``, ``accept_hash``, ...

    Raises:
        StudyStopped: SIGINT or SIGTERM came; everything so far is saved.
    """
    if workers < 1:
        raise ValueError(f"workers must be 1 or more, got {workers}")
    watcher = UnfailingWatcher(watcher or StudyWatcher())
    places = [{**options, "device": each} for each in devices(device)]
    engine = _Engine(list(trials), Path(root), watcher, places)
    watcher.begin(len(trials))
    try:
        with StopSignals() as signals:
            return engine.run(min(workers, len(trials)), signals)
    finally:
        try:
            engine.stop()
        finally:  # also if a second Ctrl-C does not let the processes save
            watcher.close()


@dataclass
class _Worker:
    process: SpawnProcess
    pipe: Connection
    place: int
    trial: Trial | None = None


class _Engine:
    def __init__(
        self,
        trials: list[Trial],
        root: Path,
        watcher: StudyWatcher,
        places: list[dict[str, Any]],
    ) -> None:
        self.waiting, self.root, self.watcher = trials[::-1], root, watcher
        self.places = places
        self.workers: list[_Worker] = []
        self.count = Count()
        self.busy: set[str] = set()
        """Hashes of trials that others were found at work on."""

    def run(self, workers: int, signals: StopSignals) -> Count:
        for place in range(workers):
            self._hire(place)
        while self.waiting or any(worker.trial is not None for worker in self.workers):
            ready = wait([worker.pipe for worker in self.workers], timeout=0.2)
            if signals.received is not None:
                raise StudyStopped(signals.received)
            for worker in [worker for worker in self.workers if worker.pipe in ready]:
                self._hear(worker)
        return self.count

    def _hire(self, place: int) -> None:
        """Start a process, with a trial if there is one left."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        arguments = (theirs, self.root, self.places[place % len(self.places)])
        process = context.Process(target=_work, args=arguments, daemon=True)
        with _interrupts_held_back():
            process.start()
        theirs.close()
        worker = _Worker(process, ours, place)
        self.workers.append(worker)
        self._give(worker)

    def _give(self, worker: _Worker) -> None:
        worker.trial = self.waiting.pop() if self.waiting else None
        trial = worker.trial
        with suppress(OSError):  # if it is dead, that is heard next
            worker.pipe.send(None if trial is None else (trial, trial.hash in self.busy))

    def _hear(self, worker: _Worker) -> None:
        trial = worker.trial
        try:
            what, content = worker.pipe.recv()
        except (EOFError, OSError):
            self._bury(worker)
            return
        if trial is None:
            return
        if what == "epoch":
            self.watcher.epoch(trial, content)
            return
        if what == BUSY:
            self._put_off(trial)
            self._give(worker)
            return
        self._over(trial, what, content)
        if what == "failed" and _keeps_faults(self.places[0]):
            worker.trial = None  # and its process ends
        else:
            self._give(worker)

    def _put_off(self, trial: Trial) -> None:
        """Others are at work on a trial: it comes last, and is waited for then."""
        if not self.busy:
            self.watcher.note(
                "another study or training is at work on some of these trials: they come last"
            )
        self.busy.add(trial.hash)
        self.waiting.insert(0, trial)

    def _bury(self, worker: _Worker) -> None:
        """A process ended; its trial, if it had one, failed. Another process takes its place."""
        self.workers.remove(worker)
        worker.pipe.close()
        worker.process.join()
        if worker.trial is not None:
            text = f"the process that trained it died with exit code {worker.process.exitcode}"
            record(self.root / worker.trial.folder, text)
            self._over(worker.trial, "failed", text)
        if self.waiting:
            self._hire(worker.place)

    def _over(self, trial: Trial, status: str, text: str) -> None:
        self.count.add(trial, status, text)
        self.watcher.end_of(trial, status, text)

    def stop(self) -> None:
        """Let all processes save and end."""
        for worker in self.workers:
            if worker.trial is not None and worker.process.is_alive():
                worker.process.terminate()
            worker.pipe.close()
        for worker in self.workers:
            worker.process.join()


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Start processes that a Ctrl-C does not reach before they can ignore it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # which, begun by a first process, would let them through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _keeps_faults(options: dict[str, Any]) -> bool:
    """Return whether an error of the device may stay with a process, and fail all that follows."""
    return not str(options["device"]).startswith("cpu")


def _work(pipe: Connection, root: Path, options: dict[str, Any]) -> None:
    """What a worker does: trials, one after the other, until it is sent None."""
    # Ctrl-C in a terminal reaches every process. The engine tells the workers what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    _stop_with_the_engine()
    # What an engine that was killed left behind may be saving yet: wait for its lock.
    options = {"wait": True, **options}
    while True:
        try:
            order = pipe.recv()
        except (EOFError, OSError):
            return
        if order is None:
            return
        trial, patient = order
        try:
            if not patient and not is_free(root / trial.folder, LOCK_SECONDS):
                pipe.send((BUSY, ""))
                continue
            answer = train(trial, root, observers=[_Teller(pipe)], **options)
            pipe.send(answer)
        except (Interrupted, OSError):
            return
        if answer[0] == "failed" and _keeps_faults(options):
            os._exit(1)  # at once: to end a broken device in good order may take for ever


class _Teller(Observer):
    """Tells the engine how many epochs are done."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe

    def on_start(self, start: Start) -> None:
        """Tell how many epochs an earlier process did."""
        self.pipe.send(("epoch", start.epoch))

    def on_epoch(self, metrics: dict[str, Any]) -> None:
        """Tell that an epoch is done."""
        self.pipe.send(("epoch", metrics["epoch"] + 1))


def _stop_with_the_engine() -> None:
    """Let this process save and end when the engine is no more, by whatever means it ended."""
    engine = multiprocessing.parent_process()
    if engine is None:
        return

    def watch() -> None:
        wait([engine.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
