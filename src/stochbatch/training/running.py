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

import torch

from stochbatch import data
from stochbatch.data.atomic import remove_forgotten, write_atomically
from stochbatch.optim import SBS
from stochbatch.training import checkpoint
from stochbatch.training.checkpoint import Place
from stochbatch.training.errors import Interrupted, RunError
from stochbatch.training.folder import (
    METRICS,
    RESULT,
    TRIAL,
    WEIGHTS,
    locked,
    read_result,
    write,
)
from stochbatch.training.result import Accuracy, Result, environment
from stochbatch.training.session import Session, Tally
from stochbatch.training.signals import StopSignals
from stochbatch.training.trial import Trial
from stochbatch.training.watching import Progress, Unfailing

TOLD_EVERY = 0.2
"""Seconds between two reports of progress: each of them waits for the device."""


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

    The run lies in ``root / trial.folder`` (see :mod:`stochbatch.training.folder`). If it was
    stopped, by whatever means, it goes on where it was and ends as if it never had been.

    Args:
        trial: what to train.
        root: the folder of all runs.
        data_root: the folder of all data, see :func:`stochbatch.data.data_root`.
        accept_hash: take data files that are not the published ones; the result says so.
        device: ``"cpu"``, ``"cuda"``, ... or ``"auto"`` for the best there is.
        progress: is told how it goes.
        again: begin anew even if the run is over, or diverged.
        wait: if another process is at work on this trial, wait for it instead of refusing.
        checkpoint_seconds: save at least so often within an epoch; every epoch ends with a save.
        tensorboard: also write TensorBoard's event files into the run's folder.

    Returns:
        The result; its ``status`` is ``"diverged"`` if the loss became infinite or NaN.

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
    progress = Unfailing(progress or Progress())
    folder = Path(root) / trial.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make the folder {folder}: {error.strerror or error}") from error
    try:
        with locked(folder, wait):
            remove_forgotten(folder, after=-math.inf)  # nobody else is at work here
            done = None if again else read_result(folder)
            if done is not None:
                _check_data(done, data_root, accept_hash)
                progress.end(done)
                return done
            chosen = choose_device(device)
            with _own_generators(chosen), StopSignals() as signals:
                runner = _Runner(trial, folder, chosen, progress, signals, checkpoint_seconds)
                return runner.run(data_root, accept_hash, tensorboard, again)
    finally:
        progress.close()


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
def _own_generators(device: torch.device) -> Iterator[None]:
    """Leave the caller's random numbers as they were."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


def _check_data(done: Result, data_root: str | Path | None, accept_hash: bool) -> None:
    """Raise if a finished run was trained on other data than those that are asked for."""
    if not done.data.official and not accept_hash:
        raise RunError(
            f"{done.folder} was trained on files that are not the published ones: take it as it "
            "is (--accept-hash), or begin anew (--again)"
        )
    name = done.trial["dataset"]
    try:
        splits = [
            data.load(name, data_root, split, accept_hash=accept_hash)
            for split in ("train", "test")
        ]
    except data.MissingFileError:
        return  # nothing to compare with
    if [split.sha256 for split in splits] != [done.data.train_sha256, done.data.test_sha256]:
        raise RunError(
            f"{done.folder} was trained on other data than are there now: put the former data "
            "back, or begin anew (--again)"
        )


def _clear(folder: Path) -> None:
    # The result first: without it, what is left is a run under way.
    for name in (RESULT, WEIGHTS, METRICS):
        (folder / name).unlink(missing_ok=True)
    checkpoint.remove_all(folder)


class _Runner:
    """One call of :func:`run`, with the folder locked."""

    def __init__(
        self,
        trial: Trial,
        folder: Path,
        device: torch.device,
        progress: Progress,
        signals: StopSignals,
        checkpoint_seconds: float,
    ) -> None:
        self.trial, self.folder, self.device = trial, folder, device
        self.progress, self.signals = progress, signals
        self.checkpoint_seconds = checkpoint_seconds
        self.metrics: list[str] = []
        self.seconds = 0.0
        self.began = math.inf  # when the epoch under way was begun or resumed

    def run(
        self, data_root: str | Path | None, accept_hash: bool, tensorboard: bool, again: bool
    ) -> Result:
        train, test = (
            data.load(self.trial.dataset, data_root, split, accept_hash=accept_hash)
            for split in ("train", "test")
        )
        self.session = Session(self.trial, train, test, self.device)
        if not len(self.session.batches):
            raise RunError(f"there are too few images for a batch: {len(train)} in {train!r}")
        if again:
            _clear(self.folder)  # not before it is sure that there will be something instead
        write(self.folder / TRIAL, self.trial.model_dump_json(indent=1))
        place = self._restore()
        self.saved_at = time.monotonic()
        if self.metrics and _diverged(json.loads(self.metrics[-1])):
            return self._finish("diverged")  # killed before it could say so
        with _events(self.folder, tensorboard, place.epoch) as events:
            for epoch in range(place.epoch, self.trial.epochs):
                metrics = self._epoch(epoch, place.step if epoch == place.epoch else 0)
                events.write(metrics)
                self.progress.epoch(metrics)
                if _diverged(metrics):
                    return self._finish("diverged")
                self._obey(Place(epoch + 1, 0), saved=True)
        return self._finish("finished")

    def _restore(self) -> Place:
        state, note = checkpoint.load(self.folder, self.device)
        place = Place(0, 0)
        if state is not None:
            facts = json.loads(state["data"])
            if facts != self.session.facts.model_dump(mode="json"):
                raise RunError(
                    f"{self.folder} was begun on other data than are there now: put the former "
                    "data back, or begin anew (--again)"
                )
            self.session.load(state)
            place = Place(state["epoch"], state["step"])
            self.metrics, self.seconds = state["metrics"], state["seconds"]
        write(self.folder / METRICS, "".join(self.metrics))
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

    def _epoch(self, epoch: int, start: int) -> dict[str, Any]:
        session, steps = self.session, self.session.steps
        if start == 0:
            session.begin_epoch()
        self.began = told = time.monotonic()
        lr = session.optimizer.param_groups[0]["lr"]
        for step in range(start, steps):
            session.step(epoch, step)
            now = time.monotonic()
            if now - told > TOLD_EVERY:
                told = now
                self._tell(epoch, step + 1, (step + 1 - start) / (now - self.began))
            self._obey(Place(epoch, step + 1))
        train_loss, train_accuracy = session.tally.read()
        images = int(session.tally.images)
        training_seconds = time.monotonic() - self.began
        tested = self._evaluate(epoch) if self.trial.evaluates(epoch) else {}
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
        write(self.folder / METRICS, "".join(self.metrics))
        self._save(Place(epoch + 1, 0))
        return line

    def _evaluate(self, epoch: int) -> dict[str, Any]:
        tally = Tally.zeros(self.device)
        for _ in self.session.evaluate(epoch, tally):
            if self.signals.received is not None:
                # The weights are those at the end of the epoch: the next run evaluates them.
                self._obey(Place(epoch, self.session.steps))
        loss, accuracy = tally.read()
        return {"test_loss": _number(loss), "test_accuracy": accuracy}

    def _layers(self) -> dict[str, Any]:
        optimizer = self.session.optimizer
        if not isinstance(optimizer, SBS):
            return {}
        rows = [asdict(row) for row in optimizer.layer_report()]
        for row in rows:
            row |= {name: _number(row[name]) for name in ("probability", "batches")}
        return {"layers": rows}

    def _tell(self, epoch: int, step: int, steps_per_second: float) -> None:
        loss, accuracy = self.session.tally.read()
        speed = steps_per_second * int(self.session.tally.images) / step
        self.progress.batch(epoch, step, self.session.steps, loss, accuracy, speed)

    def _obey(self, place: Place, saved: bool = False) -> None:
        """Save if it is time to, and stop if a signal asks for it."""
        stop = self.signals.received
        due = time.monotonic() - self.saved_at > self.checkpoint_seconds
        if (due or stop is not None) and not saved:
            self._save(place)
        if stop is not None:
            raise Interrupted(stop, self.folder)

    def _save(self, place: Place) -> None:
        state = {
            **self.session.state(),
            "data": self.session.facts.model_dump_json(),
            "metrics": self.metrics,
            "seconds": self.seconds + max(0.0, time.monotonic() - self.began),
        }
        checkpoint.save(self.folder, place, state)
        self.saved_at = time.monotonic()

    def _finish(self, status: str) -> Result:
        lines = [json.loads(line) for line in self.metrics]
        curve = [line.get("test_accuracy") for line in lines]
        network = self.session.network
        weights = checkpoint.to_bytes(
            {name: value.contiguous().cpu() for name, value in network.state_dict().items()}
        )
        result = Result(
            status=status,  # type: ignore[arg-type]
            trial=self.trial.model_dump(),
            trial_hash=self.trial.hash,
            epochs=len(lines),
            accuracy=Accuracy.of(curve),
            train_loss=lines[-1]["train_loss"],
            curve=curve,
            parameters=sum(parameter.numel() for parameter in network.parameters()),
            data=self.session.facts,
            weights_sha256=hashlib.sha256(weights).hexdigest(),
            times={"seconds": self.seconds, "seconds_an_epoch": self.seconds / len(lines)},
            environment=environment(self.device),
        ).in_folder(self.folder)
        try:
            write_atomically(self.folder / WEIGHTS, lambda file: file.write(weights))
        except OSError as error:
            raise RunError(f"cannot write {self.folder / WEIGHTS}: {error.strerror}") from error
        write(self.folder / RESULT, result.model_dump_json(indent=1))
        checkpoint.remove_all(self.folder)
        self.progress.end(result)
        return result


def _diverged(metrics: dict[str, Any]) -> bool:
    return any(metrics.get(name, 0.0) is None for name in ("train_loss", "test_loss"))


def _number(value: float) -> float | None:
    """Return a number that JSON has; NaN and infinity are null."""
    return value if math.isfinite(value) else None


class _Events:
    """TensorBoard's event files, or nothing."""

    def __init__(self, writer: Any) -> None:
        self.writer = writer

    def write(self, metrics: dict[str, Any]) -> None:
        """Write an epoch's numbers, and for SBS those of every layer."""
        if self.writer is None:
            return
        epoch = metrics["epoch"]
        for name, value in metrics.items():
            if isinstance(value, float | int) and name != "epoch":
                self.writer.add_scalar(name, value, epoch)
        for layer in metrics.get("layers", []):
            for name in ("probability", "batches"):
                if layer[name] is not None:
                    self.writer.add_scalar(f"{name}/{layer['name']}", layer[name], epoch)


@contextmanager
def _events(folder: Path, wanted: bool, epoch: int) -> Iterator[_Events]:
    if not wanted:
        yield _Events(None)
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise RunError("TensorBoard is not here: pip install 'stochbatch[lab]'") from None
    writer = SummaryWriter(str(folder / "events"), purge_step=epoch)
    try:
        yield _Events(writer)
    finally:
        writer.close()
