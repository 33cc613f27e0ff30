"""What stays true from one step of SBS to the next: the layers that move, and their memory.

Every step asks :meth:`Plans.current`. It compares what it finds (which parameters have a gradient,
where tensors lie, how large their storages are, options) with the stamp of the plan at hand: a
plan has no other way to go stale. If nothing has changed, that is all; otherwise the layers are
checked, their state is completed, and a new plan is made. Nothing moves before that has succeeded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stochbatch.checks import check_agreement
from stochbatch.optim.coins import stream_roots
from stochbatch.optim.optimizer import (
    STEP,
    CheckedOptimizer,
    Member,
    Slot,
    like,
    real_grad,
    real_view,
)
from stochbatch.optim.pieces import memory_layout
from stochbatch.optim.probability import compared, compute_dtype, describe_layers
from stochbatch.optim.shards import KnownShards, Seats, Shards, Window, local, local_grad
from stochbatch.optim.update import Scalars

GRAD_MEAN = "grad_mean"
BATCHES = "batches"
MOMENTUM_BUFFER = "momentum_buffer"
SKIPPED_STEPS = "skipped_steps"
TALLY = "tally"

SLOTS = {
    GRAD_MEAN: Slot(always=False),
    BATCHES: Slot(torch.int32, always=False, least=1),
    MOMENTUM_BUFFER: Slot(always=False),
    # These two belong to the optimizer: all parameters hold the same two tensors.
    STEP: Slot(torch.int64, (), shared=True, least=0),
    SKIPPED_STEPS: Slot(torch.int64, (), shared=True, least=0),
    TALLY: Slot(torch.float32, (3,), least=0),  # steps, mean probability, mean batches
}

KEPT = 8
"""Plans that an optimizer remembers: parts of a network may take turns."""

_stamped = itemgetter(
    *("alpha", "lambd", "probability", "cross_layer", "compare", "coin"),
    *("seed", "skip_nonfinite", "fused"),
)
"""Options of a group that a plan is made for; the others are read at every step."""

_PLAIN = (Tensor, torch.nn.Parameter)


class Layer(NamedTuple):
    """A parameter that has a gradient, with all that moves it.

    Complex tensors come as their real views. Of a sharded one, scalars and gradient are those of
    this rank's shard.
    """

    member: Member
    scalars: Scalars
    tally: Tensor
    window: Window | None
    """Where the shard lies; None for a whole tensor."""

    @property
    def group(self) -> dict[str, Any]:
        """The options."""
        return self.member.group

    @property
    def weight(self) -> Tensor:
        """What is here of the parameter."""
        return self.scalars.weight

    @property
    def size(self) -> int:
        """Number of scalars of the whole tensor."""
        return real_view(self.member.tensor).numel()


class Plan:
    """The layers of a step, and the facts about them that stay the same.

    Args:
        layers: with their states complete.
        filled: places of these layers among all parameters that have a gradient.
        step: number of steps that counted.
        skipped: number of steps that were skipped.
        shards: of the optimizer.
    """

    def __init__(
        self,
        layers: list[Layer],
        filled: list[int],
        step: Tensor,
        skipped: Tensor,
        shards: Shards,
    ) -> None:
        self.layers, self.filled = layers, filled
        self.step, self.skipped, self.shards = step, skipped, shards
        self.grads: list[Tensor] = []
        """Of the step under way, in the layers' order."""
        self.direct = all(
            type(layer.member.tensor) in _PLAIN
            and type(layer.member.tensor.grad) is Tensor
            and not layer.member.tensor.is_complex()
            for layer in layers
        )
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
        for layer in self.layers:
            state = states.get(layer.member.tensor, {})
            names = (GRAD_MEAN, BATCHES, MOMENTUM_BUFFER)
            for name, held in zip(names, layer.scalars[1:], strict=True):
                if held is not None and (name not in state or local(state[name]) is not held):
                    return False
        return True

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
        if stamp != self._stamp:
            self._stamp, self._plan = None, None
            key = tuple(stamp)
            plan = self._known.get(key)
            if plan is None:
                shards = self.shards(optimizer)
                plan = _build(optimizer, shards)
                known = {
                    key: kept
                    for key, kept in self._known.items()
                    if kept.shards is shards and kept.is_current(optimizer.state)
                }
                self._known = {} if len(known) >= KEPT else known
                # Its state has been completed: it goes by a new stamp.
                stamp, params, grads = _look(optimizer.param_groups, optimizer.state)
                if plan is not None:
                    self._known[tuple(stamp)] = plan
            self._stamp, self._plan = stamp, plan
        plan = self._plan
        if plan is not None:
            if not plan.direct:
                grads = [_here(params[place], grads[place]) for place in plan.filled]
            plan.grads = grads
            _check_rates(optimizer.param_groups)
        return plan


def _look(
    groups: Sequence[dict[str, Any]], states: Mapping[Tensor, dict[str, Tensor]]
) -> tuple[list[object], list[Tensor], list[Tensor]]:
    """Return the stamp, and the parameters that have a gradient with their gradients.

    This is the part of a step that is paid for every tensor, so it is written flat. A plan holds
    its tensors, so that no other tensor can come to lie at the same address.
    """
    stamp: list[object] = [torch._C._len_torch_dispatch_stack()]
    params, grads = [], []
    step = skipped = None
    for group in groups:
        momentum = group["momentum"] != 0
        stamp += (id(group), momentum, group.get("kind"), _stamped(group))
        names = (GRAD_MEAN, BATCHES, MOMENTUM_BUFFER) if momentum else (GRAD_MEAN, BATCHES)
        for param in group["params"]:
            grad = param.grad
            if grad is None:
                stamp.append(None)
                continue
            params.append(param)
            grads.append(grad)
            if type(param) in _PLAIN and type(grad) is Tensor and grad.layout is torch.strided:
                stamp += (
                    param.data_ptr(),
                    param.untyped_storage().nbytes(),
                    param.shape,
                    param.stride(),
                    param.dtype,
                    grad.untyped_storage().nbytes(),
                    grad.storage_offset(),
                    grad.shape,
                    grad.stride(),
                    grad.dtype,
                )
            else:
                # Not where a gradient lies: that may change in every step.
                stamp += (_where(param), _facts(param), _facts(grad))
            state = states.get(param)
            if not state or STEP not in state:
                stamp.append(None)
                continue
            for name in names:
                held = state.get(name)
                if held is None:
                    stamp.append(None)
                elif type(held) is Tensor:
                    stamp += (id(held), held.data_ptr(), held.untyped_storage().nbytes())
                    stamp.append(held.shape)
                else:
                    stamp += (id(held), _where(held), _facts(held))
            if (held := state.get(TALLY)) is not None:
                stamp.append(held.data_ptr())
            if state[STEP] is not step or state.get(SKIPPED_STEPS) is not skipped:
                step, skipped = state[STEP], state.get(SKIPPED_STEPS)
                for held in (step, skipped):
                    if held is not None:
                        stamp += (held.data_ptr(), held.untyped_storage().nbytes())
    return stamp, params, grads


def _facts(tensor: Tensor) -> tuple[object, ...]:
    """Return what a tensor is that is not plain: a subclass, a DTensor, a sparse one."""
    shard = local(tensor)
    more: tuple[object, ...] = ()
    if type(shard) in _PLAIN and shard.layout is torch.strided:
        more = (shard.stride(), shard.storage_offset(), shard.untyped_storage().nbytes())
    placements = getattr(tensor, "placements", None)
    return (type(tensor), tensor.shape, tensor.dtype, tensor.layout, placements, *more)


def _where(tensor: Tensor) -> int:
    """Return what changes with a tensor's memory."""
    shard = local(tensor)
    plain = type(shard) in _PLAIN and shard.layout is torch.strided
    return shard.data_ptr() if plain else id(tensor)


def _here(param: Tensor, grad: Tensor) -> Tensor:
    """Return the gradient of what is here of a parameter, as real numbers."""
    if type(param) in _PLAIN and type(grad) is Tensor and not grad.is_complex():
        return grad
    return real_grad(local_grad(param, grad))


def _build(optimizer: CheckedOptimizer, shards: Shards) -> Plan | None:
    """Check the layers, make what is missing of their state, and return the plan of a step."""
    for group in optimizer.param_groups:  # someone may have edited them
        optimizer._check_options({**group, "lr": 0.0})  # a tensor is never read
    check_agreement(optimizer.param_groups, optimizer.whole)
    ready = optimizer._ready()
    filled = [place for place, member in enumerate(ready) if member.tensor.numel()]
    if not filled:
        return None
    members = [ready[place] for place in filled]
    for member in members:
        _check_layer(member, optimizer.state.get(member.tensor, {}))
    step, skipped = _counters(optimizer.state, local(members[0].tensor).device)
    layers = []
    for member in members:
        state = optimizer.state[member.tensor]
        # In any case: whoever copied the state of each parameter made copies of these.
        state[STEP], state[SKIPPED_STEPS] = step, skipped
        scalars = _complete(state, real_view(member.tensor), member.group)
        window = shards.windows.get(member.number)
        layers.append(Layer(member, scalars, state[TALLY], window))
    plan = Plan(layers, filled, step, skipped, shards)
    plan.direct = plan.direct and len(filled) == len(ready)
    return plan


def _check_layer(member: Member, state: Mapping[str, Tensor]) -> None:
    """Raise unless a step can move this parameter."""
    param, grad = member.tensor, member.tensor.grad
    assert grad is not None, "only parameters with a gradient are ready"
    if grad.shape != param.shape:  # which torch sees to, unless someone assigns to .data
        raise RuntimeError(
            f"parameter {member.name} has the shape {tuple(param.shape)}, its gradient "
            f"{tuple(grad.shape)}: its data were replaced after the backward pass"
        )
    weight = real_view(param)
    if torch._debug_has_internal_overlap(local(weight)) == 1:
        raise RuntimeError(
            f"parameter {member.name} has several elements in one place of memory, as expand() "
            "makes them: it cannot be moved, use clone()"
        )
    held = {name: state.get(name) for name in (GRAD_MEAN, BATCHES, MOMENTUM_BUFFER)}
    rest = {name: state.get(name) for name in (STEP, SKIPPED_STEPS, TALLY)}
    for name, tensor in {"weight": param, "gradient": grad, **held, **rest}.items():
        if tensor is not None and not _has_memory(local(tensor)):
            raise RuntimeError(
                f"the {name} of parameter {member.name} has no memory for its elements: its "
                "storage was resized"
            )
    for tensor in held.values():
        if tensor is not None and tensor.shape != weight.shape:
            raise ValueError(
                f"a parameter of shape {tuple(tensor.shape)} has become one of shape "
                f"{tuple(weight.shape)}: its averages do not fit any more, make a new optimizer"
            )
        if tensor is not None and tensor.device != weight.device:
            raise RuntimeError(
                f"a parameter has moved from {tensor.device} to {weight.device}, its state "
                "has not: load the optimizer's state_dict into a new optimizer"
            )


def _has_memory(tensor: Tensor) -> bool:
    """Return whether a tensor's storage is large enough for it, as far as it has one."""
    if type(tensor) not in _PLAIN or tensor.is_meta or not tensor.numel():
        return True
    if tensor._is_zerotensor():  # what forward-mode differentiation makes
        return True
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    needed = (tensor.storage_offset() + last + 1) * tensor.element_size()
    return tensor.untyped_storage().nbytes() >= needed


def _counters(
    states: Mapping[Tensor, dict[str, Tensor]], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the counters that the states share; new ones on ``device`` if there are none."""
    for state in states.values():
        if STEP in state and SKIPPED_STEPS in state:
            return state[STEP], state[SKIPPED_STEPS]
    step, skipped = (torch.zeros((), dtype=torch.int64, device=device) for _ in range(2))
    return step, skipped


def _complete(state: dict[str, Tensor], weight: Tensor, group: dict[str, Any]) -> Scalars:
    """Make what is missing of a parameter's state, and return what is here of all of it.

    State follows its parameter to another dtype or memory layout.
    """
    dtype = compute_dtype(weight.dtype)
    made: dict[str, Callable[[], Tensor]] = {}
    if group["coin"] != "none":
        made[GRAD_MEAN] = lambda: torch.zeros_like(weight, dtype=dtype)
        made[BATCHES] = lambda: torch.ones_like(weight, dtype=torch.int32)
    if group["momentum"]:
        made[MOMENTUM_BUFFER] = lambda: torch.zeros_like(weight, dtype=dtype)
    if TALLY not in state:
        state[TALLY] = torch.zeros(3, dtype=torch.float32, device=local(weight).device)
    for name, slot in SLOTS.items():
        held = state.get(name)
        if held is not None and slot.shape is None:
            wanted = slot.dtype or dtype
            if held.dtype != wanted or _laid_out_apart(local(held), local(weight)):
                state[name] = like(weight, held, wanted)
    for name, make in made.items():
        if name not in state:
            state[name] = make()
    return Scalars(local(weight), **{name: local(state[name]) for name in made})


def _laid_out_apart(held: Tensor, weight: Tensor) -> bool:
    # A weight that is a slice has a layout that no new tensor takes: its state stays as it is.
    apart = held.stride() != weight.stride()
    return apart and memory_layout(weight) not in (None, memory_layout(held))


_LARGEST_RATE = torch.finfo(torch.float32).max


def _check_rates(groups: Sequence[dict[str, Any]]) -> None:
    """Raise for rates that a float32 cannot hold: kernels would disagree on what they are."""
    for group in groups:
        for name in ("lr", "weight_decay"):
            rate = group[name]
            if not isinstance(rate, Tensor) and rate > _LARGEST_RATE:
                raise ValueError(f"{name} must be at most {_LARGEST_RATE:.4g}, got {rate}")
