"""The eager step's own functions through ``torch.compile``, for devices other than the CPU.

A layer is one kernel: its probabilities, coins and update in one pass over its memory.
Sizes are dynamic and rates are tensors, so that one compilation serves every layer of
every network with the same options. (On a CPU this is no faster than the eager step;
``native`` is what runs there.)
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stochbatch.optim.coins import uniform_at
from stochbatch.optim.fusing import UnavailableError
from stochbatch.optim.pieces import MemoryLayout
from stochbatch.optim.probability import Scores
from stochbatch.optim.update import Rule, Scalars, Verdict, advance

Mover = Callable[..., tuple[Tensor, Tensor]]

DEVICES = ("cuda", "xpu")
"""Types of device for which steps are compiled."""

LARGEST = 1 << 31
"""Layers with more scalars are moved piece by piece: their indices need more than one word."""


class Strides(NamedTuple):
    """A memory layout that is not contiguous, in tensors of one integer each."""

    middle: Tensor
    inner: Tensor


def _move(
    now: Scalars,
    grad: Tensor,
    index: Tensor | Strides | None,
    key: tuple[Tensor, Tensor],
    chances: Scores | Tensor,
    verdict: Verdict,
    lr: Tensor,
    rule: Rule,
) -> tuple[Tensor, Tensor]:
    """Move vectors of scalars in place; say what their probabilities and batches were.

    Without an index, or with strides, the vectors are one whole layer, and sums are
    returned. With an index they are several small layers, and one value a scalar is.
    """
    whole = not isinstance(index, Tensor)
    low = index if isinstance(index, Tensor) else _row_major(index, grad)
    uniforms = uniform_at(low, key[0], key[1], now.grad_mean.dtype)
    batches = now.batches.sum() if whole else now.batches.clone()
    after, p = advance(now, grad, uniforms, chances, verdict, lr, rule)
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
    return (outer * strides.inner + place % strides.inner) * strides.middle + row % strides.middle


def strides_of(layout: MemoryLayout, device: torch.device) -> Strides | None:
    """Return a layout as ``_move`` takes it: as ints it would be compiled anew for each."""
    if layout.middle == 1:
        return None
    return Strides(*(torch.full((), n, dtype=torch.int32, device=device) for n in layout))


def _options() -> dict[str, Any]:
    """Return settings under which a kernel rounds as the separate operations do."""
    from torch._inductor import config

    wanted = {"emulate_precision_casts": True, "eager_numerics.division_rounding": True}
    known = config.get_config_copy() if hasattr(config, "get_config_copy") else {}
    return {name: value for name, value in wanted.items() if name in known}


@functools.cache
def _compiled_for(rule: Rule) -> Mover:
    # A code object of its own for each rule: the compiler allows each only a few variants.
    code = _move.__code__.replace(co_name=f"_move_{len(_RULES)}")
    _RULES.append(rule)
    own = types.FunctionType(code, globals())
    return torch.compile(own, dynamic=True, fullgraph=True, options=_options())


_RULES: list[Rule] = []


def _dispatch(*arguments: Any) -> tuple[Tensor, Tensor]:
    return _compiled_for(arguments[-1])(*arguments)


@functools.cache
def _prepare(device: torch.device) -> UnavailableError | None:
    try:
        _try(_dispatch, device)
    except Exception as error:  # a compiler can fail in any way; the step must go on
        first = str(error).strip().splitlines()[:1] or [""]
        return UnavailableError(f"torch.compile failed: {type(error).__name__}: {first[0]}")
    return None


def _try(mover: Mover, device: torch.device) -> None:
    """Move a few scalars that belong to nobody, so that failures come before any real ones."""
    count = 1 << 14
    weight, grad, grad_mean = torch.zeros(3, count, device=device).unbind()
    now = Scalars(weight, grad_mean, torch.ones_like(weight, dtype=torch.int32))
    zero, no = torch.zeros((), device=device), torch.zeros((), dtype=torch.bool, device=device)
    key = (no.to(torch.int32), no.to(torch.int32))
    low = torch.arange(count, dtype=torch.int32, device=device)
    scores, verdict = Scores(zero, zero, zero), Verdict(no, no, None)
    for index in (low, None):
        mover(now, grad, index, key, scores, verdict, zero, Rule())


def mover(device: torch.device) -> Mover:
    """Return the compiled function; raise ``UnavailableError`` if there is none. Tried once."""
    failure = _prepare(device)
    if failure:
        raise failure
    return _dispatch
