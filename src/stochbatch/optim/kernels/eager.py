"""A step in plain torch, piece by piece.

Nothing here waits for the device: what depends on the gradients (the statistics, whether
the step counts, the step number and so the coins) stays a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from stochbatch.optim.coins import BLOCK_BITS, stream_keys, uniform_at
from stochbatch.optim.kernels import compiled
from stochbatch.optim.layers import Layer
from stochbatch.optim.pieces import (
    Coins,
    MemoryLayout,
    Piece,
    element_index,
    memory_layout,
    memory_vector,
    pieces,
)
from stochbatch.optim.plan import Plan
from stochbatch.optim.probability import (
    Moments,
    Scores,
    accumulation_dtype,
    compute_dtype,
    sums_of,
)
from stochbatch.optim.update import advance, rates_of, rule_of

SMALL = 1 << 14
"""Layers with fewer scalars are moved together."""

TOGETHER = 1 << 15
"""Number of scalars at which a bundle is full: it is copied, so it bounds the temporaries."""


class Bundle(NamedTuple):
    """Small layers of one group and dtype on one device, moved together as one vector."""

    places: list[int]
    """Their places among the layers of the step."""
    sizes: list[int]
    low: Tensor
    """Index of each scalar within its layer."""
    owner: Tensor
    """Place of each scalar's layer among the layers of the step."""
    member: Tensor
    """Place of each scalar's layer among the layers of the bundle."""
    rows: Tensor
    """The places as a tensor."""


class Division(NamedTuple):
    """The layers that plain torch moves; an empty shard is not moved at all."""

    places: list[int]
    single: list[int]
    """Places of the layers that are moved one by one."""
    bundles: list[Bundle]
    compiles: bool
    """Whether a compiled function moves vectors."""


def divide(plan: Plan, places: list[int], compiles: bool) -> Division:
    """Return which of the layers at ``places`` are moved one by one, and which together."""
    layers = plan.layers
    single: list[int] = []
    alike: dict[tuple[object, ...], list[list[int]]] = {}
    for place in places:
        layer = layers[place]
        size = layer.weight.numel()
        if size == 0:
            continue
        if size >= SMALL or (layer.window and layer.window.last >> BLOCK_BITS):
            single.append(place)
            continue
        grad = plan.grads[place]
        parts = alike.setdefault(
            (id(layer.group), layer.weight.dtype, grad.dtype, grad.device), [[]]
        )
        if sum(layers[other].weight.numel() for other in parts[-1]) + size > TOGETHER:
            parts.append([])
        parts[-1].append(place)
    full = [members for parts in alike.values() for members in parts]
    single += [members[0] for members in full if len(members) == 1]
    bundles = [_bundle(plan, members) for members in full if len(members) > 1]
    return Division(places, single, bundles, compiles)


def _bundle(plan: Plan, places: list[int]) -> Bundle:
    layers = [plan.layers[place] for place in places]
    device = layers[0].weight.device
    sizes = [layer.weight.numel() for layer in layers]
    lengths = torch.tensor(sizes, device=device)
    member = torch.arange(len(places), device=device).repeat_interleave(
        lengths,
        output_size=sum(sizes),  # which a device would have to be asked for
    )
    owner = torch.tensor(places, device=device)[member]
    rows = torch.tensor(places, device=plan.facts.size.device)
    return Bundle(places, sizes, torch.cat([_low(layer) for layer in layers]), owner, member, rows)


def _low(layer: Layer) -> Tensor:
    """Return the low words of a small layer's element indices, as a vector."""
    device, size = layer.weight.device, layer.weight.numel()
    if layer.window is None:
        return torch.arange(size, dtype=torch.int32, device=device)
    shard = torch.empty(layer.window.part, dtype=torch.int8, device=device)
    piece = Piece(layer.window.offset, layer.window.strides, (shard,))
    return element_index(device).low(piece).reshape(-1)


def measure(plan: Plan, division: Division, sums: Tensor | None) -> Tensor:
    """Return what ``kernels.measure`` does; ``sums`` has the layers not measured here."""
    moments = compiled.whole_moments if division.compiles else sums_of
    like = plan.facts.size
    columns = [like] * len(plan.layers) if sums is None else [*sums.to(like).unbind(1)]
    for place in division.places:
        columns[place] = moments(plan.grads[place]).to(like)
    return torch.stack(columns, dim=1)


class Verdict(NamedTuple):
    """What is decided for the step as a whole: tensors of one boolean each."""

    applies: Tensor
    """Whether the step counts at all; if not, everything stays as it was."""
    nonfinite: Tensor
    """Whether it does not count because a gradient has an inf or a NaN."""


def decide(plan: Plan, moments: Moments) -> Verdict:
    """Decide whether the step counts."""
    if plan.options["skip_nonfinite"]:
        applies = moments.mean.isfinite().all()  # a sum of |g| tells of any inf or NaN in it
        nonfinite = ~applies
    else:
        applies = torch.ones_like(moments.mean[0], dtype=torch.bool)
        nonfinite = torch.zeros_like(applies)
    # A checkpoint library steps once with zero gradients and zero rates to make an
    # optimizer allocate its state. That is no step of the training.
    if plan.seats is not None and plan.shards.alike is not None:
        applies = applies & plan.shards.alike.to(applies.device)
    if plan.found_inf is not None:
        applies = applies & (plan.found_inf.to(applies.device).reshape(()) == 0)
        nonfinite = torch.zeros_like(applies)
    idle = _all_zero([layer.group["lr"] for layer in plan.layers], applies)
    if idle is not None:
        applies = applies & ~(idle & (moments.mean == 0).all())
    return Verdict(applies, nonfinite)


def _all_zero(rates: Sequence[float | Tensor], like: Tensor) -> Tensor | None:
    """Return whether all rates are 0, as a tensor; None where that is known to be false."""
    idle = torch.ones_like(like)
    for rate in {id(rate): rate for rate in rates}.values():
        if isinstance(rate, Tensor):
            idle = idle & (rate.to(like.device, non_blocking=True).reshape(()) == 0)
        elif rate != 0:
            return None
    return idle


def move(plan: Plan, division: Division, scores: Scores, verdict: Verdict, seen: Tensor) -> None:
    """Move the scalars of the division's layers, if the step counts.

    ``scores`` are those of all layers of the plan. ``seen``, [layers, 2], receives the sums of
    probabilities and batches of what moved here.
    """
    dtypes = {compute_dtype(plan.layers[place].weight.dtype) for place in division.places}
    in_dtypes = {dtype: scores.in_dtype(dtype) for dtype in dtypes}
    number = plan.step.to(seen.device)
    step = _Step(plan, number, verdict, in_dtypes, stream_keys(plan.roots, number), division)
    for place in division.single:
        seen[place] = _move_one(step, place).to(seen)
    for bundle in division.bundles:
        seen[bundle.rows] = _move_together(step, bundle).to(seen)


class _Step(NamedTuple):
    """What all layers share in one step."""

    plan: Plan
    number: Tensor
    verdict: Verdict
    scores: dict[torch.dtype, Scores]
    keys: Tensor
    division: Division


def _common_layout(layer: Layer, grad: Tensor) -> MemoryLayout | None:
    """Return the memory layout that a layer's tensors share; None if they cannot be vectors."""
    tensors, window = [*layer.scalars.held(), grad], layer.window
    if any(tensor.stride() != tensors[0].stride() for tensor in tensors):
        return None
    if window and window.offset >> BLOCK_BITS != window.last >> BLOCK_BITS:
        return None
    return memory_layout(tensors[0], window) if tensors[0].numel() <= compiled.LARGEST else None


def _move_one(step: _Step, place: int) -> Tensor:
    """Move one layer; return the sums of its probabilities and of its batches."""
    layer, grad = step.plan.layers[place], step.plan.grads[place]
    device, dtype = layer.weight.device, compute_dtype(layer.weight.dtype)
    fixed = layer.group["probability"]
    rates, rule = rates_of(layer.group, layer.weight), rule_of(layer.group)
    applies = step.verdict.applies.to(device)
    scores = Scores(*(vector[place].to(device) for vector in step.scores[dtype]))
    draws = layer.scalars.batches is not None
    keys = step.keys[:, place].to(device)
    coins = Coins(layer.group["seed"], layer.member.number, step.number, keys)
    layout = _common_layout(layer, grad) if step.division.compiles else None
    if layout:
        sums = compiled.move(
            layer.scalars.replaced(memory_vector(held) for held in layer.scalars.held()),
            memory_vector(grad),
            compiled.strides_of(layout, device),
            coins.keys_of(layout.offset >> BLOCK_BITS).unbind() if draws else None,
            scores if fixed is None else compiled.as_tensor(fixed, layer.weight),
            applies,
            compiled.as_tensors(rates, layer.weight),
            rule,
        )
        return torch.stack([total.to(torch.float32) for total in sums])
    chances, batches = [], []
    for piece in pieces([*layer.scalars.held(), grad], layer.window):
        *held, own = piece.tensors
        now = layer.scalars.replaced(held)
        if now.batches is not None:
            batches.append(now.batches.sum())
        uniforms = coins.uniform(piece, dtype) if draws else None
        chosen = scores if fixed is None else fixed
        after, chance = advance(now, own, uniforms, chosen, applies, rates, rule)
        for old, new in zip(held, after.held(), strict=True):
            old.copy_(new)
        if isinstance(chance, Tensor):
            chances.append(chance.sum())
    size = torch.full((), grad.numel(), dtype=torch.float32, device=device)
    count = torch.stack(batches).sum().to(torch.float32) if batches else size
    total = torch.stack(chances).sum().to(torch.float32) if chances else torch.zeros_like(size)
    return torch.stack((total, count))


def _move_together(step: _Step, bundle: Bundle) -> Tensor:
    """Move small layers; return the sums of their probabilities and batches, one row each."""
    layers = [step.plan.layers[place] for place in bundle.places]
    head = layers[0]
    device, dtype = head.weight.device, compute_dtype(head.weight.dtype)
    fixed = head.group["probability"]
    rates, rule = rates_of(head.group, head.weight), rule_of(head.group)
    applies = step.verdict.applies.to(device)
    columns = list(zip(*(layer.scalars.held() for layer in layers), strict=True))
    now = head.scalars.replaced(torch.cat([t.reshape(-1) for t in column]) for column in columns)
    grad = torch.cat([step.plan.grads[place].reshape(-1) for place in bundle.places])
    scores = Scores(*(vector.to(device)[bundle.owner] for vector in step.scores[dtype]))
    chances: Scores | Tensor | float = scores if fixed is None else fixed
    keys = None
    if now.batches is not None:
        first, second = step.keys.to(device)[:, bundle.owner]
        keys = (first, second)
    after, batches = now, now.batches
    chance: Tensor | float
    if step.division.compiles:  # in place
        if isinstance(chances, float):
            chances = compiled.as_tensor(chances, head.weight)
        rates = compiled.as_tensors(rates, head.weight)
        chance, batches = compiled.move(now, grad, bundle.low, keys, chances, applies, rates, rule)
    else:
        uniforms = uniform_at(bundle.low, *keys, dtype) if keys else None
        after, chance = advance(now, grad, uniforms, chances, applies, rates, rule)
    for held, new in zip(columns, after.held(), strict=True):
        parts = torch.split_with_sizes(new, bundle.sizes)
        shaped = [part.view(own.shape) for part, own in zip(parts, held, strict=True)]
        torch._foreach_copy_(list(held), shaped)
    observed = torch.ones(len(grad), 2, dtype=dtype, device=device)
    observed[:, 0] = chance
    if batches is not None:
        observed[:, 1] = batches
    sums = torch.zeros(len(layers), 2, dtype=accumulation_dtype(device), device=device)
    return sums.index_add_(0, bundle.member, observed.to(sums.dtype)).to(torch.float32)
