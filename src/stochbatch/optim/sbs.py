"""``SBS``: stochastic gradient descent with a random, adaptive batch size for every scalar."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, overload

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.optim.optimizer import ParamsT, StateDict

from stochbatch.checks import (
    check_bool,
    check_choice,
    check_momentum,
    check_seed,
    check_weight_decay,
)
from stochbatch.optim import kernels
from stochbatch.optim.layer_report import JUDGED_STEPS, LayerReport, Watch
from stochbatch.optim.layers import BATCHES, GRAD_MEAN, SKIPPED_STEPS, SLOTS, TALLY
from stochbatch.optim.optimizer import CheckedOptimizer, call_closure, check_lr
from stochbatch.optim.plan import Plans
from stochbatch.optim.probability import Compare, CrossLayer, check_scheme, compute_dtype
from stochbatch.optim.shards import is_sharded, local
from stochbatch.optim.update import COINS, LR_SCALING, Coin, LrScaling


class SBS(CheckedOptimizer):
    r"""Stochastic batch size: every scalar moves at random, on the batches since it last moved.

    At each step, for each scalar :math:`j` of a layer :math:`l` (a parameter tensor),

    .. math::
        p_j &= 1 / (1 + \exp(-\alpha (|g_j| - \mu_l) / \sigma_l - \lambda t_l)) \\
        \chi_j &= 1 \text{ with probability } p_j \text{, else } 0 \\
        \tilde g_j &\leftarrow \tilde g_j + (g_j - \tilde g_j) / k_j \\
        w_j &\leftarrow w_j - \chi_j \eta \tilde g_j \\
        (\tilde g_j, k_j) &\leftarrow (0, 1) \text{ if } \chi_j \text{, else }
        (\tilde g_j, k_j + 1)

    where :math:`\mu_l, \sigma_l` are mean and standard deviation of the layer's
    :math:`|g|` and :math:`t_l` is the layer's standardised score among the layers of its
    kind. Options marked * decide the step as a whole and must be the same in all groups;
    the others may differ between groups.

    Args:
        params: parameters, named parameters or groups as for ``torch.optim.SGD``. A group
            may say of which ``kind`` its layers are; :func:`stochbatch.param_groups` makes
            such groups. Otherwise the kind follows from the number of dimensions: three
            and more ``conv``, two ``linear``, one ``bias``, none ``other``.
        lr: learning rate :math:`\eta`, a float or a tensor.
        alpha: weight of a scalar's gradient size within its layer (local scheme).
        lambd: weight of the layer's score among layers of its kind (global scheme). Of two
            layers of a kind one has score 1 and the other -1, whatever their gradients are:
            -4 makes them move with probabilities 0.018 and 0.982, so one stands nearly still.
            A :class:`stochbatch.SlowLayersWarning` names such layers once.
        probability: a number in (0, 1] for a fixed update probability; None is adaptive.
        cross_layer: what is compared across layers: ``"total"`` the layer's sum of
            :math:`|g|`, ``"mean"`` its mean, ``"weighted"`` its mean, with layers
            weighted by their size.
        compare*: which layers are compared: those of one ``"kind"``, those of one ``"type"``
            (the four of the article: scale and shift of a norm together), or ``"all"``
            (Eq. 19 as printed). A layer whose gradient is zero everywhere is left out.
        coin*: ``"scalar"``: each scalar draws its own coin. ``"none"``: the mean field, the
            control of the method: no coin and no average; every scalar moves in every step,
            by :math:`p_j` times what SGD would do with its gradient.
        lr_scaling: ``"none"`` moves by ``lr`` times the mean gradient, ``"linear"`` by
            ``lr`` times the number of batches times the mean.
        momentum: momentum factor, in [0, 1); buffer and weight stand still unless drawn.
        nesterov: Nesterov momentum, as in ``torch.optim.SGD``.
        weight_decay: L2 penalty; enters the average, not the statistics.
        maximize: ascend instead of descend.
        seed*: seed of the coins, in [0, 2**64).
        skip_nonfinite*: a step with an inf or NaN in any gradient changes nothing but
            ``skipped_steps``.
        fused*: True: a compiled step, or an error. False: the eager step. None: compiled
            where that is possible: on the CPU by a C++ compiler (steps are eager while it is
            built in the background for the first time), on a GPU by Triton, unless the network
            is tiny. The coins are the same; on the CPU the weights are too, on a GPU they may
            differ in the last place.

    Example:
        >>> import torch, stochbatch
        >>> model = torch.nn.Linear(4, 2)
        >>> optimizer = stochbatch.SBS(stochbatch.param_groups(model), lr=0.1)
        >>> model(torch.ones(8, 4)).square().mean().backward()
        >>> optimizer.step()
        >>> optimizer.zero_grad()

    Reference: Nakamura, Soatto, Hong, "Stochastic batch size for adaptive regularization
    in deep network optimization", 2020, Algorithm 2.
    """

    slots = SLOTS
    retired_settings: ClassVar = {"momentum_mode": "lazy"}
    whole = ("compare", "coin", "seed", "skip_nonfinite", "fused")
    later = ("compare", "coin", "maximize", "fused")
    sharded = True

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.1,
        *,
        alpha: float = 0.1,
        lambd: float = -4.0,
        probability: float | None = None,
        cross_layer: CrossLayer = "total",
        compare: Compare = "kind",
        coin: Coin = "scalar",
        lr_scaling: LrScaling = "none",
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        maximize: bool = False,
        seed: int = 0,
        skip_nonfinite: bool = True,
        fused: bool | None = None,
    ) -> None:
        defaults = {
            "lr": lr,
            "alpha": alpha,
            "lambd": lambd,
            "probability": probability,
            "cross_layer": cross_layer,
            "compare": compare,
            "coin": coin,
            "lr_scaling": lr_scaling,
            "momentum": momentum,
            "nesterov": nesterov,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "seed": seed,
            "skip_nonfinite": skip_nonfinite,
            "fused": fused,
        }
        self._plans, self._watch = Plans(), Watch()
        super().__init__(params, defaults)
        # As torch's fused optimizers: GradScaler leaves it to the step to unscale gradients.
        self._step_supports_amp_scaling = fused is True

    @staticmethod
    def _check_options(options: Mapping[str, Any]) -> None:
        """Raise ``TypeError`` or ``ValueError`` for the first option of SBS that is not allowed."""
        check_lr(options["lr"])
        check_scheme(options)
        check_choice("coin", options["coin"], COINS)
        check_choice("lr_scaling", options["lr_scaling"], LR_SCALING)
        check_momentum(options["momentum"])
        for name in ("nesterov", "maximize", "skip_nonfinite"):
            check_bool(name, options[name])
        check_weight_decay(options["weight_decay"])
        check_seed(options["seed"])
        if options["fused"] is not None:
            check_bool("fused", options["fused"], "None, True or False")

    @staticmethod
    def _check_sense(options: Mapping[str, Any]) -> None:
        """Raise for Nesterov's momentum without momentum."""
        if options["nesterov"] and options["momentum"] == 0:
            raise ValueError("Nesterov momentum requires a momentum above 0, got momentum=0")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, as ``torch.optim.Optimizer.add_param_group`` does."""
        super().add_param_group(param_group)
        self._plans = Plans()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        say = self._watch.say if hasattr(self, "_watch") else None
        self._plans, self._watch = Plans(), Watch()
        self._watch.say = say
        self._step_supports_amp_scaling = self.param_groups[0]["fused"] is True

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load what :meth:`state_dict` returned, exactly: all of it, or nothing and an error."""
        super().load_state_dict(state_dict)
        for tensor, state in self.state.items():
            if TALLY in state and is_sharded(tensor):
                state[TALLY].zero_()  # it is another rank's, or that of another number of ranks

    def _loaded_states(
        self, states: object, groups: list[dict[str, Any]]
    ) -> dict[Tensor, dict[str, Tensor]]:
        loaded = super()._loaded_states(states, groups)
        for state in filter(None, loaded.values()):
            held = {GRAD_MEAN, BATCHES} & state.keys()
            if len(held) == 1 or (not held and groups[0]["coin"] != "none"):
                raise ValueError(
                    f"state_dict is not one of SBS: a state has {sorted(state)}, expected also "
                    f"{GRAD_MEAN} and {BATCHES}"
                )
        return loaded

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    # A compiled training step calls this part as it is. (The public name of this
    # decorator, torch.compiler.disable, loads the compiler when the class is made.)
    @_disable_dynamo
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step; ``closure``, if given, recomputes the loss, which is returned."""
        loss = call_closure(closure)
        self._advance()
        self._watch.steps += 1
        if self._watch.steps == JUDGED_STEPS:
            self._watch.judge(self, self._plans.shards(self), only_if_free=True)
        return loss

    def _advance(self) -> None:
        plan = self._plans.current(self)
        if plan is None:
            self._plans.shards(self).listen()
            return
        # What torch's GradScaler tells a fused optimizer.
        scale, plan.found_inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        if plan.found_inf is not None and plan.found_inf.is_cpu and plan.found_inf.item():
            return
        if scale is not None:
            plan.grads = _unscaled(plan.grads, scale)
        try:
            sums = kernels.measure(plan)
            if sums is not None:
                sums = plan.shards.total(sums, plan.seats)
            plan.record(*kernels.move(plan, sums))
        finally:
            plan.grads = []  # their memory is not ours to keep

    def on_slow_layers(self, say: Callable[[str], None]) -> None:
        """Have ``say`` called with the text of a `SlowLayersWarning` instead of warning."""
        self._watch.say = say

    @property
    def skipped_steps(self) -> int:
        """Number of steps left out for a non-finite gradient (waits for the device)."""
        return self._read_counter(SKIPPED_STEPS)

    @torch.no_grad()
    def new_epoch(self) -> None:
        """Start an epoch: forget the averaged gradients, not the momentum (Algorithm 2)."""
        self._watch.judge(self, self._plans.shards(self))
        for state in self._filled():
            if GRAD_MEAN in state:
                local(state[GRAD_MEAN]).zero_()
                local(state[BATCHES]).fill_(1)

    @torch.no_grad()
    def layer_report(self) -> LayerReport:
        """Return what each layer did since the last call, and begin a new account.

        With sharded layers this is a collective: call it on all ranks.

        Example:
            >>> import torch, stochbatch
            >>> model = torch.nn.Linear(3, 2)
            >>> optimizer = stochbatch.SBS(model.named_parameters(), probability=0.25)
            >>> model(torch.ones(1, 3)).sum().backward()
            >>> optimizer.step()
            >>> print(optimizer.layer_report())
            layer   kind    size  probability  batches
            weight  linear     6         0.25     1.00
            bias    bias       2         0.25     1.00
        """
        return self._watch.report(self, self._plans.shards(self))


def _unscaled(grads: list[Tensor], scale: Tensor) -> list[Tensor]:
    """Divide gradients by GradScaler's scale; return them as the step uses them.

    Those of half precision are returned in float32, where a tiny one does not become 0.
    """
    wide = [grad.to(compute_dtype(grad.dtype)) for grad in grads]
    torch._foreach_div_(wide, scale)
    for grad, own in zip(grads, wide, strict=True):
        if own is not grad:
            grad.copy_(own)
    return wide
