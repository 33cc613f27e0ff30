"""What SBS remembers: the names and the making of state.

Step number and skipped steps belong to the optimizer, so all entries hold the same two
tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from stochbatch.optim.optimizer import STEP, Slot, like
from stochbatch.optim.pieces import memory_layout
from stochbatch.optim.probability import compute_dtype
from stochbatch.optim.shards import local

GRAD_MEAN = "grad_mean"
BATCHES = "batches"
MOMENTUM_BUFFER = "momentum_buffer"
SKIPPED_STEPS = "skipped_steps"
TALLY = "tally"

_TALLY_LENGTH = 3  # steps, mean probability, mean batches

SLOTS = {
    GRAD_MEAN: Slot(),
    BATCHES: Slot(torch.int32, least=1),
    MOMENTUM_BUFFER: Slot(always=False),
    STEP: Slot(torch.int64, (), shared=True, least=0),
    SKIPPED_STEPS: Slot(torch.int64, (), shared=True, least=0),
    TALLY: Slot(torch.float32, (_TALLY_LENGTH,), least=0),
}
_SHAPED = [name for name, slot in SLOTS.items() if slot.shape is None]


class Counters(NamedTuple):
    """The numbers of steps that counted and that were skipped, as integer tensors."""

    step: Tensor
    skipped_steps: Tensor

    @classmethod
    def zeros(cls, device: torch.device) -> Counters:
        """Return the counters of a training that has not begun."""
        return cls(*(torch.zeros((), dtype=torch.int64, device=device) for _ in range(2)))


def complete_state(
    state: dict[str, Tensor], weight: Tensor, counters: Counters, momentum: bool
) -> None:
    """Make what is missing of the state of a parameter that has a gradient.

    State follows its parameter to another dtype or memory layout.
    """
    begun = GRAD_MEAN in state  # others, as wrappers of optimizers, may keep things here too
    if begun and state[GRAD_MEAN].shape != weight.shape:
        raise ValueError(
            f"a parameter of shape {tuple(state[GRAD_MEAN].shape)} has become one of shape "
            f"{tuple(weight.shape)}: its averages do not fit any more, make a new optimizer"
        )
    if begun and state[GRAD_MEAN].device != weight.device:
        raise RuntimeError(
            f"a parameter has moved from {state[GRAD_MEAN].device} to {weight.device}, its state "
            "has not: load the optimizer's state_dict into a new optimizer"
        )
    dtype = compute_dtype(weight.dtype)
    # In any case: whoever copied the state of each parameter made copies of these.
    state[STEP], state[SKIPPED_STEPS] = counters
    if not begun:
        state[GRAD_MEAN] = torch.zeros_like(weight, dtype=dtype)
        state[BATCHES] = torch.ones_like(weight, dtype=torch.int32)
        state[TALLY] = torch.zeros(_TALLY_LENGTH, dtype=torch.float32, device=local(weight).device)
    if momentum and MOMENTUM_BUFFER not in state:
        state[MOMENTUM_BUFFER] = torch.zeros_like(weight, dtype=dtype)
    for name in _SHAPED:
        held = state.get(name)
        if held is None:
            continue
        wanted = SLOTS[name].dtype or dtype
        if held.dtype != wanted or _laid_out_apart(local(held), local(weight)):
            state[name] = like(weight, held, wanted)


def _laid_out_apart(held: Tensor, weight: Tensor) -> bool:
    # A weight that is a slice has a layout that no new tensor takes: its state stays as it is.
    apart = held.stride() != weight.stride()
    return apart and memory_layout(weight) not in (None, memory_layout(held))


def counters_of(states: Mapping[Tensor, dict[str, Tensor]], device: torch.device) -> Counters:
    """Return the counters that the states share; new ones on ``device`` if there are none."""
    for state in states.values():
        if GRAD_MEAN in state:
            return Counters(state[STEP], state[SKIPPED_STEPS])
    return Counters.zeros(device)
