"""The update of one scalar: Algorithm 2 of the article, with its open points as options.

This is the only definition of the mathematics; everything else gathers its inputs.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

LrScaling = Literal["none", "linear"]
MomentumMode = Literal["lazy", "push"]
LR_SCALING: tuple[str, ...] = get_args(LrScaling)
MOMENTUM_MODE: tuple[str, ...] = get_args(MomentumMode)


class Rule(NamedTuple):
    """How scalars move: the options of a parameter group, without the learning rate."""

    lr_scaling: str = "none"
    momentum: float = 0.0
    nesterov: bool = False
    momentum_mode: str = "lazy"
    weight_decay: float = 0.0
    maximize: bool = False


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


def update(
    now: Scalars,
    grad: Tensor,
    chi: Tensor,
    counts: Tensor,
    epoch_over: Tensor | None,
    lr: float | Tensor,
    rule: Rule,
) -> Scalars:
    """Return the scalars after one universal batch (the body of Algorithm 2's inner loop).

    Args:
        now: the scalars before the step; weight and mean in the dtype of ``grad``.
        grad: gradient of the universal batch.
        chi: whether each scalar's coin came up.
        counts: whether the step counts at all; if not, everything stays as it was.
        epoch_over: whether the step counts and ends an epoch; None when nobody counts epochs.
        lr: learning rate.
        rule: the options.
    """
    weight, grad_mean, batches, buffer = now
    if rule.maximize:
        grad = -grad
    if rule.weight_decay != 0:
        grad = torch.add(grad, weight, alpha=rule.weight_decay)
    mean = grad_mean + (grad - grad_mean) / batches

    chi = chi & counts
    drawn = mean * batches if rule.lr_scaling == "linear" else mean
    if buffer is None:
        weight = torch.where(chi, _descend(weight, drawn, lr), weight)
    elif rule.momentum_mode == "push":
        pushed = torch.where(chi, drawn, 0.0)
        rolled = buffer * rule.momentum + pushed
        direction = _direction(pushed, rolled, rule)
        weight = torch.where(counts, _descend(weight, direction, lr), weight)
        buffer = torch.where(counts, rolled, buffer)
    else:
        rolled = buffer * rule.momentum + mean
        direction = _direction(mean, rolled, rule)
        if rule.lr_scaling == "linear":
            direction = direction * batches
        weight = torch.where(chi, _descend(weight, direction, lr), weight)
        buffer = torch.where(chi, rolled, buffer)

    afresh = chi if epoch_over is None else chi | epoch_over
    grad_mean = torch.where(afresh, 0.0, torch.where(counts, mean, grad_mean))
    batches = torch.where(afresh, 1, batches + counts)
    return Scalars(weight, grad_mean, batches, buffer)


def _direction(received: Tensor, buffer: Tensor, rule: Rule) -> Tensor:
    return torch.add(received, buffer, alpha=rule.momentum) if rule.nesterov else buffer


def _descend(weight: Tensor, direction: Tensor, lr: float | Tensor) -> Tensor:
    # The very operations of torch.optim.SGD (one rounding, where the processor has a
    # fused multiply-add), so that probability 1 gives its weights to the last bit.
    # A tensor is never read: that would stop the host until the device has caught up.
    if isinstance(lr, Tensor):
        return torch.addcmul(weight, direction, lr, value=-1)
    return torch.add(weight, direction, alpha=-lr)
