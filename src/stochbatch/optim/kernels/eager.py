"""A step in plain torch, piece by piece.

Nothing here waits for the device: what depends on the gradients (the statistics, whether
the step counts, the step number and so the coins) stays a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from stochbatch.optim.coins import stream_keys
from stochbatch.optim.layers import Layer
from stochbatch.optim.pieces import pieces, uniforms
from stochbatch.optim.plan import Plan
from stochbatch.optim.probability import (
    Moments,
    Scores,
    accumulation_dtype,
    compute_dtype,
    sums_of,
)
from stochbatch.optim.update import advance, rates_of, rule_of


class Verdict(NamedTuple):
    """What is decided for the step as a whole: tensors of one boolean each."""

    applies: Tensor
    """Whether the step counts at all; if not, everything stays as it was."""
    nonfinite: Tensor
    """Whether it does not count because a gradient has an inf or a NaN."""


def decide(plan: Plan, moments: Moments) -> Verdict:
    """Decide whether the step counts."""
    if plan.options["skip_nonfinite"]:
        applies = moments.mean.isfinite().all()  # a sum of |g| tells of any inf or NaN in it
        nonfinite = ~applies
    else:
        applies = torch.ones_like(moments.mean[0], dtype=torch.bool)
        nonfinite = torch.zeros_like(applies)
    # A checkpoint library steps once with zero gradients and zero rates to make an
    # optimizer allocate its state. That is no step of the training.
    if plan.seats is not None and plan.shards.alike is not None:
        applies = applies & plan.shards.alike.to(applies.device)
    if plan.found_inf is not None:
        applies = applies & (plan.found_inf.to(applies.device).reshape(()) == 0)
        nonfinite = torch.zeros_like(applies)
    idle = _all_zero([layer.group["lr"] for layer in plan.layers], applies)
    if idle is not None:
        applies = applies & ~(idle & (moments.mean == 0).all())
    return Verdict(applies, nonfinite)


def _all_zero(rates: Sequence[float | Tensor], like: Tensor) -> Tensor | None:
    """Return whether all rates are 0, as a tensor; None where that is known to be false."""
    idle = torch.ones_like(like)
    for rate in {id(rate): rate for rate in rates}.values():
        if isinstance(rate, Tensor):
            idle = idle & (rate.to(like.device, non_blocking=True).reshape(()) == 0)
        elif rate != 0:
            return None
    return idle


class Rows:
    """The layers of a plan that plain torch moves."""

    def __init__(self, places: list[int]) -> None:
        self.places = places

    def measure(self, plan: Plan) -> Tensor:
        r"""Return [2, places]: sum of \|g\| and of its squared deviations of what is here."""
        like = plan.facts.size
        return torch.stack([sums_of(plan.grads[place]).to(like) for place in self.places], dim=1)

    def move(self, plan: Plan, scores: Scores, verdict: Verdict) -> Tensor:
        """Move the layers, if the step counts.

        ``scores`` are those of all layers of the plan. Return [places, 2]: sums of probabilities
        and of batches of what is here.
        """
        device = plan.facts.size.device
        keys = stream_keys(plan.roots, plan.step.to(device))
        seen = []
        for place in self.places:
            layer, grad = plan.layers[place], plan.grads[place]
            dtype = compute_dtype(layer.weight.dtype)
            own = scores.of(place).in_dtype(dtype)
            key = keys[:, place].to(grad.device)
            seen.append(_move_layer(layer, grad, key, own, verdict.applies).to(device))
        return torch.stack(seen)


def _move_layer(layer: Layer, grad: Tensor, key: Tensor, scores: Scores, applies: Tensor) -> Tensor:
    """Move one layer; return the sums of its probabilities and of its batches."""
    device, dtype = layer.weight.device, compute_dtype(layer.weight.dtype)
    rates, rule = rates_of(layer.group, layer.weight), rule_of(layer.group)
    fixed = layer.group["probability"]
    chosen = Scores(*(vector.to(device) for vector in scores)) if fixed is None else fixed
    applies = applies.to(device)
    seen = torch.zeros(2, dtype=accumulation_dtype(device), device=device)
    for piece in pieces([*layer.scalars.held(), grad], layer.window):
        *held, own = piece.tensors
        now = layer.scalars.replaced(held)
        numbers = None
        if now.batches is None:
            seen[1] += own.numel()
        else:
            numbers = uniforms(piece, key, dtype)
            seen[1] += now.batches.sum()
        after, chance = advance(now, own, numbers, chosen, applies, rates, rule)
        for old, new in zip(held, after.held(), strict=True):
            old.copy_(new)
        if isinstance(chance, Tensor):
            seen[0] += chance.sum()
    return seen
