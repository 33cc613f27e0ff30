"""``SBS``: stochastic gradient descent with a random, adaptive batch size for every scalar."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping
from typing import Any, ClassVar, overload

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.optim.optimizer import ParamsT

from stochbatch.checks import (
    check_bool,
    check_choice,
    check_momentum,
    check_seed,
    check_weight_decay,
)
from stochbatch.optim.kernels import compiled
from stochbatch.optim.kernels.eager import local_sums, take_step
from stochbatch.optim.kernels.fallback import level_of_caller, wanted
from stochbatch.optim.kernels.native import NativeParts, NativeStep, can_move
from stochbatch.optim.optimizer import (
    CheckedOptimizer,
    Member,
    call_closure,
    check_lr,
    real_grad,
    real_view,
)
from stochbatch.optim.parts import Parts
from stochbatch.optim.probability import CrossLayer, check_scheme
from stochbatch.optim.report import (
    FEWEST_STEPS,
    JUDGED_STEPS,
    SLOW_PROBABILITY,
    LayerReport,
    LayerRow,
    SlowLayersWarning,
    slow_layers_text,
)
from stochbatch.optim.roster import Layer, Roster, call_roster
from stochbatch.optim.shards import is_sharded, local, local_grad
from stochbatch.optim.state import (
    BATCHES,
    GRAD_MEAN,
    SKIPPED_STEPS,
    SLOTS,
    TALLY,
    Counters,
    complete_state,
    counters_of,
)
from stochbatch.optim.update import LR_SCALING, LrScaling


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
            where that is possible: float32 on the CPU with a C++ compiler at hand (steps are
            eager while it is built in the background for the first time), or a GPU and a
            network that is not tiny. The coins are the same; on the CPU the weights are
            too, on a GPU they may differ in the last place.

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
    whole = ("seed", "skip_nonfinite", "fused")
    later = ("maximize", "fused")
    sharded = True
    on_slow_layers: Callable[[str], None] | None = None
    """What to call with the text of a `SlowLayersWarning` instead of warning."""

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.1,
        *,
        alpha: float = 0.1,
        lambd: float = -4.0,
        probability: float | None = None,
        cross_layer: CrossLayer = "total",
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
            "lr_scaling": lr_scaling,
            "momentum": momentum,
            "nesterov": nesterov,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "seed": seed,
            "skip_nonfinite": skip_nonfinite,
            "fused": fused,
        }
        self._forget_what_can_be_found_again()
        self._start_judging()
        super().__init__(params, defaults)

    @staticmethod
    def _check_options(options: Mapping[str, Any]) -> None:
        """Raise ``TypeError`` or ``ValueError`` for the first option of SBS that is not allowed."""
        check_lr(options["lr"])
        check_scheme(options)
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

    def _forget_what_can_be_found_again(self) -> None:
        self._rosters: dict[Hashable, Roster] = {}
        self._native = NativeStep()
        self._compiles: bool | None = None
        self._found_parts: Parts | None = None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, as ``torch.optim.Optimizer.add_param_group`` does."""
        super().add_param_group(param_group)
        self._forget_what_can_be_found_again()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._start_judging()
        self._forget_what_can_be_found_again()

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
        self._steps_here += 1
        if self._steps_here == JUDGED_STEPS:
            self._judge_layers(only_if_free=True)
        return loss

    def _advance(self) -> None:
        wanted = self._native.wanted(self.param_groups)
        if wanted and not self._parts and self._native.take(self.param_groups, self.state):
            return
        ready = [entry for entry in self._ready() if entry.tensor.numel()]
        if not ready:
            self._parts.listen()
            return
        layers = [self._layer(entry) for entry in ready]
        counters = counters_of(self.state, layers[0].grad.device)
        # Beside parts even whole tensors move here: their step is that of all processes.
        divided = bool(self._parts) or any(is_sharded(entry.tensor) for entry in ready)
        native = wanted and divided and can_move(layers, counters)
        if not native:
            self._refuse_if_told_to_fuse()
        for entry, layer in zip(ready, layers, strict=True):
            self.state[entry.tensor] = layer.state
            complete_state(layer.state, layer.parameter, counters, bool(entry.group["momentum"]))
        roster = call_roster(layers, self._rosters)
        (self._take_native if native else self._take)(layers, roster, counters)

    @property
    def _parts(self) -> Parts:
        if self._found_parts is None:
            self._found_parts = Parts(self._members())
        return self._found_parts

    def _take(self, layers: list[Layer], roster: Roster, counters: Counters) -> None:
        fused = self.param_groups[0]["fused"]
        if self._compiles is None:
            self._compiles = compiled.worthwhile(self.param_groups)
        compiles = self._compiles and compiled.works(fused)
        sums = self._parts.whole_sums(layers, roster, local_sums(layers, roster, compiles))
        number = counters.step.to(layers[0].grad.device)
        # Where no compiler works, that has shown by now, before anything moves.
        compiles = compiles and compiled.works(fused)
        verdict, seen = take_step(layers, roster, number, sums, compiles)
        self._parts.tell(layers, roster, seen, verdict.counts)
        counters.step.add_(verdict.counts.to(counters.step.device))
        counters.skipped_steps.add_(verdict.nonfinite.to(counters.step.device))

    def _take_native(self, layers: list[Layer], roster: Roster, counters: Counters) -> None:
        step = NativeParts(self.param_groups, layers)
        sums = self._parts.whole_sums(layers, roster, step.sums())
        counts, seen = step.take(sums, counters)
        self._parts.tell(layers, roster, seen, torch.tensor(counts, device="cpu"))

    def _refuse_if_told_to_fuse(self) -> None:
        if self.param_groups[0]["fused"] and not wanted(self.param_groups, compiled.DEVICES):
            raise RuntimeError(
                "fused=True needs plain, dense float32 parameters on the CPU, contiguous or "
                "channels-last, or parameters on a GPU: use fused=None"
            )

    def _layer(self, entry: Member) -> Layer:
        """Return what moves in this step; nothing is changed, as it may yet be refused."""
        weight, grad = entry.tensor, entry.tensor.grad
        assert grad is not None, "only parameters with a gradient are ready"
        if grad.shape != weight.shape:  # which torch sees to, unless someone assigns to .data
            raise RuntimeError(
                f"parameter {entry.name} has the shape {tuple(weight.shape)}, its gradient "
                f"{tuple(grad.shape)}: its data were replaced after the backward pass"
            )
        return Layer(
            entry.number,
            entry.kind,
            real_view(weight),
            real_grad(local_grad(weight, grad)),
            self.state.get(weight, {}),
            entry.group,
            self._parts.windows.get(entry.number),
        )

    def _start_judging(self) -> None:
        self._judged, self._steps_here = False, 0
        # Steps, and sums of probabilities, of layers up to the last report.
        self._reported: dict[int, tuple[float, float]] = {}

    def _judge_layers(self, only_if_free: bool = False) -> None:
        """Warn once, when there are enough steps to judge by, if layers hardly move.

        Args:
            only_if_free: whether to read no tensor on another device than the CPU.
        """
        if self._judged:
            return
        entries = [entry for entry in self._members() if TALLY in self.state.get(entry.tensor, {})]
        tallies = [self.state[entry.tensor][TALLY] for entry in entries]
        if any(tally.is_meta or (only_if_free and not tally.is_cpu) for tally in tallies):
            return
        slow: list[Member] = []
        for entry, tally in zip(entries, tallies, strict=True):
            steps, chance, _ = tally.tolist()
            steps_before, sum_before = self._reported.get(entry.number, (0.0, 0.0))
            total = steps + steps_before
            if total >= FEWEST_STEPS:
                self._judged = True
                chance = (chance * steps + sum_before) / total
                if chance < SLOW_PROBABILITY and entry.group["probability"] is None:
                    slow.append(entry)
        if not slow:
            return
        text = slow_layers_text(
            [_called(entry) for entry in slow], len(entries), slow[0].group["lambd"]
        )
        if self.on_slow_layers is not None:
            self.on_slow_layers(text)
        else:
            warnings.warn(text, SlowLayersWarning, stacklevel=level_of_caller())

    @property
    def skipped_steps(self) -> int:
        """Number of steps left out for a non-finite gradient (waits for the device)."""
        return self._read_counter(SKIPPED_STEPS)

    @torch.no_grad()
    def new_epoch(self) -> None:
        """Start an epoch: forget the averaged gradients, not the momentum (Algorithm 2)."""
        self._judge_layers()
        for state in self._filled():
            local(state[GRAD_MEAN]).zero_()
            local(state[BATCHES]).fill_(1)

    @torch.no_grad()
    def layer_report(self) -> LayerReport:
        """Return what each layer did since the last call, and begin a new account.

        Of a sharded layer the latest step comes with the next report: what processes tell
        each other of a step travels with the next one's collective. So this is no collective
        itself, and may be called on one process alone.

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
        self._judge_layers()
        rows = []
        for entry in self._members():
            steps, chance, batches = 0.0, float("nan"), float("nan")
            tally = self.state.get(entry.tensor, {}).get(TALLY)
            if tally is not None:
                steps, *means = tally.tolist()
                if steps:
                    chance, batches = means
                    before = self._reported.get(entry.number, (0.0, 0.0))
                    self._reported[entry.number] = before[0] + steps, before[1] + steps * chance
                tally.zero_()
            size = entry.tensor.numel() * (2 if entry.tensor.is_complex() else 1)
            rows.append(LayerRow(entry.name, entry.kind, size, chance, batches))
        return LayerReport(rows)


def _called(entry: Member) -> str:
    """Return a parameter's name, or else its number and its shape."""
    if "param_names" in entry.group:
        return entry.name
    return f"parameter {entry.name} of shape {tuple(entry.tensor.shape)}"
