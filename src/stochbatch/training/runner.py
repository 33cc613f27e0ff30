"""``run``: a trial from its first to its last epoch, however often it is stopped in between."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from stochbatch import data
from stochbatch.files import write_atomically
from stochbatch.optim import SBS
from stochbatch.training import checkpoint, finished
from stochbatch.training.checkpoint import Place
from stochbatch.training.distributed import Ranks, joined
from stochbatch.training.exceptions import Interrupted, RunError
from stochbatch.training.observers import Progress, Unfailing
from stochbatch.training.result import Accuracy, Result, environment, plugins_of
from stochbatch.training.run_folder import (
    METRICS,
    RESULT,
    TRIAL,
    WEIGHTS,
    locked,
    write,
)
from stochbatch.training.signals import StopSignals
from stochbatch.training.tensorboard import check_tensorboard, events
from stochbatch.training.trainer import Session, Tally
from stochbatch.training.trial import Trial

TOLD_EVERY = 0.2
"""Seconds between two reports of progress: each of them waits for the device."""

DIVERGED_LOSS = 1e6
"""An epoch whose mean training loss is above this has diverged, finite or not."""


def run(
    trial: Trial,
    root: str | Path = "runs",
    *,
    data_root: str | Path | None = None,
    accept_hash: bool = False,
    device: str = "auto",
    progress: Progress | None = None,
    again: bool = False,
    wait: bool = False,
    checkpoint_seconds: float = 300.0,
    tensorboard: bool = False,
) -> Result:
    """Train, or go on training, or return what was trained long since.

    The run lies in ``root / trial.folder`` (see :mod:`stochbatch.training.run_folder`). If it was
    stopped, by whatever means, it goes on where it was and ends as if it never had been.

    Processes that torchrun started train together: each takes a slice of every batch, rank 0
    writes, and all return the same result. All of them must call this with the same trial.

    Args:
        trial: what to train.
        root: the folder of all runs.
        data_root: the folder of all data, see :func:`stochbatch.data.data_root`.
        accept_hash: take data files that are not the published ones; the result says so.
        device: ``"cpu"``, ``"cuda"``, ... or ``"auto"`` for the best there is. Of several
            processes each takes its own GPU.
        progress: is told how it goes; of several processes, on rank 0.
        again: begin anew even if the run is over, or diverged.
        wait: if another process is at work on this trial, wait for it instead of refusing.
        checkpoint_seconds: save at least so often within an epoch; every epoch ends with a save.
        tensorboard: also write TensorBoard's event files into the run's folder.

    Returns:
        The result; its ``status`` is ``"diverged"`` if the loss became infinite, NaN or larger
        than a million.

    Raises:
        RunError: something is in the way; one line says what.
        Interrupted: SIGINT or SIGTERM came; everything so far is saved.

    Example:
        >>> import tempfile
        >>> from stochbatch.training import Trial, run
        >>> trial = Trial(method="sbs", epochs=1, share=0.25, batch_size=32)
        >>> with tempfile.TemporaryDirectory() as root:
        ...     result = run(trial, root)
        >>> result.status, result.epochs
        ('finished', 1)
    """
    folder = Path(root) / trial.folder
    with StopSignals(at_once=False) as signals, joined(signals) as ranks:
        ranks.check_same(trial.hash, "were given different trials")
        progress = Unfailing(progress if progress and ranks.rank == 0 else Progress())
        try:
            with locked(folder, wait, ranks):
                done = ranks.first(lambda: finished.find(folder, again, data_root, accept_hash))
                if done is not None:
                    progress.end(done)
                    return done
                signals.listen()
                chosen = ranks.choose_device(device)
                with _own_generators(chosen):
                    runner = _Runner(
                        trial, folder, chosen, ranks, progress, signals, checkpoint_seconds
                    )
                    return runner.run(data_root, accept_hash, tensorboard, again)
        finally:
            progress.close()


@contextmanager
def _own_generators(device: torch.device) -> Iterator[None]:
    """Leave the caller's random numbers as they were."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


class _Runner:
    """One call of :func:`run`, with the folder locked."""

    def __init__(
        self,
        trial: Trial,
        folder: Path,
        device: torch.device,
        ranks: Ranks,
        progress: Progress,
        signals: StopSignals,
        checkpoint_seconds: float,
    ) -> None:
        self.trial, self.folder, self.device, self.ranks = trial, folder, device, ranks
        self.progress, self.signals = progress, signals
        self.checkpoint_seconds = checkpoint_seconds
        self.metrics: list[str] = []
        # Now, as the source may be another when the training is over.
        self.environment = environment(device, ranks.count) | plugins_of(trial)
        self.earlier: list[dict[str, Any]] = []  # environments before it was resumed
        self.seconds = 0.0
        self.began = math.inf  # when the epoch under way was begun or resumed

    def run(
        self, data_root: str | Path | None, accept_hash: bool, tensorboard: bool, again: bool
    ) -> Result:
        trial = self.trial
        self.ranks.check_trial(trial.batch_size, trial.sync_bn, self.device)
        train, test = (
            data.load(trial.dataset, data_root, split, accept_hash=accept_hash)
            for split in ("train", "test")
        )
        self.session = Session(trial, train, test, self.device, self.ranks)
        if not len(self.session.batches):
            raise RunError(f"there are too few images for a batch: {len(train)} in {train!r}")
        self.ranks.check_same(self.session.facts, "have different data")
        if tensorboard:
            check_tensorboard()  # while nothing of an earlier run has been removed
        place = self._restore(again)
        self.saved_at = time.monotonic()
        if self.metrics and _diverged(json.loads(self.metrics[-1])):
            return self._finish("diverged")  # killed before it could say so
        with events(self.folder, tensorboard and self.ranks.rank == 0, place.epoch) as board:
            for epoch in range(place.epoch, trial.epochs):
                metrics = self._epoch(epoch, place.step if epoch == place.epoch else 0)
                board.write(metrics)
                self.progress.epoch(metrics)
                if _diverged(metrics):
                    return self._finish("diverged")
                self._obey(Place(epoch + 1, 0), saved=True)
        return self._finish("finished")

    def _restore(self, again: bool) -> Place:
        state, note = self.ranks.first(lambda: self._open(again))
        place = Place(0, 0)
        if state is not None:
            facts = json.loads(state["data"])
            if facts != self.session.facts.model_dump(mode="json"):
                raise RunError(
                    f"{self.folder} was begun on other data than are there now: put the former "
                    f"data back, or begin anew (stochbatch train --config {self.folder / TRIAL} "
                    f"--root {self.folder.parent} --again)"
                )
            self.session.load(state)
            place = Place(state["epoch"], state["step"])
            self.metrics, self.seconds = state["metrics"], state["seconds"]
            self.earlier = json.loads(state["environments"])
            if self.earlier and self.earlier[-1] == self.environment:
                self.earlier.pop()
        self.ranks.first(lambda: write(self.folder / METRICS, "".join(self.metrics)))
        self.progress.begin(
            self.trial,
            self.folder,
            epoch=place.epoch,
            batch=place.step,
            batches=self.session.steps,
            resumed=state is not None,
            note=note,
        )
        return place

    def _open(self, again: bool) -> checkpoint.Loaded:
        """Return the last checkpoint of the folder, and what is to be said about it."""
        if again:
            # Not before it is sure that there will be something instead.
            finished.clear(self.folder)
        write(self.folder / TRIAL, self.trial.model_dump_json(indent=1))
        # To the host: whatever loads a state brings it where it belongs, in a dtype that is there.
        return checkpoint.load(self.folder, put_aside=True)

    def _epoch(self, epoch: int, start: int) -> dict[str, Any]:
        session, steps = self.session, self.session.steps
        if start == 0:
            session.begin_epoch()
        self.began = told = time.monotonic()
        lr = session.optimizer.param_groups[0]["lr"]
        for step in range(start, steps):
            session.step(epoch, step)
            now = time.monotonic()
            if now - told > TOLD_EVERY and self.ranks.rank == 0:
                told = now
                self._tell(epoch, step + 1, (step + 1 - start) / (now - self.began))
            self._obey(Place(epoch, step + 1))
        tally = Tally(*self.ranks.sum(session.tally))
        train_loss, train_accuracy = tally.read()
        images = int(tally.images)
        training_seconds = time.monotonic() - self.began
        # What diverged is evaluated as it is, however seldom others are: no earlier and better
        # epoch may stand for it.
        broken = not train_loss <= DIVERGED_LOSS
        tested = self._evaluate(epoch) if broken or self.trial.evaluates(epoch) else {}
        layers = self._layers()
        session.schedule.step()
        seconds = time.monotonic() - self.began
        self.seconds, self.began = self.seconds + seconds, math.inf
        line = {
            "epoch": epoch,
            "lr": float(lr),
            "train_loss": _number(train_loss),
            "train_accuracy": train_accuracy,
            **tested,
            **layers,
            "seconds": seconds,
            "images_per_second": images * (steps - start) / steps / max(training_seconds, 1e-9),
        }
        self.metrics.append(json.dumps(line) + "\n")
        if self.ranks.count > 1 and not _diverged(line):
            self.ranks.check_same(session.fingerprint(), "came to have different weights")
        self._save(Place(epoch + 1, 0), with_metrics=True)
        return line

    def _evaluate(self, epoch: int) -> dict[str, Any]:
        self.session.resample(epoch)
        tested = self.ranks.first(self._test)
        if not tested:  # a signal came; the next run evaluates the weights, which are final
            self._obey(Place(epoch, self.session.steps), by_time=False)
        return tested

    def _test(self) -> dict[str, Any]:
        tally = Tally.zeros(self.device)
        for _ in self.session.evaluate(tally):
            if self.signals.received:
                return {}
        loss, accuracy = tally.read()
        return {"test_loss": _number(loss), "test_accuracy": accuracy}

    def _layers(self) -> dict[str, Any]:
        optimizer = self.session.optimizer
        if not isinstance(optimizer, SBS):
            return {}
        rows = [asdict(row) for row in optimizer.layer_report()]
        for row in rows:
            row |= {name: _number(row[name]) for name in ("probability", "batches")}
        return {"layers": rows, "skipped_steps": optimizer.skipped_steps}

    def _tell(self, epoch: int, step: int, steps_per_second: float) -> None:
        loss, accuracy = self.session.tally.read()
        speed = steps_per_second * self.session.images_a_step
        self.progress.batch(epoch, step, self.session.steps, loss, accuracy, speed)

    def _obey(self, place: Place, saved: bool = False, by_time: bool = True) -> None:
        """Save if it is time to, and stop if a signal asks for it."""
        due = by_time and time.monotonic() - self.saved_at > self.checkpoint_seconds
        stop, save = self.ranks.agree(self.signals.received or 0, due)
        if (stop or save) and not saved:
            self._save(place)
        if stop:
            raise Interrupted(stop, self.folder)

    def _save(self, place: Place, with_metrics: bool = False) -> None:
        state = {
            **self.session.state(),
            "data": self.session.facts.model_dump_json(),
            "metrics": self.metrics,
            "environments": json.dumps([*self.earlier, self.environment]),
            "seconds": self.seconds + max(0.0, time.monotonic() - self.began),
        }

        def to_disk() -> None:
            if with_metrics:
                write(self.folder / METRICS, "".join(self.metrics))
            checkpoint.save(self.folder, place, state)

        self.ranks.first(to_disk)
        self.saved_at = time.monotonic()

    def _finish(self, status: str) -> Result:
        result = self.ranks.first(lambda: self._write_result(status))
        self.progress.end(result)
        return result

    def _write_result(self, status: str) -> Result:
        lines = [json.loads(line) for line in self.metrics]
        curve = [line.get("test_accuracy") for line in lines]
        network = self.session.network
        # Copies, as safetensors refuses weights that share memory.
        copies = {
            name: value.cpu().clone(memory_format=torch.contiguous_format)
            for name, value in network.state_dict().items()
        }
        weights = safetensors.torch.save(copies, {"format": "pt"})
        result = Result(
            status=status,  # type: ignore[arg-type]
            trial=self.trial.model_dump(),
            trial_hash=self.trial.hash,
            epochs=len(lines),
            accuracy=Accuracy.of(curve, diverged=status == "diverged"),
            train_loss=lines[-1]["train_loss"],
            curve=curve,
            parameters=sum(parameter.numel() for parameter in network.parameters()),
            data=self.session.facts,
            weights_sha256=hashlib.sha256(weights).hexdigest(),
            times={"seconds": self.seconds, "seconds_an_epoch": self.seconds / len(lines)},
            environment=self.environment,
            earlier_environments=self.earlier,
        ).in_folder(self.folder)
        try:
            write_atomically(self.folder / WEIGHTS, lambda file: file.write(weights))
        except OSError as error:
            raise RunError(f"cannot write {self.folder / WEIGHTS}: {error.strerror}") from error
        write(self.folder / RESULT, result.model_dump_json(indent=1))
        checkpoint.remove_all(self.folder)
        return result


def _diverged(metrics: dict[str, Any]) -> bool:
    losses = metrics["train_loss"], metrics.get("test_loss", 0.0)
    return None in losses or losses[0] > DIVERGED_LOSS


def _number(value: float) -> float | None:
    """Return a number that JSON has; NaN and infinity are null."""
    return value if math.isfinite(value) else None
