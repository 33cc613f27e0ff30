"""The update of one scalar: Algorithm 2 of the article, with its open points as options.

This is the only definition of the mathematics in Python; everything else gathers its inputs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from stochbatch.optim.probability import Scores, compute_dtype, probability

LrScaling = Literal["none", "linear"]
LR_SCALING: tuple[str, ...] = get_args(LrScaling)
Coin = Literal["scalar", "none"]
COINS: tuple[str, ...] = get_args(Coin)

MOST_BATCHES = 2**15 - 1
"""Where the count of batches stops, in every dtype: the largest int16."""


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


def rule_of(group: dict[str, Any]) -> Rule:
    """Return how the scalars of a parameter group move."""
    decays = group["weight_decay"] != 0
    return Rule(group["lr_scaling"], group["nesterov"], group["maximize"], decays)


def rates_of(group: dict[str, Any], like: Tensor) -> Rates:
    """Return how far the scalars of a parameter group move, for a layer like this tensor."""
    lr = group["lr"]
    if isinstance(lr, Tensor):
        lr = lr.to(like.device, compute_dtype(like.dtype), non_blocking=True).reshape(())
    return Rates(lr, group["momentum"], group["weight_decay"])


class Scalars(NamedTuple):
    """What an optimizer holds of each scalar: the weight and its memory."""

    weight: Tensor
    grad_mean: Tensor | None = None
    """The article's g-tilde: mean gradient of the batches since the scalar last moved. None in
    the mean field, where every scalar moves in every step."""
    batches: Tensor | None = None
    """The article's k: the number of batches in the mean once the next one is in it."""
    momentum_buffer: Tensor | None = None

    def held(self) -> list[Tensor]:
        """Return the tensors that there are."""
        return [tensor for tensor in self if tensor is not None]

    def replaced(self, tensors: Iterable[Tensor]) -> Scalars:
        """Return the same with other tensors, given as :meth:`held` returns them."""
        rest = iter(tensors)
        return Scalars(*(None if tensor is None else next(rest) for tensor in self))  # type: ignore[arg-type]


def advance(
    now: Scalars,
    grad: Tensor,
    uniforms: Tensor | None,
    chances: Scores | Tensor | float,
    applies: Tensor,
    rates: Rates,
    rule: Rule,
) -> tuple[Scalars, Tensor | float]:
    """Draw some scalars and update them; return them and their probabilities.

    Args:
        now: the scalars before the step, in any dtype.
        grad: gradient of the universal batch.
        uniforms: the numbers that the coins are made from; None in the mean field.
        chances: what the probabilities are made from, or a fixed one.
        applies: whether the step counts at all; if not, everything stays as it was.
        rates: the options that are numbers.
        rule: the other options.
    """
    dtype = compute_dtype(now.weight.dtype)
    grad = grad.to(dtype)
    p = probability(grad, *chances) if isinstance(chances, Scores) else chances
    now = now._replace(weight=now.weight.to(dtype))
    if uniforms is None:
        return mean_field(now, grad, p, applies, rates, rule), p
    return update(now, grad, uniforms < p, applies, rates, rule), p


def update(
    now: Scalars, grad: Tensor, chi: Tensor, applies: Tensor, rates: Rates, rule: Rule
) -> Scalars:
    """Return the scalars after one universal batch (the body of Algorithm 2's inner loop).

    Arguments are those of :func:`advance`; ``chi`` says which coins came up.
    """
    weight, grad_mean, batches, buffer = now
    assert grad_mean is not None, "only the mean field has none"
    assert batches is not None, "only the mean field has none"
    grad = _penalised(grad, weight, rates, rule)
    mean = (grad - grad_mean).div_(batches).add_(grad_mean)

    drawn = _as_mask(chi, weight).bitwise_and_(_as_mask(applies, weight))
    direction = mean
    if buffer is not None:
        rolled, direction = _rolled(buffer, mean, rates, rule)
        buffer = _either(drawn, rolled, buffer)
    if rule.lr_scaling == "linear":
        direction = direction * batches
    weight = _plus(weight, _only(drawn, direction), rates.lr, -1)

    resting = ~drawn
    grad_mean = torch.where(applies, _only(resting, mean), grad_mean)
    batches = batches & resting.to(batches.dtype)
    batches.add_((batches < MOST_BATCHES).logical_and_(applies))
    return Scalars(weight, grad_mean, batches, buffer)


def mean_field(
    now: Scalars, grad: Tensor, p: Tensor | float, applies: Tensor, rates: Rates, rule: Rule
) -> Scalars:
    """Return the scalars after one universal batch without a coin: all move, by p of a whole move.

    Arguments are those of :func:`advance`; ``p`` are the update probabilities.
    """
    weight, buffer = now.weight, now.momentum_buffer
    direction = _penalised(grad, weight, rates, rule)
    if buffer is not None:
        rolled, direction = _rolled(buffer, direction, rates, rule)
        buffer = torch.where(applies, rolled, buffer)
    moved = _plus(weight, direction * p, rates.lr, -1)
    return Scalars(torch.where(applies, moved, weight), momentum_buffer=buffer)


def _penalised(grad: Tensor, weight: Tensor, rates: Rates, rule: Rule) -> Tensor:
    grad = -grad if rule.maximize else grad
    return _plus(grad, weight, rates.weight_decay) if rule.decays else grad


def _rolled(buffer: Tensor, value: Tensor, rates: Rates, rule: Rule) -> tuple[Tensor, Tensor]:
    """Return the momentum buffer that has taken in ``value``, and the direction to go."""
    rolled = (buffer * rates.momentum).add_(value)
    return rolled, _plus(value, rolled, rates.momentum) if rule.nesterov else rolled


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
