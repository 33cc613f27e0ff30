"""A training in memory: data, network, optimizer, schedule, and the loop over an epoch."""

from __future__ import annotations

import hashlib
import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from stochbatch.data import DATASETS, Augmentation, Batches, Split, hold_out, subset
from stochbatch.optim import SBS
from stochbatch.optim.kernels.build import library
from stochbatch.optim.kernels.fallback import UnavailableError
from stochbatch.registry import METHODS, SCHEDULES
from stochbatch.training.builders import build_network, build_optimizer
from stochbatch.training.distributed import ALONE, Ranks, Slices
from stochbatch.training.exceptions import RunError
from stochbatch.training.result import DataFacts
from stochbatch.training.trial import Trial, last_tenth

PIXELS_AT_ONCE = {"cpu": 1 << 17}  # what its caches hold
"""About so many pixels are evaluated at once; on other devices 2**20."""

FEW_IMAGES = 2_000
"""In smaller test sets each image counts: it is kept how often it was right."""

RESAMPLED_IMAGES = 10_000
"""So many images, at most, re-estimate batch norm where the method asks for that."""

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Tally(NamedTuple):
    """Sums over the images of an epoch; on the device, so that no step waits for it."""

    loss: Tensor
    correct: Tensor
    images: Tensor

    @classmethod
    def zeros(cls, device: torch.device) -> Tally:
        """Return the tally of nothing."""
        sums = torch.float32 if device.type == "mps" else torch.float64
        return cls(
            torch.zeros((), dtype=sums, device=device),
            torch.zeros((), dtype=torch.int64, device=device),
            torch.zeros((), dtype=torch.int64, device=device),
        )

    def add(self, loss: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
        """Count a batch, given its mean loss; return which of its images are right."""
        right = logits.detach().argmax(1) == labels
        self.loss.add_(loss.detach().to(self.loss.dtype) * len(labels))
        self.correct.add_(right.sum())
        self.images.add_(len(labels))
        return right

    def read(self) -> tuple[float, float, int]:
        """Return mean loss, accuracy in percent, and number of images (waits for the device)."""
        loss, correct, images = (part.item() for part in self)
        return loss / images, 100 * correct / images, int(images)


class Trainer:
    """Everything that a trial trains with; :meth:`train_epoch` is the training loop.

    It is given the whole training split, and draws the trial's share of it. Of a trial with
    ``validation`` nothing of the test split is looked at.
    """

    def __init__(
        self, trial: Trial, train: Split, test: Split, device: torch.device, ranks: Ranks = ALONE
    ) -> None:
        self.trial, self.device, self.ranks = trial, device, ranks
        self.method, self.classes = METHODS[trial.method], len(train.classes)
        self._take_data(train, test)
        seed_everything(trial.seed, "initial weights")
        self.network = build_network(trial).to(device)
        self._prepare_network()
        self.optimizer = build_optimizer(trial, self.network)
        if isinstance(self.optimizer, SBS):
            self.optimizer.on_slow_layers(logging.getLogger("stochbatch").warning)
            if device.type == "cpu":
                # Not in the background: what eager and native steps report of layers differs in
                # the sixth digit, and metrics must not depend on when a build ends.
                with suppress(UnavailableError):
                    library()
        schedule = SCHEDULES[trial.schedule]
        self.schedule = schedule(self.optimizer, trial.epochs, **trial.schedule_settings)
        self.scaler = torch.amp.GradScaler(device.type, enabled=trial.precision == "fp16")
        self.tally = Tally.zeros(device)
        self.correct: Tensor | None = None
        """How often each image of a small test set was right in the last tenth of the epochs."""

    def _take_data(self, train: Split, test: Split) -> None:
        """Draw the images to train on, and choose those to test on."""
        trial, device = self.trial, self.device
        chosen = subset(trial.seed, len(train), trial.share)
        tested, tested_labels = test.images, test.labels
        if trial.validation:
            chosen, held = hold_out(trial.seed, train.labels, chosen, trial.validation)
            tested, tested_labels = train.images[held], train.labels[held]
        self.batches = Batches(
            train.images[chosen],
            train.labels[chosen],
            trial.batch_size,
            seed=trial.seed,
            augmentation=DATASETS[trial.dataset].augmentation if trial.augment else Augmentation(),
            drop_single=True,
            device=device,
        )
        self.slices = Slices(self.batches, self.ranks)
        normalisation = self.batches.normalisation
        at_once = PIXELS_AT_ONCE.get(device.type, 1 << 20) // tested[0, 0].numel()
        self.test = Batches(
            tested,
            tested_labels,
            max(1, at_once),
            shuffle=False,
            normalisation=normalisation,
            device=device,
        )
        self.facts = DataFacts(
            train_sha256=train.sha256,
            test_sha256=test.sha256,
            official=train.official and test.official,
            train_images=len(chosen),
            test_images=len(tested),
            mean=normalisation.mean,
            std=normalisation.std,
        )

    def _prepare_network(self) -> None:
        """Choose the network's memory layout, compile it, and connect it to other ranks."""
        trial, device, ranks = self.trial, self.device, self.ranks
        if trial.compile and device.type == "cpu" and _has_narrow_convolution(self.network, 2):
            raise RunError(
                f"{trial.network} of width {trial.width:g} cannot be compiled on a CPU: torch's "
                "backward pass of its narrow convolutions is wrong there"
            )
        self.layout = _layout(trial, self.network, device)
        self.network.to(memory_format=self.layout)  # type: ignore[call-overload]
        if trial.sync_bn and ranks.count > 1:
            self.network = nn.SyncBatchNorm.convert_sync_batchnorm(self.network)  # type: ignore[no-untyped-call]
        self.forward: Any = torch.compile(self.network) if trial.compile else self.network
        zeros = torch.zeros(2, *self.batches.shape[1:], device=device)
        self.trained = ranks.data_parallel(self.forward, self._laid_out(zeros))  # type: ignore[arg-type]
        # Ranks drop features of their images by numbers of their own, but the coin of a residual
        # branch is one for the whole batch.
        drops = any(isinstance(module, nn.Dropout) for module in self.network.modules())
        self._noise = f", part {ranks.rank}" if drops and ranks.rank else ""

    def train_epoch(
        self, epoch: int, first: int = 0, after_step: Callable[[int, int], None] = lambda *_: None
    ) -> dict[str, Any]:
        """Train for one epoch and return its metrics.

        It begins with the step ``first``, if those before were done by an earlier process.
        ``after_step`` is called with the epoch and its number of steps done; it tells observers,
        saves checkpoints and obeys signals.
        """
        if first == 0:  # later, both are restored
            self.tally = Tally.zeros(self.device)
            if isinstance(self.optimizer, SBS):
                self.optimizer.new_epoch()  # its averages are those of an epoch (Algorithm 2)
        self.network.train()
        lr, began = self.optimizer.param_groups[0]["lr"], time.monotonic()
        for step in range(first, self.steps):
            batches = itertools.count(step * self.batches_per_step)
            forward_backward = partial(self._forward_backward, epoch, batches)
            if self.method.closure:  # it evaluates several batches
                self.optimizer.step(forward_backward)  # type: ignore[arg-type]
            else:
                forward_backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
            after_step(epoch, step + 1)
        loss, accuracy, images = Tally(*self.ranks.sum(self.tally)).read()
        trained = images * (self.steps - first) / self.steps
        return {
            "epoch": epoch,
            "lr": float(lr),
            "train_loss": number_or_none(loss),
            "train_accuracy": accuracy,
            "images_per_second": trained / max(time.monotonic() - began, 1e-9),
        }

    def _forward_backward(self, epoch: int, batches: Iterator[int]) -> Tensor:
        """Compute loss and gradients of the next batch."""
        number = next(batches)
        images, labels, weight = self.slices(epoch, number % len(self.batches))
        # Dropout draws from torch's generator. Seeded anew for every batch, it needs no
        # saving, and a run that resumes drops what the undisturbed run dropped.
        seed_everything(self.trial.seed, f"batch {number} of epoch {epoch}{self._noise}")
        with self._autocast():
            logits = self.trained(self._laid_out(images))
            loss = nn.functional.cross_entropy(logits, labels)
        if weight:
            self.tally.add(loss, logits, labels)
        self.optimizer.zero_grad()
        loss = loss * weight
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    @property
    def steps(self) -> int:
        """Steps per epoch. Entropy-SGD evaluates several batches in each of its own."""
        return max(1, round(len(self.batches) / self.batches_per_step))

    @property
    def batches_per_step(self) -> int:
        """Batches that the optimizer evaluates in a step."""
        return self.trial.settings["L"] if self.method.closure else 1  # type: ignore[return-value]

    @property
    def images_per_step(self) -> int:
        """Images that a step is computed on, in all processes together."""
        return min(self.trial.batch_size, self.batches.shape[0]) * self.batches_per_step

    def _laid_out(self, images: Tensor) -> Tensor:
        # A batch is channels last; of one channel it is both at once, and only a copy decides.
        if self.layout == torch.channels_last:
            return images
        return images.clone(memory_format=self.layout)

    def _autocast(self) -> torch.autocast:
        low = AUTOCAST.get(self.trial.precision)
        return torch.autocast(self.device.type, low or torch.bfloat16, enabled=low is not None)

    def evaluate(
        self, epoch: int, interrupted: Callable[[], object] = lambda: False
    ) -> dict[str, Any]:
        """Return metrics of the test images, or none if interrupted; all ranks must call this."""
        if self.method.closure:
            self._resample_batch_norm(epoch)
        return self.ranks.first(lambda: self._test(epoch, interrupted))

    def _test(self, epoch: int, interrupted: Callable[[], object]) -> dict[str, Any]:
        self.network.eval()
        tally, right = Tally.zeros(self.device), []
        for images, labels in self.test.epoch(0):
            with torch.no_grad(), self._autocast():
                logits = self.forward(images)  # channels last: faster, and without a backward safe
                loss = nn.functional.cross_entropy(logits, labels)
            right.append(tally.add(loss, logits, labels))
            if interrupted():
                return {}
        if self.facts.test_images < FEW_IMAGES and not self.trial.validation:
            self._count(epoch, torch.cat(right).int().cpu())
        mean_loss, accuracy, _ = tally.read()
        if math.isnan(mean_loss):  # argmax of NaN is class 0; a network without an answer guesses
            accuracy = 100 / self.classes
        return {"test_loss": number_or_none(mean_loss), "test_accuracy": accuracy}

    def _count(self, epoch: int, right: Tensor) -> None:
        if epoch <= self.trial.epochs - last_tenth(self.trial.epochs):
            self.correct = right
        elif self.correct is not None:  # as it is after resuming what an earlier version began
            self.correct = self.correct + right

    def _resample_batch_norm(self, epoch: int) -> None:
        count = min(len(self.batches), -(-RESAMPLED_IMAGES // self.trial.batch_size))
        images = (self._laid_out(self.batches.batch(epoch, n)[0]) for n in range(count))
        with self._autocast():
            update_bn(images, self.network)

    def layers(self) -> dict[str, Any]:
        """Return what SBS did to each layer since the last call; nothing for other methods."""
        if not isinstance(self.optimizer, SBS):
            return {}
        rows = [asdict(row) for row in self.optimizer.layer_report()]
        for row in rows:
            row |= {name: number_or_none(row[name]) for name in ("probability", "batches")}
        return {"layers": rows, "skipped_steps": self.optimizer.skipped_steps}

    def state(self) -> dict[str, Any]:
        """Return all that the next step depends on; all ranks must call this."""
        return {
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "tally": self.ranks.sum(self.tally),
            "correct": self.correct,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go back to where :meth:`state` was taken, or raise if it does not fit."""
        seeds = [group.get("seed") for group in self.optimizer.param_groups]
        if [group.get("seed") for group in state["optimizer"]["param_groups"]] != seeds:
            raise ValueError("its optimizer has another seed")
        if state["step"] > self.steps:
            raise ValueError(f"step {state['step']}, but an epoch has {self.steps} steps")
        # The schedule is a function of the epoch: it is not saved, but steps there again. It would
        # warn if its first step came before one of the optimizer's.
        self.optimizer._opt_called = True  # type: ignore[attr-defined]
        for _ in range(state["epoch"]):
            self.schedule.step()
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        self.correct = state.get("correct")
        self.tally = Tally.zeros(self.device)
        if self.ranks.rank == 0:  # it counts for all of them until now
            for mine, saved in zip(self.tally, state["tally"], strict=True):
                mine.copy_(saved)

    def fingerprint(self) -> str:
        """Return a number that differs, all but certainly, if a bit of the weights does."""
        with torch.no_grad():
            bits = [weight.view(torch.int32).sum() for weight in self.network.parameters()]
            return str(int(torch.stack(bits).sum()))


def number_or_none(value: float) -> float | None:
    """Return a number that JSON has: None for NaN and infinity."""
    return value if math.isfinite(value) else None


def seed_everything(seed: int, purpose: str) -> None:
    """Seed torch's generators with a hash of a trial's seed and of what the numbers are for."""
    digest = hashlib.blake2b(f"{seed} {purpose}".encode(), digest_size=8).digest()
    torch.manual_seed(int.from_bytes(digest, "little") >> 1)


def _layout(trial: Trial, network: nn.Module, device: torch.device) -> torch.memory_format:
    """Return the memory layout that is fast for a trial, and safe."""
    # Measured on a CPU with AVX2: channels last is slower by 3 % at batch 16, faster by 8 % at 128.
    if device.type == "cpu" and trial.precision == "fp32" and trial.batch_size < 64:
        return torch.contiguous_format
    return torch.contiguous_format if _has_narrow_convolution(network) else torch.channels_last


def _has_narrow_convolution(network: nn.Module, stride: int = 1) -> bool:
    """Return whether there is a convolution of 1x1 pixels with few channels and so large a stride.

    In torch 2.13 its backward pass on a CPU, channels last or compiled, writes where it should not.
    """
    return any(
        isinstance(module, nn.Conv2d)
        and module.kernel_size == (1, 1)
        and min(module.in_channels, module.out_channels) < 8
        and max(module.stride) >= stride
        for module in network.modules()
    )
