"""The update of one scalar: Algorithm 2 of the article, with its open points as options.

This is the only definition of the mathematics; everything else gathers its inputs.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from stochbatch.optim.probability import Scores, probability

LrScaling = Literal["none", "linear"]
LR_SCALING: tuple[str, ...] = get_args(LrScaling)


class Rule(NamedTuple):
    """How scalars move: the options of a parameter group that are not numbers."""

    lr_scaling: str = "none"
    nesterov: bool = False
    maximize: bool = False
    decays: bool = False
    """Whether there is a weight decay."""


class Rates(NamedTuple):
    """How far scalars move: the options that are numbers, or tensors of one number."""

    lr: float | Tensor
    momentum: float | Tensor = 0.0
    weight_decay: float | Tensor = 0.0


class Scalars(NamedTuple):
    """What an optimizer holds of each scalar: the weight and its memory."""

    weight: Tensor
    grad_mean: Tensor
    """The article's g-tilde: mean gradient of the batches since the scalar last moved."""
    batches: Tensor
    """The article's k: the number of batches in the mean once the next one is in it."""
    momentum_buffer: Tensor | None = None

    def held(self) -> list[Tensor]:
        """Return the tensors that there are."""
        return [tensor for tensor in self if tensor is not None]


class Verdict(NamedTuple):
    """What is decided for the step as a whole: tensors of one boolean each."""

    counts: Tensor
    """Whether the step counts at all; if not, everything stays as it was."""
    nonfinite: Tensor
    """Whether it does not count because a gradient has an inf or a NaN."""

    def on(self, device: torch.device) -> Verdict:
        """Return the verdict as tensors of another device."""
        return Verdict(self.counts.to(device), self.nonfinite.to(device))


def advance(
    now: Scalars,
    grad: Tensor,
    uniforms: Tensor,
    chances: Scores | Tensor | float,
    verdict: Verdict,
    rates: Rates,
    rule: Rule,
) -> tuple[Scalars, Tensor | float]:
    """Draw some scalars and update them; return them and their probabilities.

    Args:
        now: the scalars before the step, in any dtype.
        grad: gradient of the universal batch.
        uniforms: the numbers that the coins are made from.
        chances: what the probabilities are made from, or a fixed one.
        verdict: what is decided for the step as a whole.
        rates: the options that are numbers.
        rule: the other options.
    """
    dtype = now.grad_mean.dtype
    grad = grad.to(dtype)
    p = probability(grad, *chances) if isinstance(chances, Scores) else chances
    now = Scalars(now.weight.to(dtype), now.grad_mean, now.batches, now.momentum_buffer)
    return update(now, grad, uniforms < p, verdict.counts, rates, rule), p


def update(
    now: Scalars,
    grad: Tensor,
    chi: Tensor,
    counts: Tensor,
    rates: Rates,
    rule: Rule,
) -> Scalars:
    """Return the scalars after one universal batch (the body of Algorithm 2's inner loop).

    Args:
        now: the scalars before the step; weight and mean in the dtype of ``grad``.
        grad: gradient of the universal batch.
        chi: whether each scalar's coin came up.
        counts: whether the step counts at all; if not, everything stays as it was.
        rates: the options that are numbers.
        rule: the other options.
    """
    weight, grad_mean, batches, buffer = now
    if rule.maximize:
        grad = -grad
    if rule.decays:
        grad = _plus(grad, weight, rates.weight_decay)
    mean = (grad - grad_mean).div_(batches).add_(grad_mean)

    drawn = _as_mask(chi, weight).bitwise_and_(_as_mask(counts, weight))
    direction = mean
    if buffer is not None:
        rolled = (buffer * rates.momentum).add_(mean)
        direction = _plus(mean, rolled, rates.momentum) if rule.nesterov else rolled
        buffer = _either(drawn, rolled, buffer)
    if rule.lr_scaling == "linear":
        direction = direction * batches
    weight = _plus(weight, _only(drawn, direction), rates.lr, -1)

    resting = ~drawn
    grad_mean = torch.where(counts, _only(resting, mean), grad_mean)
    batches = (batches & resting.to(batches.dtype)).add_(counts)
    return Scalars(weight, grad_mean, batches, buffer)


# Choosing by bits, not by torch.where: on a CPU that branches at every element, and half of
# the branches of a random mask are mispredicted, which makes it 15 times as slow.


def _as_mask(chosen: Tensor, like: Tensor) -> Tensor:
    """Return integers as wide as ``like``: all bits set where ``chosen``, none elsewhere."""
    return chosen.to(torch.int64 if like.dtype == torch.float64 else torch.int32).neg_()


def _only(mask: Tensor, value: Tensor) -> Tensor:
    """Return ``value`` where the mask is set, 0 elsewhere."""
    return (value.view(mask.dtype) & mask).view(value.dtype)


def _either(mask: Tensor, value: Tensor, other: Tensor) -> Tensor:
    """Return ``value`` where the mask is set, ``other`` elsewhere."""
    bits = other.view(mask.dtype)
    return (bits ^ ((value.view(mask.dtype) ^ bits) & mask)).view(value.dtype)


def _plus(value: Tensor, other: Tensor, factor: float | Tensor, sign: int = 1) -> Tensor:
    """Return value + sign * factor * other."""
    # The very operations of torch.optim.SGD (one rounding, where the processor has a
    # fused multiply-add), so that probability 1 gives its weights to the last bit.
    # A tensor is never read: that would stop the host until the device has caught up.
    if isinstance(factor, Tensor):
        return torch.addcmul(value, other, factor, value=sign)
    return torch.add(value, other, alpha=sign * factor)
