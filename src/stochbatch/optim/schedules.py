"""``SigmoidLR``: the learning rates of the article."""

from __future__ import annotations

import math

from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer

from stochbatch.checks import check_count, check_not_negative, check_positive


class SigmoidLR(LRScheduler):
    r"""A learning rate that falls from its start to its end along a sigmoid.

    .. math::
        x_e &= -1 + 2 e / (E - 1), \qquad s_e = 1 / (1 + \exp(\text{steepness} \cdot x_e)) \\
        \eta_e &= \eta_\text{end} + (\eta_\text{start} - \eta_\text{end})
            (s_e - s_{E-1}) / (s_0 - s_{E-1})

    Call :meth:`step` once per epoch, or once per optimizer step with ``total`` in steps. The
    first rate is the optimizer's, the last (and every one after it) is ``end_lr``, exactly.

    Args:
        optimizer: the optimizer; its ``lr`` is where a group starts.
        total: number :math:`E` of rates, one per epoch (or step), 1 or more.
        end_lr: the last rate, for all groups or one a group.
        steepness: slope of the sigmoid, above 0.
        last_epoch: as for torch's schedulers.

    Example:
        >>> import torch
        >>> from stochbatch.optim import SigmoidLR
        >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        >>> scheduler = SigmoidLR(optimizer, total=5, end_lr=0.001)
        >>> for epoch in range(5):
        ...     print(f"{scheduler.get_last_lr()[0]:.4f}")
        ...     optimizer.step()
        ...     scheduler.step()
        0.1000
        0.0993
        0.0505
        0.0017
        0.0010
    """

    def __init__(
        self,
        optimizer: Optimizer,
        total: int,
        end_lr: float | list[float] | tuple[float, ...] = 1e-3,
        steepness: float = 10.0,
        last_epoch: int = -1,
    ) -> None:
        check_count("total", total)
        check_positive("steepness", steepness)
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"optimizer must be an optimizer, got {type(optimizer).__name__}")
        groups = len(optimizer.param_groups)
        ends = [*end_lr] if isinstance(end_lr, list | tuple) else [end_lr] * groups
        if len(ends) != groups:
            raise ValueError(
                f"end_lr must be one number, or one a parameter group ({groups}), got {len(ends)}"
            )
        for end in ends:
            check_not_negative("end_lr", end)
        self.total, self.steepness = total, steepness
        self.end_lrs: list[float] = ends
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float | Tensor]:
        """Return the rate of each group for the present epoch."""
        share = sigmoid_share(self.last_epoch, self.total, self.steepness)
        return [
            _between(start, end, share)
            for start, end in zip(self.base_lrs, self.end_lrs, strict=True)
        ]


def _between(start: float | Tensor, end: float, share: float) -> float | Tensor:
    # end + (start - end) * 1 need not be start to the last bit.
    return start if share == 1 else end if share == 0 else end + (start - end) * share


def sigmoid_share(epoch: int, total: int, steepness: float) -> float:
    """Return how much of the way from end to start is left: 1 at epoch 0, 0 from the last on."""
    if epoch <= 0:
        return 1.0
    if epoch >= total - 1:
        return 0.0

    def s(x: float) -> float:
        return 0.5 * (1 - math.tanh(steepness * x / 2))  # the sigmoid, safe at any slope

    height = s(-1) - s(1)
    if height < 1e-6:  # so flat that it is a straight line, and digits are lost
        return 1 - epoch / (total - 1)
    return (s(-1 + 2 * epoch / (total - 1)) - s(1)) / height
