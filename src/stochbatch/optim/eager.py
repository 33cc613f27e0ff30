"""One step over all layers, in plain torch, piece by piece.

Nothing here waits for the device: what depends on the gradients (the statistics, whether
the step counts, the step number and so the coins) stays a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stochbatch.optim.coins import stream_keys, stream_roots, uniform_at
from stochbatch.optim.pieces import ElementIndex, Piece, pieces
from stochbatch.optim.probability import (
    Layers,
    Moments,
    Scores,
    compute_dtype,
    describe_layers,
    layer_scores,
    measure,
    probability,
)
from stochbatch.optim.state import BATCHES, GRAD_MEAN, MOMENTUM_BUFFER, TALLY
from stochbatch.optim.update import Rule, Scalars, update


@dataclass
class Layer:
    """A parameter tensor that has a gradient in this step, with all that moves it.

    Complex tensors come as their real views.
    """

    index: int
    kind: str
    weight: Tensor
    grad: Tensor
    state: dict[str, Tensor]
    group: dict[str, Any]

    @property
    def rule(self) -> Rule:
        """The options of the layer's group that the update of a scalar needs."""
        return Rule(**{name: self.group[name] for name in Rule._fields})

    def tensors(self) -> list[Tensor]:
        """Weight, gradient, mean, batches and, where there is one, the momentum buffer."""
        held = [self.weight, self.grad, self.state[GRAD_MEAN], self.state[BATCHES]]
        return [*held, self.state[MOMENTUM_BUFFER]] if self.group["momentum"] else held


class Roster(NamedTuple):
    """Facts about the layers of a step that stay the same until the options change."""

    key: tuple[object, ...]
    layers: Layers
    roots: Tensor


class Verdict(NamedTuple):
    """What is decided for the step as a whole: tensors of one boolean each."""

    counts: Tensor
    nonfinite: Tensor
    epoch_over: Tensor | None

    def on(self, device: torch.device) -> Verdict:
        """Return the verdict as tensors of another device."""
        epoch_over = None if self.epoch_over is None else self.epoch_over.to(device)
        return Verdict(self.counts.to(device), self.nonfinite.to(device), epoch_over)


def call_roster(layers: Sequence[Layer], previous: Roster | None) -> Roster:
    """Return the roster of these layers: the previous one, if nothing has changed."""
    key = tuple(
        (
            layer.index,
            layer.kind,
            layer.grad.shape,
            layer.grad.dtype,
            layer.grad.device,
            layer.group["alpha"],
            layer.group["lambd"],
            layer.group["cross_layer"],
            layer.group["seed"],
        )
        for layer in layers
    )
    if previous is not None and previous.key == key:
        return previous
    facts = describe_layers(
        [layer.grad for layer in layers],
        [layer.kind for layer in layers],
        [layer.group["alpha"] for layer in layers],
        [layer.group["lambd"] for layer in layers],
        [layer.group["cross_layer"] for layer in layers],
    )
    indices = torch.tensor([layer.index for layer in layers], device=facts.size.device)
    return Roster(key, facts, stream_roots(layers[0].group["seed"], indices))


def judge(layers: Sequence[Layer], moments: Moments, step: Tensor) -> Verdict:
    """Decide whether the step counts and whether it ends an epoch."""
    group = layers[0].group
    if group["skip_nonfinite"]:
        counts = moments.all_finite()
        nonfinite = ~counts
    else:
        counts = torch.ones_like(moments.mean[0], dtype=torch.bool)
        nonfinite = torch.zeros_like(counts)
    # A checkpoint library steps once with zero gradients and zero rates to make an
    # optimizer allocate its state. That is no step of the training.
    idle = _all_zero([layer.group["lr"] for layer in layers], counts)
    if idle is not None:
        counts = counts & ~(idle & moments.all_zero())
    period = group["steps_per_epoch"]
    epoch_over = None if period is None else counts & ((step + 1) % period == 0)
    return Verdict(counts, nonfinite, epoch_over)


def _all_zero(rates: Sequence[float | Tensor], like: Tensor) -> Tensor | None:
    """Return whether all rates are 0, as a tensor; None where that is known to be false."""
    idle = torch.ones_like(like)
    for rate in {id(rate): rate for rate in rates}.values():
        if isinstance(rate, Tensor):
            idle = idle & (rate.to(like.device, non_blocking=True).reshape(()) == 0)
        elif rate != 0:
            return None
    return idle


class _Coins:
    """The uniforms of one layer in one step, for any piece of it."""

    def __init__(self, layer: Layer, keys: tuple[Tensor, Tensor], step: Tensor) -> None:
        self.layer = layer
        self.step = step
        self.keys: dict[int, tuple[Tensor, Tensor]] = {0: keys}

    def _keys(self, block: int | Tensor) -> tuple[Tensor, Tensor]:
        if isinstance(block, int) and block in self.keys:
            return self.keys[block]
        device = self.layer.grad.device
        dimensions = block.dim() if isinstance(block, Tensor) else 0
        index = torch.full((1,) * dimensions, self.layer.index, device=device)
        roots = stream_roots(self.layer.group["seed"], index, block)
        first, second = stream_keys(roots, self.step.to(device)).unbind()
        if isinstance(block, int):
            self.keys = {block: (first, second)}
        return first, second

    def uniform(self, piece: Piece, index: ElementIndex, dtype: torch.dtype) -> Tensor:
        return uniform_at(index.low(piece), *self._keys(index.block(piece)), dtype)


def _move(
    layer: Layer, scores: Scores, coins: _Coins, verdict: Verdict, index: ElementIndex
) -> Tensor:
    """Move one layer; return the means of its probabilities and of its batches."""
    dtype = compute_dtype(layer.grad.dtype)
    lr, rule, fixed = layer.group["lr"], layer.rule, layer.group["probability"]
    if isinstance(lr, Tensor):
        lr = lr.to(layer.grad.device, dtype, non_blocking=True).reshape(())
    chances, counts = [], []
    for piece in pieces(layer.tensors()):
        weight, grad, *memory = piece.tensors
        grad = grad.to(dtype)
        chance = probability(grad, *scores) if fixed is None else fixed
        chi = coins.uniform(piece, index, dtype) < chance
        now = Scalars(weight.to(dtype), *memory)
        if isinstance(chance, Tensor):
            chances.append(chance.sum())
        counts.append(now.batches.sum())
        after = update(now, grad, chi, verdict.counts, verdict.epoch_over, lr, rule)
        for held, new in zip((weight, *memory), after.held(), strict=True):
            held.copy_(new)
    batches = torch.stack(counts).sum() / layer.grad.numel()
    if fixed is not None:
        return torch.stack((torch.full_like(batches, fixed), batches))
    return torch.stack((torch.stack(chances).sum() / layer.grad.numel(), batches))


def _record(layers: Sequence[Layer], observed: Tensor, counts: Tensor) -> None:
    """Enter the step into the layers' running means, unless it does not count."""
    tallies = [layer.state[TALLY] for layer in layers]
    tally = torch.stack([each.to(observed.device) for each in tallies])
    steps = tally[:, :1] + 1
    means = tally[:, 1:] + (observed - tally[:, 1:]) / steps
    after = torch.where(counts, torch.cat((steps, means), dim=1), tally)
    for held, new in zip(tallies, after, strict=True):
        held.copy_(new)


def take_step(layers: Sequence[Layer], roster: Roster, step: Tensor) -> Verdict:
    """Move the scalars of all layers (none of them empty) and return the verdict."""
    moments = measure([layer.grad for layer in layers], roster.layers.size)
    verdict = judge(layers, moments, step)
    keys = stream_keys(roster.roots, step)
    scores = layer_scores(moments, roster.layers)
    dtypes = {compute_dtype(layer.grad.dtype) for layer in layers}
    scores_in = {dtype: scores.in_dtype(dtype) for dtype in dtypes}
    indices = {device: ElementIndex(device) for device in {x.grad.device for x in layers}}
    observed = []
    for position, layer in enumerate(layers):
        device = layer.grad.device
        own = scores_in[compute_dtype(layer.grad.dtype)]
        first, second = keys[:, position].to(device)
        means = _move(
            layer,
            Scores(*(vector[position].to(device) for vector in own)),
            _Coins(layer, (first, second), step),
            verdict.on(device),
            indices[device],
        )
        observed.append(means.to(step.device, torch.float32))
    _record(layers, torch.stack(observed), verdict.counts)
    return verdict
