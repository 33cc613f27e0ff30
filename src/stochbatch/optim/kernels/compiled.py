"""The eager step's own functions through ``torch.compile``, for devices other than the CPU.

A layer is one kernel: its probabilities, coins and update in one pass over its memory.
Sizes are dynamic and rates are tensors, so that one compilation serves every layer of
every network with the same options. (On a CPU this is no faster than the eager step;
``native`` is what runs there.)
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stochbatch.optim.coins import as_int32, uniform_at
from stochbatch.optim.kernels.fallback import UnavailableError, give_up
from stochbatch.optim.pieces import MemoryLayout, memory_layout, memory_vector
from stochbatch.optim.plan import Plan
from stochbatch.optim.probability import Scores, accumulation_dtype, compute_dtype
from stochbatch.optim.update import Rates, Rule, Scalars, advance

DEVICES = ("cuda", "xpu")
"""Types of device for which steps are compiled."""

WORTH_COMPILING = 1 << 14
"""Number of scalars from which on steps are compiled, unless ``fused`` is True."""

LARGEST = 1 << 31
"""Layers with more scalars are moved piece by piece: their indices need more than one word."""


class Strides(NamedTuple):
    """A memory layout that is not a contiguous whole, in tensors of one integer each."""

    middle: Tensor
    inner: Tensor
    pitch: Tensor
    offset: Tensor


def _move(
    now: Scalars,
    grad: Tensor,
    index: Tensor | Strides | None,
    key: tuple[Tensor, Tensor] | None,
    chances: Scores | Tensor,
    applies: Tensor,
    rates: Rates,
    rule: Rule,
) -> tuple[Tensor, Tensor]:
    """Move vectors of scalars in place; say what their probabilities and batches were.

    Without an index, or with strides, the vectors are one whole layer, and sums are
    returned. With an index they are several small layers, and one value per scalar is.
    """
    whole = not isinstance(index, Tensor)
    uniforms, batches = None, torch.ones_like(grad, dtype=torch.int32)
    if key is not None and now.batches is not None:
        low = index if isinstance(index, Tensor) else _row_major(index, grad)
        uniforms = uniform_at(low, key[0], key[1], compute_dtype(now.weight.dtype))
        batches = now.batches.clone()
    if whole:
        batches = batches.sum()
    after, p = advance(now, grad, uniforms, chances, applies, rates, rule)
    for held, new in zip(now.held(), after.held(), strict=True):
        held.copy_(new)
    p = torch.as_tensor(p).expand(grad.shape)
    return p.sum() if whole else p, batches


def _row_major(strides: Strides | None, like: Tensor) -> Tensor:
    """Return the row-major index of each scalar of a vector that is in memory order."""
    place = torch.arange(like.numel(), dtype=torch.int32, device=like.device)
    if strides is None:
        return place
    row = place // strides.inner
    outer = row // strides.middle
    within = place % strides.inner * strides.middle + row % strides.middle
    return outer * strides.pitch + within + strides.offset


def strides_of(layout: MemoryLayout, device: torch.device) -> Strides | None:
    """Return a layout as ``_move`` takes it: as ints it would be compiled anew for each."""
    if layout.counts:
        return None
    # Low words are enough: what is carried beyond them is the number of the block.
    words = (as_int32(number) for number in layout)
    return Strides(*(torch.full((), n, dtype=torch.int32, device=device) for n in words))


def _options() -> dict[str, Any]:
    """Return settings under which a kernel rounds as the separate operations do."""
    from torch._inductor import config

    wanted = {"emulate_precision_casts": True, "eager_numerics.division_rounding": True}
    known = config.get_config_copy() if hasattr(config, "get_config_copy") else {}
    return {name: value for name, value in wanted.items() if name in known}


def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=True, fullgraph=True, options=_options())


_NUMBERS = itertools.count()
_COMPILED: dict[Hashable, Callable[..., Any]] = {}
_FAILURES: list[UnavailableError] = []


def _call(kind: Hashable, function: Any, *arguments: Any) -> Any:
    """Call a function compiled for this kind of arguments, or as it is if that fails."""
    if kind in _COMPILED or _FAILURES:
        return _COMPILED.get(kind, function)(*arguments)
    # A code object of its own for each kind: the compiler allows each only a few variants.
    code = function.__code__.replace(co_name=f"{function.__name__}_{next(_NUMBERS)}")
    compiled = _compile(types.FunctionType(code, globals()))
    try:
        result = compiled(*arguments)
    except Exception as error:  # a compiler can fail in any way; the step must go on
        first = str(error).strip().splitlines()[:1] or [""]
        reason = UnavailableError(f"torch.compile failed: {type(error).__name__}: {first[0]}")
        _FAILURES.append(reason)
        give_up(False, reason)
        return function(*arguments)
    _COMPILED[kind] = compiled
    return result


def move(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Move vectors of scalars in place, as ``_move`` does."""
    now, _, index, key, chances, _, _, rule = arguments
    forms = (now.momentum_buffer is None, type(index), key is None, type(chances))
    result: tuple[Tensor, Tensor] = _call(
        (rule, now.weight.device, now.weight.dtype, *forms), _move, *arguments
    )
    return result


def _moments_of_vector(grad: Tensor) -> Tensor:
    size = grad.abs().to(accumulation_dtype(grad.device))
    total = size.sum()
    return torch.stack((total, (size - total / size.numel()).square().sum()))


def whole_moments(grad: Tensor) -> Tensor:
    """Return sum and sum of squared deviations of |g|, in two passes without temporaries."""
    if not grad.numel():
        return torch.zeros(2, dtype=accumulation_dtype(grad.device), device=grad.device)
    dense = memory_layout(grad) is not None
    vector = memory_vector(grad) if dense else grad.reshape(-1)
    result: Tensor = _call((grad.device, grad.dtype), _moments_of_vector, vector)
    return result


def worthwhile(plan: Plan, places: Sequence[int]) -> bool:
    """Return whether to compile the steps of some layers; raise if that is demanded and fails."""
    fused, weights = plan.options["fused"], [plan.layers[place].weight for place in places]
    if fused is False or not any(weight.device.type in DEVICES for weight in weights):
        return False
    if _FAILURES and fused:
        give_up(fused, _FAILURES[0])
    large = fused or sum(weight.numel() for weight in weights) >= WORTH_COMPILING
    return large and not _FAILURES


def as_tensor(number: float | Tensor, like: Tensor) -> Tensor:
    """Return a number as a tensor: a compiled function would be made anew for each float."""
    if isinstance(number, Tensor):
        return number
    return torch.full((), number, dtype=compute_dtype(like.dtype), device=like.device)


def as_tensors(rates: Rates, like: Tensor) -> Rates:
    """Return rates as tensors."""
    return Rates(*(as_tensor(number, like) for number in rates))
