"""What SBS remembers: the names, the making, the checking and the exact loading of state.

Everything is a tensor under a parameter's own entry, the one place that every
checkpoint library carries. Step number and skipped steps belong to the optimizer, so all
entries hold the same two tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stochbatch.optim.options import check_agreement, check_options
from stochbatch.optim.pieces import memory_layout
from stochbatch.optim.probability import compute_dtype

GRAD_MEAN = "grad_mean"
BATCHES = "batches"
MOMENTUM_BUFFER = "momentum_buffer"
STEP = "step"
SKIPPED_STEPS = "skipped_steps"
TALLY = "tally"

_ALWAYS = (GRAD_MEAN, BATCHES, STEP, SKIPPED_STEPS, TALLY)
_SHAPED = (GRAD_MEAN, BATCHES, MOMENTUM_BUFFER)
_TALLY_LENGTH = 3  # steps, mean probability, mean batches


class Counters(NamedTuple):
    """The numbers of steps that counted and that were skipped, as integer tensors."""

    step: Tensor
    skipped_steps: Tensor

    @classmethod
    def zeros(cls, device: torch.device) -> Counters:
        """Return the counters of a training that has not begun."""
        return cls(*(torch.zeros((), dtype=torch.int64, device=device) for _ in range(2)))


def real_view(tensor: Tensor) -> Tensor:
    """Return complex tensors as pairs of real numbers, as torch's optimizers treat them."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def complete_state(
    state: dict[str, Tensor], weight: Tensor, counters: Counters, momentum: bool
) -> None:
    """Make what is missing of the state of a parameter that has a gradient.

    State follows its parameter to another dtype, device or memory layout.
    """
    if state and state[GRAD_MEAN].shape != weight.shape:
        raise ValueError(
            f"a parameter of shape {tuple(state[GRAD_MEAN].shape)} has become one of shape "
            f"{tuple(weight.shape)}: its averages do not fit any more, make a new optimizer"
        )
    dtype = compute_dtype(weight.dtype)
    if not state:
        state[STEP], state[SKIPPED_STEPS] = counters
        state[GRAD_MEAN] = torch.zeros_like(weight, dtype=dtype)
        state[BATCHES] = torch.ones_like(weight, dtype=torch.int32)
        state[TALLY] = torch.zeros(_TALLY_LENGTH, device=weight.device)
    if momentum and MOMENTUM_BUFFER not in state:
        state[MOMENTUM_BUFFER] = torch.zeros_like(weight, dtype=dtype)
    for name in _SHAPED:
        held = state.get(name)
        if held is None:
            continue
        wanted = torch.int32 if name == BATCHES else dtype
        fits = held.dtype == wanted and held.device == weight.device
        if not fits or (held.stride() != weight.stride() and _laid_out_apart(held, weight)):
            state[name] = like(weight, held, wanted)
    if state[TALLY].device != weight.device:
        state[TALLY] = state[TALLY].to(weight.device)


def _laid_out_apart(held: Tensor, weight: Tensor) -> bool:
    # A weight that is a slice has a layout that no new tensor takes: its state stays as it is.
    return memory_layout(weight) not in (None, memory_layout(held))


def like(weight: Tensor, value: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a copy of ``value`` in ``dtype``, on the weight's device, in its memory layout."""
    return torch.empty_like(weight, dtype=dtype).copy_(value)


def counters_of(states: Mapping[Tensor, dict[str, Tensor]], device: torch.device) -> Counters:
    """Return the counters that the states share; new ones on ``device`` if there are none."""
    for state in states.values():
        if STEP in state:
            return Counters(state[STEP], state[SKIPPED_STEPS])
    return Counters.zeros(device)


def share_counters(states: Mapping[Tensor, dict[str, Tensor]]) -> None:
    """Let all parameters hold the counters of the first one again."""
    counters: Counters | None = None
    for state in filter(None, states.values()):
        counters = counters or Counters(state[STEP], state[SKIPPED_STEPS])
        state[STEP], state[SKIPPED_STEPS] = counters


def _pairs(
    state_dict: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]
) -> dict[object, Tensor]:
    """Return the parameter of each saved identifier: they correspond by position."""
    saved = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
    held = chain.from_iterable(group["params"] for group in groups)
    return dict(zip(saved, held, strict=True))


def exact_state(
    state_dict: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]
) -> MutableMapping[Tensor, dict[str, Tensor]]:
    """Return copies of the saved state of each parameter, on its device, in state's dtypes."""
    parameters = _pairs(state_dict, groups)
    states = {}
    for identifier, saved in state_dict["state"].items():
        parameter = parameters[identifier]
        floating = compute_dtype(parameter.dtype)
        dtypes = {
            GRAD_MEAN: floating,
            MOMENTUM_BUFFER: floating,
            BATCHES: torch.int32,
            STEP: torch.int64,
            SKIPPED_STEPS: torch.int64,
            TALLY: torch.float32,
        }
        weight = real_view(parameter)
        states[parameter] = {
            name: like(weight.detach(), value.detach(), dtypes[name])
            if name in _SHAPED
            else value.detach().to(weight.device, dtypes[name], copy=True)
            for name, value in saved.items()
        }
    return states


def check_state_dict(
    state_dict: Mapping[str, Any],
    groups: Sequence[Mapping[str, Any]],
    defaults: Mapping[str, Any],
) -> None:
    """Raise unless ``state_dict`` is one of SBS, with these groups' sizes and shapes."""
    if not isinstance(state_dict, Mapping) or not {"state", "param_groups"} <= state_dict.keys():
        raise ValueError("state_dict must be a dict with 'state' and 'param_groups'")
    saved_groups = state_dict["param_groups"]
    sizes = [len(group["params"]) for group in groups]
    saved_sizes = [len(group["params"]) for group in saved_groups]
    if sizes != saved_sizes:
        raise ValueError(
            f"state_dict has parameter groups of sizes {saved_sizes}, this optimizer {sizes}"
        )
    for number, group in enumerate(saved_groups):
        if missing := [name for name in defaults if name not in group]:
            raise ValueError(
                f"state_dict is not one of SBS: its parameter group {number} "
                f"lacks {', '.join(missing)}"
            )
        check_options(group)
    check_agreement(saved_groups)
    parameters = _pairs(state_dict, groups)
    for identifier, saved in state_dict["state"].items():
        if identifier not in parameters:
            raise ValueError(f"state_dict has state for parameter {identifier!r}, of no group")
        if saved:
            _check_entry(identifier, saved, real_view(parameters[identifier]).shape)


def _check_entry(identifier: object, saved: Mapping[str, Any], shape: torch.Size) -> None:
    missing = [name for name in _ALWAYS if name not in saved]
    unknown = [name for name in saved if name not in (*_ALWAYS, MOMENTUM_BUFFER)]
    if missing or unknown:
        raise ValueError(
            f"state_dict is not one of SBS: its state of parameter {identifier!r} "
            f"has {sorted(saved)}, expected {sorted(_ALWAYS)}"
        )
    for name, value in saved.items():
        if not isinstance(value, Tensor):
            kind = type(value).__name__
            raise TypeError(f"{name} of parameter {identifier!r} must be a tensor, got {kind}")
        expected = shape if name in _SHAPED else (_TALLY_LENGTH,) if name == TALLY else ()
        if value.shape != torch.Size(expected):
            raise ValueError(
                f"{name} of parameter {identifier!r} has shape {tuple(value.shape)} "
                f"in the state_dict, expected {tuple(expected)}"
            )
