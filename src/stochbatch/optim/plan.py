"""What stays true from one step of SBS to the next: the layers that move, and their memory.

Every step asks :meth:`Plans.current`. It compares what it finds with the plan at hand: its stamp
(which tensors there are, which options) and its memory (where they lie, how large their storages
are). If nothing has changed, that is all; otherwise the layers are checked, their state is
completed, and a new plan is made. Nothing moves before that has succeeded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from stochbatch.checks import check_agreement
from stochbatch.optim.coins import stream_roots
from stochbatch.optim.layers import USED, Layer, make_layers
from stochbatch.optim.memory import Memory
from stochbatch.optim.optimizer import CheckedOptimizer, real_grad
from stochbatch.optim.probability import compared, describe_layers
from stochbatch.optim.shards import KnownShards, Seats, Shards, local_grad

KEPT = 8
"""Plans that an optimizer remembers: parts of a network may take turns."""

_stamped = itemgetter(
    *("alpha", "lambd", "probability", "cross_layer", "compare", "coin"),
    *("seed", "skip_nonfinite", "fused"),
)
"""Options of a group that a plan is made for; the others are read at every step."""


class Plan:
    """The layers of a step, and the facts about them that stay the same.

    Args:
        layers: with their states complete.
        ready: all parameters that have a gradient, the empty ones too.
        shards: of the optimizer.
    """

    def __init__(self, layers: list[Layer], ready: Sequence[Tensor], shards: Shards) -> None:
        self.layers, self.shards = layers, shards
        _, self.step, self.skipped = layers[0].held[-3:]
        self.grads: list[Tensor] = []
        """Of the step under way, in the layers' order."""
        self.filled = [place for place, tensor in enumerate(ready) if tensor.numel()]
        """Places of the layers among all parameters that have a gradient."""
        self.memory = Memory(ready, [tensor for layer in layers for tensor in layer.held])
        self.direct = len(layers) == len(ready) and self.memory.all_plain
        self.direct = self.direct and not any(tensor.is_complex() for tensor in ready)
        """Whether gradients are used as they are found."""
        groups = [layer.group for layer in layers]
        self.options = groups[0]
        """Of the first layer: those that are the same in all groups may be read here."""
        kinds = [layer.member.kind for layer in layers]
        self.classes = compared(kinds, self.options["compare"])
        self.facts = describe_layers(
            [layer.weight for layer in layers],
            [layer.size for layer in layers],
            self.classes,
            *([group[name] for group in groups] for name in ("alpha", "lambd", "cross_layer")),
        )
        size = self.facts.size
        indices = [layer.member.number for layer in layers]
        self.roots = stream_roots(self.options["seed"], torch.tensor(indices, device=size.device))
        counts = [layer.weight.numel() for layer in layers]
        self.seats: Seats | None = shards.seats(indices, counts, size) if shards else None
        copies = [shards.copies(index) for index in indices]
        self._shares = (size * size.new_tensor(copies))[:, None]
        self._fixed = [
            (place, layer.group["probability"] * _share(layer, copies[place]))
            for place, layer in enumerate(layers)
            if layer.group["probability"] is not None
        ]
        self.found_inf: Tensor | None = None
        """1 if torch's GradScaler has found an inf in this step's gradients: it does not count."""
        self.work: Any = None
        """Which kernel moves which layer, once ``kernels`` has decided."""

    def is_current(self, states: Mapping[Tensor, dict[str, Tensor]]) -> bool:
        """Return whether the layers' memory is still in the state: otherwise it can be freed."""
        return all(
            {*map(id, layer.held)} <= {*map(id, states.get(layer.member.tensor, {}).values())}
            for layer in self.layers
        )

    def record(self, seen: Tensor | None, applies: Tensor | None) -> None:
        """Enter a step that counted into the layers' running means.

        Args:
            seen: [layers, 2]: sums of probabilities and of batches of what moved here. None if a
                kernel has entered them itself.
            applies: whether the step counted.
        """
        if seen is None or applies is None:
            return
        tallies = [layer.tally for layer in self.layers]
        tally = torch.stack([each.to(seen.device) for each in tallies])
        observed = (seen.to(self._shares) / self._shares).to(seen.device, tally.dtype)
        for place, probability in self._fixed:  # known, not summed up
            observed[place, 0].fill_(probability)
        steps = tally[:, :1] + 1
        means = tally[:, 1:] + (observed - tally[:, 1:]) / steps
        after = torch.where(applies.to(seen.device), torch.cat((steps, means), dim=1), tally)
        torch._foreach_copy_(tallies, list(after.unbind()))


def _share(layer: Layer, copies: int) -> float:
    """Return how much of a layer is here, so that all ranks together have 1."""
    return 1.0 if layer.window is None else layer.weight.numel() / (layer.size * copies)


class Plans:
    """The plan of an optimizer's present step, and those of some steps before."""

    def __init__(self) -> None:
        self._stamp: list[object] | None = None
        self._plan: Plan | None = None
        self._known: dict[Any, Plan] = {}
        self._shards = KnownShards()

    def shards(self, optimizer: CheckedOptimizer) -> Shards:
        """Return the optimizer's shards."""
        members = list(optimizer._members())
        return self._shards.of([m.tensor for m in members], [m.kind for m in members])

    def current(self, optimizer: CheckedOptimizer) -> Plan | None:
        """Return the plan of this step, with its gradients; None if there is none to take."""
        stamp, params, grads = _look(optimizer.param_groups, optimizer.state)
        plan = self._plan if stamp == self._stamp else self._known.get(tuple(stamp))
        if plan is None or not plan.memory.fits(grads):
            self._stamp, self._plan = None, None
            shards = self.shards(optimizer)
            plan = _build(optimizer, shards)
            known = {
                key: kept
                for key, kept in self._known.items()
                if kept.shards is shards and kept.is_current(optimizer.state)
            }
            self._known = {} if len(known) >= KEPT else known
            if plan is None:
                return None
            # Its state has been completed: it goes by a new stamp.
            stamp, params, grads = _look(optimizer.param_groups, optimizer.state)
            self._known[tuple(stamp)] = plan
        self._stamp, self._plan = stamp, plan
        if not plan.direct:
            grads = [real_grad(local_grad(params[place], grads[place])) for place in plan.filled]
        plan.grads = grads
        _check_rates(optimizer.param_groups)
        return plan


def _look(
    groups: Sequence[dict[str, Any]], states: Mapping[Tensor, dict[str, Tensor]]
) -> tuple[list[object], list[Tensor], list[Tensor]]:
    """Return the stamp, and the parameters that have a gradient with their gradients.

    The stamp says which tensors there are. A plan holds its tensors, so that no other can come to
    have the same id.
    """
    stamp: list[object] = [torch._C._len_torch_dispatch_stack()]
    params, grads, held = [], [], []
    for group in groups:
        coin, momentum = group["coin"] != "none", group["momentum"] != 0
        stamp += (id(group), momentum, group.get("kind"), _stamped(group))
        stamp += map(id, group["params"])
        own = USED[coin, momentum]
        for param in group["params"]:
            grad = param.grad
            if grad is None:
                stamp.append(None)
                continue
            params.append(param)
            grads.append(grad)
            try:
                held += own(states.get(param, {}))
            except KeyError:  # it is not complete yet
                stamp.append(False)
    stamp += map(id, held)
    return stamp, params, grads


def _build(optimizer: CheckedOptimizer, shards: Shards) -> Plan | None:
    """Check everything, make what is missing of the state, and return the plan of a step."""
    for group in optimizer.param_groups:  # someone may have edited them
        optimizer._check_options({**group, "lr": 0.0})  # a tensor is never read
    check_agreement(optimizer.param_groups, optimizer.whole)
    ready = optimizer._ready()
    members = [member for member in ready if member.tensor.numel()]
    if not members:
        return None
    layers = make_layers(members, optimizer.state, shards)
    return Plan(layers, [member.tensor for member in ready], shards)


_LARGEST_RATE = torch.finfo(torch.float32).max


def _check_rates(groups: Sequence[dict[str, Any]]) -> None:
    """Raise for rates that a float32 cannot hold: kernels would disagree on what they are."""
    for group in groups:
        for name in ("lr", "weight_decay"):
            rate = group[name]
            if not isinstance(rate, Tensor) and rate > _LARGEST_RATE:
                raise ValueError(f"{name} must be at most {_LARGEST_RATE:.4g}, got {rate}")
