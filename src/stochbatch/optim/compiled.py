"""The eager step's own functions through ``torch.compile``, for devices other than the CPU.

A layer is one kernel: its probabilities, coins and update in one pass over its memory.
Sizes are dynamic and rates are tensors, so that one compilation serves every layer of
every network with the same options. (On a CPU this is no faster than the eager step;
``native`` is what runs there.)
"""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stochbatch.optim.coins import as_int32, uniform_at
from stochbatch.optim.fusing import UnavailableError
from stochbatch.optim.pieces import MemoryLayout, memory_layout, memory_vector
from stochbatch.optim.probability import Scores, accumulation_dtype, compute_dtype
from stochbatch.optim.roster import Layer, Roster
from stochbatch.optim.update import Rates, Rule, Scalars, Verdict, advance

Mover = Callable[..., tuple[Tensor, Tensor]]

DEVICES = ("cuda", "xpu")
"""Types of device for which steps are compiled."""

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
    key: tuple[Tensor, Tensor],
    chances: Scores | Tensor,
    verdict: Verdict,
    rates: Rates,
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
    after, p = advance(now, grad, uniforms, chances, verdict, rates, rule)
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


@functools.cache
def _compiled_for(kind: Hashable) -> Mover:
    # A code object of its own for each kind: the compiler allows each only a few variants.
    code = _move.__code__.replace(co_name=f"_move_{next(_NUMBERS)}")
    own = types.FunctionType(code, globals())
    return torch.compile(own, dynamic=True, fullgraph=True, options=_options())


_NUMBERS = itertools.count()


def _dispatch(*arguments: Any) -> tuple[Tensor, Tensor]:
    now, _, index, _, chances, _, _, rule = arguments
    forms = (now.momentum_buffer is None, type(index), type(chances))
    return _compiled_for((rule, now.weight.device, now.weight.dtype, *forms))(*arguments)


def _moments_of_vector(grad: Tensor) -> Tensor:
    size = grad.abs().to(accumulation_dtype(grad.device))
    total = size.sum()
    return torch.stack((total, (size - total / size.numel()).square().sum()))


@functools.cache
def _compiled_moments() -> Callable[[Tensor], Tensor]:
    return torch.compile(_moments_of_vector, dynamic=True, fullgraph=True, options=_options())


def whole_moments(grad: Tensor) -> Tensor:
    """Return sum and sum of squared deviations of |g|, in two passes without temporaries."""
    if not grad.numel():
        return torch.zeros(2, dtype=accumulation_dtype(grad.device), device=grad.device)
    dense = memory_layout(grad) is not None
    return _compiled_moments()(memory_vector(grad) if dense else grad.reshape(-1))


class Variant(NamedTuple):
    """What a compilation depends on."""

    device: torch.device
    dtype: torch.dtype
    rule: Rule
    momentum: bool
    fixed: bool
    form: str
    """Which index: ``"bundle"``, ``"contiguous"`` or ``"strided"``."""


def variants(layers: Sequence[Layer], roster: Roster) -> set[Variant]:
    """Return the variants that a step of these layers needs."""
    together = {place for bundle in roster.bundles for place in bundle.places}
    result = set()
    for place, layer in enumerate(layers):
        layout = memory_layout(layer.grad, layer.window)
        counts = layout is not None and layout.counts
        form = "bundle" if place in together else "contiguous" if counts else "strided"
        group = layer.group
        result.add(
            Variant(
                layer.grad.device,
                layer.weight.dtype,
                layer.rule,
                bool(group["momentum"]),
                group["probability"] is not None,
                form,
            )
        )
    return result


@functools.cache
def _try(variant: Variant) -> UnavailableError | None:
    """Move scalars that belong to nobody, so that a failure comes before any real ones move."""
    try:
        _move_nobody(variant)
    except Exception as error:  # a compiler can fail in any way; the step must go on
        first = str(error).strip().splitlines()[:1] or [""]
        return UnavailableError(f"torch.compile failed: {type(error).__name__}: {first[0]}")
    return None


def _move_nobody(variant: Variant) -> None:
    count, device = 1 << 14, variant.device
    weight, grad = torch.zeros(2, count, dtype=variant.dtype, device=device).unbind()
    mean, buffer = torch.zeros(2, count, dtype=compute_dtype(weight.dtype), device=device).unbind()
    batches = torch.ones_like(weight, dtype=torch.int32)
    now = Scalars(weight, mean, batches, buffer if variant.momentum else None)
    zero, no = mean.new_zeros(()), torch.zeros((), dtype=torch.bool, device=device)
    word = no.to(torch.int32)
    verdict = Verdict(no, no)
    chances = zero if variant.fixed else Scores(zero, zero, zero)
    index: Tensor | Strides | None = None
    if variant.form == "bundle":
        index = torch.arange(count, dtype=torch.int32, device=device)
        word = word.expand(count).contiguous()
        if isinstance(chances, Scores):
            chances = Scores(*(score.expand(count).contiguous() for score in chances))
    elif variant.form == "strided":
        index = strides_of(MemoryLayout(2, 2, 4), device)
    rates = Rates(zero, zero.clone(), zero.clone())
    _dispatch(now, grad, index, (word, word.clone()), chances, verdict, rates, variant.rule)
    whole_moments(grad)


def mover(needed: Iterable[Variant]) -> Mover:
    """Return the compiled function; raise ``UnavailableError`` if a variant cannot be had."""
    for variant in needed:
        failure = _try(variant)
        if failure:
            raise failure
    return _dispatch
