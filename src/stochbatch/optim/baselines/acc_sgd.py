"""``AccSGD``: accelerated stochastic gradient descent, a baseline of the article."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.optim.optimizer import ParamsT

from stochbatch.checks import check_positive, check_real, check_weight_decay
from stochbatch.optim.optimizer import (
    CheckedOptimizer,
    call_closure,
    check_lr,
    rate_of,
    weight_and_grad,
)
from stochbatch.optim.probability import compute_dtype
from stochbatch.optim.slots import COUNTER, STEP, Slot, Slots

AVERAGE = "average"


class AccSGD(CheckedOptimizer):
    r"""Accelerated-SGD: a long average of the iterates pulls a short step along.

    With :math:`c` the small constant, :math:`\beta = c^2 \xi / \kappa` and
    :math:`\zeta = c / (c + \beta)`, each step is

    .. math::
        d &= g + \text{weight decay} \cdot w \\
        v &\leftarrow (1 - \beta) v + \beta (w - (\eta \kappa / c) d) \\
        w &\leftarrow \zeta (w - \eta d) + (1 - \zeta) v

    where :math:`v` starts at :math:`w`. Under a constant gradient the step tends to
    :math:`\eta c (1 + \xi) / (1 + c)`, with the defaults 4.53 times the learning rate.

    Args:
        params: parameters, named parameters or groups, as for ``torch.optim.SGD``.
        lr: learning rate :math:`\eta` of the short step, a float or a tensor.
        kappa: ratio of the long to the short step, above 0.
        xi: statistical advantage parameter, in (0, sqrt(kappa)].
        small_const: the constant :math:`c`, in (0, 1].
        weight_decay: L2 penalty.

    Example:
        >>> import torch
        >>> from stochbatch.optim import AccSGD
        >>> weight = torch.nn.Parameter(torch.ones(2))
        >>> optimizer = AccSGD([weight], lr=0.1)
        >>> weight.square().sum().backward()
        >>> optimizer.step()
        >>> weight.detach()
        tensor([0.7917, 0.7917])

    Reference: Kidambi, Netrapalli, Jain, Kakade, "On the insufficiency of existing momentum
    schemes for stochastic optimization", 2018.
    """

    # Nothing skips a step that is not finite: a diverged run must resume as it was.
    slots: ClassVar[Slots] = {AVERAGE: Slot(finite=False), STEP: COUNTER}

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.1,
        *,
        kappa: float = 1000.0,
        xi: float = 10.0,
        small_const: float = 0.7,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {
            "lr": lr,
            "kappa": kappa,
            "xi": xi,
            "small_const": small_const,
            "weight_decay": weight_decay,
        }
        super().__init__(params, defaults)

    @staticmethod
    def _check_options(options: Mapping[str, Any]) -> None:
        check_lr(options["lr"])
        check_positive("kappa", options["kappa"])
        check_real("xi", options["xi"])
        if not 0 < options["xi"] <= options["kappa"] ** 0.5:
            raise ValueError(
                f"xi must be in (0, sqrt(kappa)], got {options['xi']} with kappa={options['kappa']}"
            )
        check_real("small_const", options["small_const"])
        if not 0 < options["small_const"] <= 1:
            raise ValueError(f"small_const must be in (0, 1], got {options['small_const']}")
        check_weight_decay(options["weight_decay"])

    @_disable_dynamo
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step; ``closure``, if given, recomputes the loss, which is returned."""
        loss = call_closure(closure)
        for member, state, _ in self._moving():
            (weight, grad), average = weight_and_grad(member.tensor), state[AVERAGE]
            group, c, lr = member.group, member.group["small_const"], rate_of(member.group)
            beta = c * c * group["xi"] / group["kappa"]
            zeta = c / (c + beta)
            w = weight.to(average.dtype)
            d = grad.to(average.dtype).add(w, alpha=group["weight_decay"])
            average.mul_(1 - beta).add_(w, alpha=beta).sub_(d * (beta * lr * group["kappa"] / c))
            weight.copy_((w - d.mul_(lr)).mul_(zeta).add_(average, alpha=1 - zeta))
        return loss

    def _make(self, state: dict[str, Tensor], weight: Tensor) -> None:
        if AVERAGE not in state:
            state[AVERAGE] = weight.to(compute_dtype(weight.dtype), copy=True)
