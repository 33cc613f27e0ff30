"""What an optimizer keeps of a parameter: declared, so that loading is exact."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import NamedTuple

import torch
from torch import Tensor

from stochbatch.optim.pieces import memory_layout
from stochbatch.optim.probability import compute_dtype
from stochbatch.optim.shards import is_sharded, local, window_of


class Slot(NamedTuple):
    """One tensor of a parameter's state.

    A shared one is a fact of the optimizer: all parameters hold it, because their own entries
    are the only place that every checkpoint library carries.
    """

    dtype: torch.dtype | None = None  # None: the dtype that the parameter's step is computed in
    shape: tuple[int, ...] | None = None  # None: the parameter's shape; a -1 is any length
    always: bool = True  # whether every state has it
    shared: bool = False  # whether all parameters hold the same tensor
    on_host: bool = False  # whether it stays on the CPU, wherever the parameter is

    def loaded(self, value: object, weight: Tensor, what: str) -> Tensor:
        """Return a copy of a saved value, for a parameter like ``weight``; raise unless it fits."""
        if self.shape == () and isinstance(value, (int, float)):
            value = torch.tensor(value)
        if not isinstance(value, Tensor):
            raise TypeError(f"{what} must be a tensor, got {type(value).__name__}")
        wanted = tuple(weight.shape) if self.shape is None else self.shape
        found = tuple(value.shape)
        if found != tuple(f if w == -1 else w for w, f in zip_longest(wanted, found)):
            raise ValueError(f"{what} has shape {found} in the state_dict, expected {wanted}")
        if is_sharded(value) and not is_sharded(weight):
            raise ValueError(
                f"{what} is sharded (DTensor) and the parameter is not: "
                "load it by torch.distributed.checkpoint"
            )
        dtype = self.dtype or compute_dtype(weight.dtype)
        if self.shape is None:
            return like(weight, value.detach(), dtype)
        device = torch.device("cpu") if self.on_host else weight.device
        return local(value.detach()).to(device, dtype, copy=True)


STEP = "step"
COUNTER = Slot(torch.int64, (), shared=True, on_host=True)
"""The slot of a number of steps that only the host reads."""

Slots = Mapping[str, Slot]


def like(weight: Tensor, value: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a copy of ``value`` in ``dtype``, on the weight's device, in its memory layout.

    A sharded weight takes its shard of a whole tensor.
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


def follow(state: dict[str, Tensor], slots: Slots, weight: Tensor) -> None:
    """Convert state whose parameter has changed its dtype or its memory layout."""
    for name, slot in slots.items():
        held = state.get(name)
        if held is not None and slot.shape is None:
            dtype = slot.dtype or compute_dtype(weight.dtype)
            if held.dtype != dtype or _laid_out_apart(local(held), local(weight)):
                state[name] = like(weight, held, dtype)


def _laid_out_apart(held: Tensor, weight: Tensor) -> bool:
    # A weight that is a slice has a layout that no new tensor takes: its state stays as it is.
    apart = held.stride() != weight.stride()
    return apart and memory_layout(weight) not in (None, memory_layout(held))
