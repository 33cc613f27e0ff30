"""The layers of a step: what is checked of a parameter, and the state that SBS keeps of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stochbatch.optim.memory import PLAIN
from stochbatch.optim.optimizer import Member, real_view
from stochbatch.optim.shards import Shards, Window, local
from stochbatch.optim.slots import STEP, Slot, follow
from stochbatch.optim.update import MOST_BATCHES, Scalars

GRAD_MEAN = "grad_mean"
BATCHES = "batches"
MOMENTUM_BUFFER = "momentum_buffer"
SKIPPED_STEPS = "skipped_steps"
TALLY = "tally"

SLOTS = {
    GRAD_MEAN: Slot(always=False),
    # gloo does not send 16 bits: shards, and what leaves, have 32.
    BATCHES: Slot(torch.int32, whole=torch.int16, always=False, least=1, most=MOST_BATCHES),
    MOMENTUM_BUFFER: Slot(always=False),
    # These two belong to the optimizer: all parameters hold the same two tensors.
    STEP: Slot(torch.int64, (), shared=True, least=0),
    SKIPPED_STEPS: Slot(torch.int64, (), shared=True, least=0),
    TALLY: Slot(torch.float32, (3,), least=0),  # steps, mean probability, mean batches
}

USED = {
    (coin, momentum): itemgetter(
        *((GRAD_MEAN, BATCHES) if coin else ()),
        *((MOMENTUM_BUFFER,) if momentum else ()),
        *(TALLY, STEP, SKIPPED_STEPS),
    )
    for coin in (False, True)
    for momentum in (False, True)
}
"""What a step uses of a parameter's state, by whether there is a coin and momentum."""


class Layer(NamedTuple):
    """A parameter that has a gradient, with all that moves it.

    Complex tensors come as their real views. Of a sharded one, scalars and gradient are those of
    this rank's shard.
    """

    member: Member
    scalars: Scalars
    held: tuple[Tensor, ...]
    """Its state, as the optimizer holds it: last the tally and the two counters."""
    window: Window | None
    """Where the shard lies; None for a whole tensor."""

    @property
    def tally(self) -> Tensor:
        """Number of steps, mean probability and mean batches."""
        return self.held[-3]

    @property
    def group(self) -> dict[str, Any]:
        """The options."""
        return self.member.group

    @property
    def weight(self) -> Tensor:
        """What is here of the parameter."""
        return self.scalars.weight

    @property
    def wide(self) -> bool:
        """Whether its counts have 32 bits."""
        return self.scalars.batches is not None and self.scalars.batches.dtype == torch.int32

    @property
    def size(self) -> int:
        """Number of scalars of the whole tensor."""
        return real_view(self.member.tensor).numel()


def make_layers(
    members: Sequence[Member], states: Mapping[Tensor, dict[str, Tensor]], shards: Shards
) -> list[Layer]:
    """Check parameters that have a gradient, and return them with their state made complete."""
    for member in members:
        _check_layer(member, states.get(member.tensor, {}))
    step, skipped = _counters(states, local(members[0].tensor).device)
    layers = []
    for member in members:
        state = states[member.tensor]
        # Always, because a deep copy leaves every parameter with counters of its own.
        state[STEP], state[SKIPPED_STEPS] = step, skipped
        scalars = _complete(state, real_view(member.tensor), member.group)
        held = USED[scalars.batches is not None, scalars.momentum_buffer is not None](state)
        layers.append(Layer(member, scalars, held, shards.windows.get(member.number)))
    return layers


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
    if type(tensor) not in PLAIN or tensor.is_meta or not tensor.numel():
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
    """Make what is missing of a parameter's state, and return what is here of all of it."""
    follow(state, SLOTS, weight)
    used: dict[str, int] = {}
    if group["coin"] != "none":
        used |= {GRAD_MEAN: 0, BATCHES: 1}
    if group["momentum"]:
        used |= {MOMENTUM_BUFFER: 0}
    for name, start in used.items():
        if name not in state:
            dtype = SLOTS[name].dtype_beside(weight)
            state[name] = torch.full_like(weight, start, dtype=dtype)
    if TALLY not in state:
        state[TALLY] = torch.zeros(3, dtype=torch.float32, device=local(weight).device)
    return Scalars(local(weight), **{name: local(state[name]) for name in used})
