"""What an optimizer keeps for each parameter, declared; checked and loaded by that declaration.

Torch casts loaded state to the parameter's dtype, and takes anything under any name. Here what is
declared comes back in the dtype it was saved in, or not at all; the rest, which wrappers of
optimizers keep in the same place, is left to torch.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stochbatch.optim.probability import compute_dtype
from stochbatch.optim.shards import is_sharded, local, window_of


class Slot(NamedTuple):
    """One tensor of a parameter's state."""

    dtype: torch.dtype | None = None
    """None: the dtype that the parameter's step is computed in."""
    shape: tuple[int, ...] | None = None
    """None: the parameter's shape; a -1 is any length."""
    always: bool = True
    """Whether every state has it."""
    shared: bool = False
    """Whether all parameters hold the same tensor: a fact of the optimizer. (A parameter's own
    entry is the one place that every checkpoint library carries.)"""
    on_host: bool = False
    """Whether it stays on the CPU, wherever the parameter is."""

    def fits(self, shape: torch.Size, parameter: torch.Size) -> bool:
        """Whether a tensor of ``shape`` may be in this slot of a parameter."""
        wanted = self.expected(parameter)
        return len(shape) == len(wanted) and all(
            size in (-1, found) for size, found in zip(wanted, shape, strict=True)
        )

    def expected(self, parameter: torch.Size) -> tuple[int, ...]:
        """Return the shape for a parameter of this shape."""
        return tuple(parameter) if self.shape is None else self.shape


STEP = "step"
COUNTER = Slot(torch.int64, (), shared=True, on_host=True)
"""The slot of a number of steps that only the host asks for."""

Slots = Mapping[str, Slot]
States = MutableMapping[Tensor, dict[str, Tensor]]


def real_view(tensor: Tensor) -> Tensor:
    """Return complex tensors as pairs of real numbers, as torch's optimizers treat them."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def real_grad(grad: Tensor) -> Tensor:
    """Return a gradient as real numbers; what autograd left to be conjugated is conjugated."""
    return real_view(grad.resolve_conj())


def like(weight: Tensor, value: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a copy of ``value`` in ``dtype``, on the weight's device, in its memory layout.

    Of a whole tensor a sharded weight takes its part.
    """
    result = torch.empty_like(weight, dtype=dtype)
    window = window_of(weight)
    if window is not None and not is_sharded(value):
        for axis, (start, size) in enumerate(zip(window.starts, window.part, strict=True)):
            value = value.narrow(axis, start, size)
    if is_sharded(value) and value.placements == weight.placements:  # type: ignore[attr-defined]
        value = local(value)
    if is_sharded(value):
        return result.copy_(value)
    local(result).copy_(value)
    return result


def _pairs(
    state_dict: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]
) -> dict[object, Tensor]:
    """Return the parameter of each saved identifier: they correspond by position."""
    saved = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
    held = chain.from_iterable(group["params"] for group in groups)
    return dict(zip(saved, held, strict=True))


def exact_state(
    state_dict: Mapping[str, Any], groups: Sequence[Mapping[str, Any]], slots: Slots
) -> States:
    """Return copies of the saved state of each parameter, on its device, in the slots' dtypes."""
    parameters = _pairs(state_dict, groups)
    states: States = {}
    for identifier, saved in state_dict["state"].items():
        weight = real_view(parameters[identifier].detach())
        state = states[parameters[identifier]] = {}
        for name, value in saved.items():
            slot = slots.get(name)
            if slot is None:
                continue
            dtype = slot.dtype or compute_dtype(weight.dtype)
            if slot.shape is None:
                state[name] = like(weight, value.detach(), dtype)
            else:
                device = torch.device("cpu") if slot.on_host else weight.device
                state[name] = value.detach().to(device, dtype, copy=True)
    return states


def share(states: Mapping[Tensor, dict[str, Tensor]], slots: Slots) -> None:
    """Let all parameters hold the first one's tensors again in the shared slots."""
    shared = [name for name, slot in slots.items() if slot.shared]
    first: dict[str, Tensor] = {}
    for state in filter(None, states.values()):
        for name in shared:
            if name in state:
                state[name] = first.setdefault(name, state[name])


def check_state(
    state_dict: Mapping[str, Any],
    groups: Sequence[Mapping[str, Any]],
    slots: Slots,
    owner: str,
) -> None:
    """Raise unless the state in ``state_dict`` fits the slots and these groups' parameters."""
    parameters = _pairs(state_dict, groups)
    for identifier, saved in state_dict["state"].items():
        if identifier not in parameters:
            raise ValueError(f"state_dict has state for parameter {identifier!r}, of no group")
        if saved:
            _check_entry(identifier, saved, real_view(parameters[identifier]).shape, slots, owner)
            _check_sharding(identifier, saved, parameters[identifier])


def _check_entry(
    identifier: object, saved: Mapping[str, Any], shape: torch.Size, slots: Slots, owner: str
) -> None:
    always = [name for name, slot in slots.items() if slot.always]
    ours = {name: value for name, value in saved.items() if name in slots}
    if not ours:
        return  # a wrapper's, of a parameter that has not moved yet
    if any(name not in ours for name in always):
        raise ValueError(
            f"state_dict is not one of {owner}: its state of parameter {identifier!r} "
            f"has {sorted(saved)}, expected {sorted(always)}"
        )
    for name, value in ours.items():
        if not isinstance(value, Tensor):
            kind = type(value).__name__
            raise TypeError(f"{name} of parameter {identifier!r} must be a tensor, got {kind}")
        if not slots[name].fits(value.shape, shape):
            raise ValueError(
                f"{name} of parameter {identifier!r} has shape {tuple(value.shape)} "
                f"in the state_dict, expected {slots[name].expected(shape)}"
            )


def _check_sharding(identifier: object, saved: Mapping[str, Tensor], weight: Tensor) -> None:
    tensors = [value for value in saved.values() if isinstance(value, Tensor)]
    if not is_sharded(weight) and any(map(is_sharded, tensors)):
        raise ValueError(
            f"the state of parameter {identifier!r} is sharded (DTensor) and the parameter is "
            "not: load it by torch.distributed.checkpoint"
        )


def check_groups(
    state_dict: object, groups: Sequence[Mapping[str, Any]], defaults: Mapping[str, Any], owner: str
) -> list[dict[str, Any]]:
    """Raise unless ``state_dict`` has groups of these sizes, with all options; return them."""
    if not isinstance(state_dict, Mapping) or not {"state", "param_groups"} <= state_dict.keys():
        raise ValueError("state_dict must be a dict with 'state' and 'param_groups'")
    saved_groups: list[dict[str, Any]] = state_dict["param_groups"]
    sizes = [len(group["params"]) for group in groups]
    saved_sizes = [len(group["params"]) for group in saved_groups]
    if sizes != saved_sizes:
        raise ValueError(
            f"state_dict has parameter groups of sizes {saved_sizes}, this optimizer {sizes}"
        )
    for number, group in enumerate(saved_groups):
        if missing := [name for name in defaults if name not in group]:
            raise ValueError(
                f"state_dict is not one of {owner}: its parameter group {number} "
                f"lacks {', '.join(missing)}"
            )
    return saved_groups
