"""What an optimizer keeps of a parameter: declared, so that loading is exact."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import zip_longest
from typing import NamedTuple

import torch
from torch import Tensor

from stochbatch.optim.pieces import memory_layout
from stochbatch.optim.probability import compute_dtype
from stochbatch.optim.shards import is_sharded, local, window_of

_NUMBERS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_NUMBERS |= {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}


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
    least: int | None = None  # the smallest value allowed
    most: int | None = None  # what larger values become
    whole: torch.dtype | None = None  # the dtype beside a parameter that is not sharded, if another
    finite: bool = True  # whether floating-point values must be finite

    def dtype_beside(self, weight: Tensor) -> torch.dtype:
        """Return in which dtype it is kept beside a parameter."""
        if self.whole is not None and not is_sharded(weight):
            return self.whole
        return self.dtype or compute_dtype(weight.dtype)

    def like(self, weight: Tensor, value: Tensor) -> Tensor:
        """Return a copy of ``value`` as it is kept beside ``weight``: see :func:`like`."""
        if self.most is not None:
            value = value.to(self.dtype).clamp(max=self.most)
        return like(weight, value, self.dtype_beside(weight))

    def loaded(self, value: object, weight: Tensor, what: str) -> Tensor:
        """Return a copy of a saved value, for a parameter like ``weight``; raise unless it fits."""
        if self.shape == () and isinstance(value, (int, float)) and not isinstance(value, bool):
            value = torch.tensor(value if abs(value) < 2**63 else math.nan, dtype=torch.float64)
        if not isinstance(value, Tensor):
            raise TypeError(f"{what} must be a tensor, got {type(value).__name__}")
        if value.dtype not in _NUMBERS or value.layout != torch.strided:
            kind = f"{value.dtype}, {value.layout}"
            raise TypeError(f"{what} must be a dense tensor of real numbers, got {kind}")
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
        self._check_range(local(value.detach()), dtype, what)
        if self.shape is None:
            return self.like(weight, value.detach())
        device = torch.device("cpu") if self.on_host else weight.device
        return local(value.detach()).to(device, dtype, copy=True)

    def _check_range(self, value: Tensor, dtype: torch.dtype, what: str) -> None:
        whole = not dtype.is_floating_point
        if value.is_meta or not value.numel() or not (whole or self.finite):
            return
        limits = torch.iinfo(dtype) if whole else torch.finfo(dtype)
        least = limits.min if self.least is None else self.least
        low, high = (bound.item() for bound in value.aminmax())
        fits = least <= low and high <= limits.max  # a NaN makes both bounds NaN
        if whole and value.is_floating_point():
            fits = fits and torch.equal(value, value.trunc())
        if not fits:
            wanted = f"whole numbers ({dtype})" if whole else "finite"
            wanted += "" if self.least is None else f", {least} or more"
            got = " to ".join(dict.fromkeys((str(low), str(high))))
            raise ValueError(f"{what} must be {wanted}; got {got}")


STEP = "step"
COUNTER = Slot(torch.int64, (), shared=True, on_host=True, least=0)
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
            other = held.dtype != slot.dtype_beside(weight)
            if other or _laid_out_apart(local(held), local(weight)):
                state[name] = slot.like(weight, held)


def _laid_out_apart(held: Tensor, weight: Tensor) -> bool:
    # A weight that is a slice has a layout that no new tensor takes: its state stays as it is.
    apart = held.stride() != weight.stride()
    return apart and memory_layout(weight) not in (None, memory_layout(held))
