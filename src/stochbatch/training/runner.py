"""``run``: a trial from its first to its last epoch, however often it is stopped in between."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch.random import fork_rng

from stochbatch import data
from stochbatch.data.own_data import remember
from stochbatch.files import remove_forgotten, write_atomically
from stochbatch.training import checkpoint
from stochbatch.training.checkpoint import Place, one_line
from stochbatch.training.device import is_out_of_memory
from stochbatch.training.distributed import Ranks, joined
from stochbatch.training.exceptions import Interrupted, RunError
from stochbatch.training.observers import Observer, Start, Unfailing
from stochbatch.training.result import Accuracy, DataFacts, Result, environment, plugins_of
from stochbatch.training.run_folder import (
    LOG,
    METRICS,
    RESULT,
    TRIAL,
    WEIGHTS,
    clear,
    find_finished,
    locked,
    read_trial,
    write,
)
from stochbatch.training.run_log import LOGGER, RunLog, logged
from stochbatch.training.signals import StopSignals
from stochbatch.training.trainer import Trainer
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
    observers: Sequence[Observer] = (),
    again: bool = False,
    wait: bool = False,
    checkpoint_seconds: float = 300.0,
) -> Result:
    """Train, or resume training, or return the result of a run that has finished.

    Results go to ``root / trial.folder`` (see :mod:`stochbatch.training.run_folder`). A run that
    was stopped, by whatever means, is resumed and ends as if it had never been stopped.

    Processes that torchrun started train together: each takes a slice of every batch, rank 0
    writes, and all return the same result. All of them must call this with the same trial.

    Args:
        trial: what to train.
        root: the folder of all runs.
        data_root: the folder of all data, see :func:`stochbatch.data.data_root`.
        accept_hash: take data files that are not the published ones; the result says so.
        device: ``"cpu"``, ``"cuda"``, ... or ``"auto"`` for the best there is. Of several
            processes each takes its own GPU.
        observers: callbacks, such as progress bars; of several processes, on rank 0.
        again: start over even if the run has finished or diverged.
        wait: if another process is running this trial, wait for it instead of refusing.
        checkpoint_seconds: seconds between checkpoints within an epoch; every epoch ends with one.

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
    remember(data_root)
    folder = Path(root) / trial.folder
    with joined() as ranks:
        ranks.check_same(trial.hash, "were given different trials")
        watching = Unfailing(*(observers if ranks.rank == 0 else ()))

        def finished() -> Result | None:
            return None if again else find_finished(folder, data_root, accept_hash)

        try:
            # Before it is locked, which read-only media cannot be; and after that, as another
            # process may have finished it while this one waited.
            result = ranks.first(finished)
            with nullcontext() if result else locked(folder, wait, ranks):
                result = result or ranks.first(finished)
                if result is None:
                    chosen = ranks.choose_device(device)
                    log_path = folder / LOG if ranks.rank == 0 else None
                    # The caller's random numbers stay as they are.
                    generators = fork_rng([chosen] if chosen.type == "cuda" else [])
                    with StopSignals() as signals, generators, _reported(chosen, log_path) as log:
                        runner = _Runner(
                            trial, folder, chosen, log, ranks, watching, signals, checkpoint_seconds
                        )
                        result = runner.run(data_root, accept_hash, again)
            watching.on_end(result)
            return result
        finally:
            watching.close()


@contextmanager
def _reported(device: torch.device, path: Path | None) -> Iterator[RunLog]:
    """Log how a training ends, if by an error or a signal, and call out of memory by its name."""
    with logged(path) as log:
        try:
            yield log
        except Interrupted as stop:
            log.info(f"stopped by signal {stop.signal_number}")
            raise
        except Exception as error:
            LOGGER.error("%s: %s", type(error).__name__, one_line(error))
            if is_out_of_memory(error):
                raise RunError(
                    f"out of memory on {device} ({one_line(error)}): use a smaller --batch-size or "
                    "--width, or make room and run it again"
                ) from error
            raise


@dataclass
class _Runner:
    """One call of :func:`run`, with the folder locked."""

    trial: Trial
    folder: Path
    device: torch.device
    log: RunLog
    ranks: Ranks
    observers: Unfailing
    signals: StopSignals
    checkpoint_seconds: float
    metrics: list[str] = field(default_factory=list)
    earlier: list[dict[str, Any]] = field(default_factory=list)
    """Environments before it was resumed."""
    seconds: float = 0.0
    began: float = math.inf
    """When this process began with the current epoch."""

    def run(self, data_root: str | Path | None, accept_hash: bool, again: bool) -> Result:
        trial = self.trial
        # Now, as the source may be another when the training is over.
        self.environment = environment(self.device, self.ranks.count) | plugins_of(trial)
        self.ranks.check_trial(trial.batch_size, trial.sync_bn, self.device)
        train, test = (
            data.load(trial.dataset, data_root, split, accept_hash=accept_hash)
            for split in ("train", "test")
        )
        self.trainer = Trainer(trial, train, test, self.device, self.ranks)
        if not len(self.trainer.batches):
            raise RunError(f"there are too few images for a batch: {len(train)} in {train!r}")
        self.ranks.check_same(self.trainer.facts, "have different data")
        place = self._restore(again)
        self.saved_at = time.monotonic()
        if self.metrics and _diverged(json.loads(self.metrics[-1])):
            return self._finish("diverged")  # killed before it could say so
        for epoch in range(place.epoch, trial.epochs):
            metrics = self._epoch(epoch, place.step if epoch == place.epoch else 0)
            self.observers.on_epoch(metrics)
            if _diverged(metrics):
                return self._finish("diverged")
            self._obey(Place(epoch + 1, 0), saved=True)
        return self._finish("finished")

    def _restore(self, again: bool) -> Place:
        path, state, note = self.ranks.first(lambda: self._open(again))
        place = Place(0, 0)
        if path is not None:
            if DataFacts.model_validate_json(state["data"]) != self.trainer.facts:
                raise RunError(
                    f"{self.folder} was begun on data that differ from those here now: put the "
                    "former data back, or start over (stochbatch train --config "
                    f"{self.folder / TRIAL} --root {self.folder.parent} --again)"
                )
            place = Place(state["epoch"], state["step"])
            try:
                self.trainer.load(state)
            except Exception as error:  # whatever an odd state leads to
                if is_out_of_memory(error):
                    raise
                raise checkpoint.odd(path, one_line(error)) from error
            self.metrics, self.seconds = state["metrics"], state["seconds"]
            self.earlier = json.loads(state["environments"])
            if self.earlier and self.earlier[-1] == self.environment:
                self.earlier.pop()
        self._write_metrics()
        start = Start(self.trial, self.folder, *place, self.trainer.steps, note)
        self._log_start(start)
        self.observers.on_start(start)
        return place

    def _open(self, again: bool) -> checkpoint.Loaded:
        """Return the last checkpoint of the folder."""
        if again:
            # Not before it is sure that there will be something instead.
            clear(self.folder)
        else:
            read_trial(self.folder)  # refuses the folder of another trial
        remove_forgotten(self.folder, after=-math.inf)  # nobody else is training here
        # To the host: whatever loads a state brings it where it belongs, in a dtype that is there.
        loaded = checkpoint.load(self.folder, self.trial, put_aside=True)
        write(self.folder / TRIAL, self.trial.model_dump_json(indent=1))
        return loaded

    def _log_start(self, start: Start) -> None:
        place = f"{start.epoch} epochs and {start.batch} batches"
        what = f"resumed after {place}" if start.resumed else "started"
        self.log.open()
        self.log.info(
            f"trial {self.trial.hash} {what} on {self.device}, data {self.trainer.facts.key}, "
            f"stochbatch {self.environment['stochbatch']}, torch {self.environment['torch']}"
        )
        if start.note:
            LOGGER.warning(start.note)

    def _epoch(self, epoch: int, first: int) -> dict[str, Any]:
        """Train, evaluate and save; return the line of metrics."""
        self.first, self.began, self.told_at = first, time.monotonic(), time.monotonic()
        metrics = self.trainer.train_epoch(epoch, first, self._after_step)
        # A training that diverges is always evaluated, so that no better epoch stands for it.
        if _diverged(metrics) or self.trial.evaluates(epoch):
            tested = self.trainer.evaluate(epoch, lambda: self.signals.received)
            if not tested:  # a signal came; the next run evaluates the weights, which are final
                self._obey(Place(epoch, self.trainer.steps))
            metrics |= tested
        metrics |= self.trainer.layers()
        self.trainer.schedule.step()
        metrics["seconds"] = time.monotonic() - self.began
        self.seconds, self.began = self.seconds + metrics["seconds"], math.inf
        metrics |= {"trial": self.trial.folder, "data": self.trainer.facts.key}
        self.metrics.append(json.dumps(metrics) + "\n")
        if self.ranks.count > 1 and not _diverged(metrics):
            self.ranks.check_same(self.trainer.fingerprint(), "came to have different weights")
        self._write_metrics()
        self._save(Place(epoch + 1, 0))
        return metrics

    def _after_step(self, epoch: int, step: int) -> None:
        now = time.monotonic()
        if self.observers and now - self.told_at > TOLD_EVERY:
            self.told_at = now
            loss, accuracy, _ = self.trainer.tally.read()
            steps_per_second = (step - self.first) / (now - self.began)
            self.observers.on_batch(
                {
                    "epoch": epoch,
                    "batch": step,
                    "batches": self.trainer.steps,
                    "train_loss": loss,
                    "train_accuracy": accuracy,
                    "images_per_second": steps_per_second * self.trainer.images_per_step,
                }
            )
        self._obey(Place(epoch, step))

    def _obey(self, place: Place, saved: bool = False) -> None:
        """Save if it is time to, and stop if a signal asks for it."""
        due = time.monotonic() - self.saved_at > self.checkpoint_seconds
        stop, save = self.ranks.agree(self.signals.received or 0, due)
        if (stop or save) and not saved:
            self._save(place)
        if stop:
            raise Interrupted(stop, self.folder)

    def _save(self, place: Place) -> None:
        state = {
            **self.trainer.state(),
            "data": self.trainer.facts.model_dump_json(),
            "metrics": self.metrics,
            "environments": json.dumps([*self.earlier, self.environment]),
            "seconds": self.seconds + max(0.0, time.monotonic() - self.began),
        }
        self.ranks.first(lambda: checkpoint.save(self.folder, self.trial, place, state))
        self.saved_at = time.monotonic()

    def _write_metrics(self) -> None:
        self.ranks.first(lambda: write(self.folder / METRICS, "".join(self.metrics)))

    def _finish(self, status: str) -> Result:
        result = self.ranks.first(lambda: self._write_result(status))
        accuracy = "" if result.accuracy is None else f": {result.accuracy.in_words()}"
        self.log.info(f"{status} after {result.epochs} epochs{accuracy}")
        return result

    def _write_result(self, status: str) -> Result:
        lines = [json.loads(line) for line in self.metrics]
        curve = [line.get("test_accuracy") for line in lines]
        network = self.trainer.network
        # Copies, as safetensors refuses weights that share memory.
        copies = {
            name: value.cpu().clone(memory_format=torch.contiguous_format)
            for name, value in network.state_dict().items()
        }
        # One entry, as safetensors writes several in any order.
        whose = json.dumps({"trial": self.trial.hash, "data": self.trainer.facts.key})
        weights = safetensors.torch.save(copies, {"stochbatch": whose})
        counts = None if status == "diverged" else self.trainer.correct
        correct = None if counts is None else " ".join(map(str, counts.tolist()))
        result = Result(
            status=status,  # type: ignore[arg-type]
            trial=self.trial.model_dump(),
            trial_hash=self.trial.hash,
            epochs=len(lines),
            accuracy=Accuracy.of(curve, diverged=status == "diverged"),
            train_loss=lines[-1]["train_loss"],
            curve=curve,
            correct=correct,
            parameters=sum(parameter.numel() for parameter in network.parameters()),
            data=self.trainer.facts,
            weights_sha256=hashlib.sha256(weights).hexdigest(),
            times={"seconds": self.seconds, "seconds_an_epoch": self.seconds / len(lines)},
            environment=self.environment,
            earlier_environments=self.earlier,
        ).in_folder(self.folder)
        try:
            write_atomically(self.folder / WEIGHTS, lambda file: file.write(weights))
        except OSError as error:
            raise RunError(f"cannot write {self.folder / WEIGHTS}: {error.strerror}") from error
        unknown = {"correct"} if result.correct is None else None
        write(self.folder / RESULT, result.model_dump_json(indent=1, exclude=unknown))
        checkpoint.remove_all(self.folder)
        return result


def _diverged(metrics: dict[str, Any]) -> bool:
    losses = metrics["train_loss"], metrics.get("test_loss", 0.0)
    return None in losses or losses[0] > DIVERGED_LOSS
