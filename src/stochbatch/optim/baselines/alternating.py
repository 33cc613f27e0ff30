"""``AlternatingSGD``: half of the scalars move on one batch, the other half on the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.optim.optimizer import ParamsT

from stochbatch.checks import check_seed, check_weight_decay
from stochbatch.optim.coins import uniform
from stochbatch.optim.optimizer import (
    CheckedOptimizer,
    call_closure,
    check_lr,
    rate_of,
    weight_and_grad,
)
from stochbatch.optim.probability import compute_dtype
from stochbatch.optim.slots import COUNTER, STEP, Slots


class AlternatingSGD(CheckedOptimizer):
    r"""Alternating minimisation: of every two batches each scalar moves on one, by a fair coin.

    Steps :math:`2n` and :math:`2n + 1` are one cycle. At its start every scalar draws a coin
    :math:`\chi`; then

    .. math::
        w &\leftarrow w - \chi \eta g(w) && \text{on the first batch} \\
        w &\leftarrow w - (1 - \chi) \eta g(w) && \text{on the second, at the moved point}

    The full-batch and the stochastic form of the article differ only in the batches given.

    Args:
        params: parameters, named parameters or groups, as for ``torch.optim.SGD``.
        lr: learning rate :math:`\eta`, a float or a tensor.
        weight_decay: L2 penalty.
        seed: seed of the coins, in [0, 2**64); the same in all groups.

    Example:
        >>> import torch
        >>> from stochbatch.optim import AlternatingSGD
        >>> weight = torch.nn.Parameter(torch.zeros(6))
        >>> optimizer = AlternatingSGD([weight], lr=1.0)
        >>> weight.grad = torch.ones(6)
        >>> optimizer.step()
        >>> weight.detach()
        tensor([-1., -1., -1., -1.,  0., -1.])
        >>> optimizer.step()
        >>> weight.detach()
        tensor([-1., -1., -1., -1., -1., -1.])

    Reference: Nakamura, Soatto, Hong, "Stochastic batch size for adaptive regularization in
    deep network optimization", 2020, Equations 5 to 8.
    """

    slots: ClassVar[Slots] = {STEP: COUNTER}
    whole = ("seed",)

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.1,
        *,
        weight_decay: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "seed": seed})

    @staticmethod
    def _check_options(options: Mapping[str, Any]) -> None:
        check_lr(options["lr"])
        check_weight_decay(options["weight_decay"])
        check_seed(options["seed"])

    @_disable_dynamo
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step; ``closure``, if given, recomputes the loss, which is returned."""
        loss = call_closure(closure)
        for member, _, counter in self._moving():
            weight, grad = weight_and_grad(member.tensor)
            heads = fair_coins(member.group["seed"], counter, member.number, weight)
            second = (counter % 2).to(weight.device, torch.bool)
            w = weight.to(compute_dtype(weight.dtype))
            move = grad.to(w.dtype).add(w, alpha=member.group["weight_decay"])
            move.mul_(rate_of(member.group)).masked_fill_(heads == second, 0)
            weight.sub_(move)
        return loss


def fair_coins(seed: int, step: Tensor, number: int, weight: Tensor) -> Tensor:
    """Return the coins of the cycle that ``step`` is in: True moves on its first batch."""
    return uniform(seed, step // 2, number, weight.shape, device=weight.device) < 0.5
