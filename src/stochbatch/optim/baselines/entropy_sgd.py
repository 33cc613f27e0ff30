"""``EntropySGD``: descent on the local entropy of the loss, a baseline of the article."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.optim.optimizer import ParamsT

from stochbatch.checks import (
    check_bool,
    check_count,
    check_momentum,
    check_not_negative,
    check_positive,
    check_real,
    check_seed,
    check_weight_decay,
)
from stochbatch.optim.coins import normal
from stochbatch.optim.optimizer import (
    CheckedOptimizer,
    Member,
    call_closure,
    check_lr,
    rate_of,
    real_view,
    weight_and_grad,
)
from stochbatch.optim.probability import compute_dtype
from stochbatch.optim.slots import COUNTER, STEP, Slot, Slots, follow

MOMENTUM_BUFFER = "momentum_buffer"


class EntropySGD(CheckedOptimizer):
    r"""Entropy-SGD: a few noisy inner steps find where the valley lies, one outer step goes there.

    An outer step starts from :math:`x`, with :math:`w = \mu = x`, and evaluates the closure
    :math:`L` times. With :math:`\gamma = \min(\gamma_0 (1 + \text{scoping})^t,
    \gamma_\text{max})` in outer step :math:`t = 0, 1, \ldots`, each evaluation is followed by

    .. math::
        d &= g(w) + \text{weight decay} \cdot w + \gamma (w - x)
            + \text{noise} / \sqrt{\eta' / 2} \; \mathcal{N}(0, 1) \\
        w &\leftarrow w - \eta' d \\
        \mu &\leftarrow \beta \mu + (1 - \beta) w

    and the outer step is

    .. math::
        x \leftarrow x - \eta ((x - \mu) + \text{weight decay} \cdot x)

    With ``momentum``, gradients pass through a buffer, in the inner steps one that starts at 0
    in every outer step, in the outer step one that persists. The noise is a function of
    (seed, evaluation, parameter, element), as the coins of :class:`stochbatch.SBS` are.

    Batch-norm statistics belong to the inner points: re-estimate them at :math:`x` before an
    evaluation (:func:`torch.optim.swa_utils.update_bn`).

    Args:
        params: parameters, named parameters or groups, as for ``torch.optim.SGD``.
        lr: outer learning rate :math:`\eta`, a float or a tensor.
        L*: evaluations of the closure in an outer step.
        gamma0: strength of the pull back to :math:`x` in the first outer step.
        scoping: growth of that strength from one outer step to the next.
        gamma_max: where that growth ends; None: at ``1 / inner_lr``. From twice that on, inner
            steps would overshoot :math:`x` by more than they are away from it, and diverge: with
            the defaults after 6,500 outer steps, ten epochs of CIFAR-10 in batches of 16.
        noise: size of the Langevin noise.
        inner_lr: inner learning rate :math:`\eta'`.
        beta: weight of the past in the average :math:`\mu`, in [0, 1).
        momentum: momentum factor of inner and outer steps, in [0, 1).
        nesterov: Nesterov momentum.
        weight_decay: L2 penalty.
        seed*: seed of the noise, in [0, 2**64).

    Options marked * must be the same in all groups.

    Example:
        >>> import torch
        >>> from stochbatch.optim import EntropySGD
        >>> weight = torch.nn.Parameter(torch.ones(2))
        >>> optimizer = EntropySGD([weight], lr=1.0, noise=0)
        >>> def closure():  # draws a new batch at each call
        ...     optimizer.zero_grad()
        ...     loss = weight.square().sum()
        ...     loss.backward()
        ...     return loss
        >>> loss = optimizer.step(closure)
        >>> weight.detach()
        tensor([0.6006, 0.6006])

    Reference: Chaudhari and others, "Entropy-SGD: biasing gradient descent into wide valleys",
    2017.
    """

    # Nothing skips a step that is not finite: a diverged run must resume as it was.
    slots: ClassVar[Slots] = {STEP: COUNTER, MOMENTUM_BUFFER: Slot(always=False, finite=False)}
    whole = ("L", "seed")

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.1,
        *,
        L: int = 5,  # noqa: N803 (the article's letter)
        gamma0: float = 0.03,
        scoping: float = 1e-3,
        gamma_max: float | None = None,
        noise: float = 1e-4,
        inner_lr: float = 0.1,
        beta: float = 0.75,
        momentum: float = 0.0,
        nesterov: bool = True,
        weight_decay: float = 0.0,
        seed: int = 0,
    ) -> None:
        defaults = {
            "lr": lr,
            "L": L,
            "gamma0": gamma0,
            "scoping": scoping,
            "gamma_max": gamma_max,
            "noise": noise,
            "inner_lr": inner_lr,
            "beta": beta,
            "momentum": momentum,
            "nesterov": nesterov,
            "weight_decay": weight_decay,
            "seed": seed,
        }
        super().__init__(params, defaults)

    @staticmethod
    def _check_options(options: Mapping[str, Any]) -> None:
        check_lr(options["lr"])
        check_count("L", options["L"])
        for name in ("gamma0", "scoping", "noise"):
            check_not_negative(name, options[name])
        check_weight_decay(options["weight_decay"])
        check_positive("inner_lr", options["inner_lr"])
        if options["gamma_max"] is not None:
            check_not_negative("gamma_max", options["gamma_max"])
        check_real("beta", options["beta"])
        if not 0 <= options["beta"] < 1:
            raise ValueError(f"beta must be in [0, 1), got {options['beta']}")
        check_momentum(options["momentum"])
        check_bool("nesterov", options["nesterov"])
        check_seed(options["seed"])

    @_disable_dynamo
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one outer step; ``closure`` must draw a new batch at each of its L calls.

        The closure clears the gradients, computes the loss of a new batch, calls
        ``backward`` on it and returns it. Returns the mean of its losses. If it raises, the
        weights are put back where they were. (Without a closure, zero gradients at zero
        rates are taken for a checkpoint library's way to have the state made.)
        """
        if closure is None and self._allocates_for_a_checkpoint():
            return None
        if not callable(closure):
            raise RuntimeError(
                "EntropySGD.step needs a closure that clears the gradients, computes the loss of "
                f"a new batch, calls backward and returns the loss; got {type(closure).__name__}"
            )
        counter = self._counter()
        count = self.param_groups[0]["L"]
        walkers: dict[Tensor, _Walker] = {}
        losses = []
        try:
            for evaluation in range(count):
                loss: Any = call_closure(closure)
                losses.append(loss.detach() if isinstance(loss, Tensor) else loss)
                for member in filter(lambda each: each.tensor.numel(), self._ready()):
                    if member.tensor not in walkers:
                        walkers[member.tensor] = _Walker(member, int(counter))
                    walkers[member.tensor].inner_step(counter * count + evaluation)
        except BaseException:
            for walker in walkers.values():
                walker.weight.copy_(walker.start)
            raise
        for tensor, walker in walkers.items():
            state = self.state[tensor]
            state.setdefault(STEP, counter)
            follow(state, self.slots, walker.weight)
            walker.outer_step(state)
        if walkers:
            counter.add_(1)
        return None if losses[0] is None else sum(losses) / count

    def _allocates_for_a_checkpoint(self) -> bool:
        """Make the state of all parameters, if this is only a checkpoint library's dummy step."""
        ready = self._ready()
        if not ready or not self._is_dummy(ready):
            return False
        counter = self._counter()
        for member in ready:
            state = self.state[member.tensor]
            state.setdefault(STEP, counter)
            if member.group["momentum"]:
                _momentum_buffer(state, member.tensor)
        return True


def _momentum_buffer(state: dict[str, Tensor], tensor: Tensor) -> Tensor:
    if MOMENTUM_BUFFER not in state:
        weight = real_view(tensor)
        state[MOMENTUM_BUFFER] = torch.zeros_like(weight, dtype=compute_dtype(weight.dtype))
    return state[MOMENTUM_BUFFER]


class _Walker:
    """A parameter during one outer step: where it started, where it is, where it was on average."""

    def __init__(self, member: Member, outer_steps: int) -> None:
        self.member, self.group = member, member.group
        self.weight = real_view(member.tensor)
        dtype = compute_dtype(self.weight.dtype)
        self.start = self.weight.to(dtype, copy=True)
        self.place = self.start.clone()
        self.average = self.start.clone()
        self.buffer = torch.zeros_like(self.start) if self.group["momentum"] else None
        self.pull = _strength(self.group, outer_steps)

    def inner_step(self, evaluation: Tensor) -> None:
        """Move by the gradient at the present place, the pull back to the start, and noise."""
        group, place = self.group, self.place
        _, grad = weight_and_grad(self.member.tensor)
        d = grad.to(place.dtype).add(place, alpha=group["weight_decay"])
        if self.buffer is not None:
            d = _through(self.buffer, d, group)
        d = d.add(place - self.start, alpha=self.pull)
        if group["noise"]:
            size = group["noise"] / math.sqrt(0.5 * group["inner_lr"])
            which = group["seed"], evaluation, self.member.number
            d.add_(normal(*which, place.shape, place.dtype, place.device), alpha=size)
        place.sub_(d, alpha=group["inner_lr"])
        self.average.mul_(group["beta"]).add_(place, alpha=1 - group["beta"])
        self.weight.copy_(place)

    def outer_step(self, state: dict[str, Tensor]) -> None:
        """Move from the start towards the average."""
        d = (self.start - self.average).add_(self.start, alpha=self.group["weight_decay"])
        if self.group["momentum"]:
            d = _through(_momentum_buffer(state, self.member.tensor), d, self.group)
        self.weight.copy_(self.start - rate_of(self.group) * d)


def _strength(group: Mapping[str, Any], outer_steps: int) -> float:
    """Return gamma: it grows, and stays where inner steps are stable."""
    limit: float = 1 / group["inner_lr"] if group["gamma_max"] is None else group["gamma_max"]
    gamma0: float = group["gamma0"]
    if gamma0 == 0 or gamma0 >= limit:
        return min(gamma0, limit)
    growth = outer_steps * math.log1p(group["scoping"])
    # Compared as logarithms: the power itself overflows after some 700,000 steps.
    if growth >= math.log(limit / gamma0):
        return limit
    return gamma0 * float((1 + group["scoping"]) ** outer_steps)


def _through(buffer: Tensor, d: Tensor, group: Mapping[str, Any]) -> Tensor:
    """Return what momentum makes of ``d``; the buffer takes it in."""
    buffer.mul_(group["momentum"]).add_(d)
    return d + group["momentum"] * buffer if group["nesterov"] else buffer.clone()
