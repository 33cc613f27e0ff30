"""One step over all layers, in plain torch, piece by piece.

Nothing here waits for the device: what depends on the gradients (the statistics, whether
the step counts, the step number and so the coins) stays a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from stochbatch.optim.coins import BLOCK_BITS, stream_keys, stream_roots, uniform_at
from stochbatch.optim.kernels import compiled
from stochbatch.optim.pieces import (
    ElementIndex,
    MemoryLayout,
    Piece,
    memory_layout,
    memory_vector,
    pieces,
)
from stochbatch.optim.probability import (
    Moments,
    Scores,
    accumulation_dtype,
    add_up,
    compute_dtype,
    layer_scores,
    measured,
)
from stochbatch.optim.roster import Bundle, Layer, Roster
from stochbatch.optim.state import TALLY
from stochbatch.optim.update import Rates, Scalars, Verdict, advance


def judge(layers: Sequence[Layer], moments: Moments) -> Verdict:
    """Decide whether the step counts."""
    if layers[0].group["skip_nonfinite"]:
        counts = moments.all_finite()
        nonfinite = ~counts
    else:
        counts = torch.ones_like(moments.mean[0], dtype=torch.bool)
        nonfinite = torch.zeros_like(counts)
    # A checkpoint library steps once with zero gradients and zero rates to make an
    # optimizer allocate its state. That is no step of the training.
    idle = _all_zero([layer.group["lr"] for layer in layers], counts)
    if idle is not None:
        counts = counts & ~(idle & moments.all_zero())
    return Verdict(counts, nonfinite)


def _all_zero(rates: Sequence[float | Tensor], like: Tensor) -> Tensor | None:
    """Return whether all rates are 0, as a tensor; None where that is known to be false."""
    idle = torch.ones_like(like)
    for rate in {id(rate): rate for rate in rates}.values():
        if isinstance(rate, Tensor):
            idle = idle & (rate.to(like.device, non_blocking=True).reshape(()) == 0)
        elif rate != 0:
            return None
    return idle


class _Coins:
    """The uniforms of one layer in one step, for any piece of it."""

    def __init__(self, layer: Layer, keys: tuple[Tensor, Tensor], step: Tensor) -> None:
        self.layer = layer
        self.step = step
        self.keys: dict[int, tuple[Tensor, Tensor]] = {0: keys}

    def keys_of(self, block: int) -> tuple[Tensor, Tensor]:
        if block not in self.keys:
            device = self.layer.grad.device
            index = torch.full((), self.layer.index, device=device)
            roots = stream_roots(self.layer.group["seed"], index, block)
            first, second = stream_keys(roots, self.step.to(device)).unbind()
            self.keys = {block: (first, second)}
        return self.keys[block]

    def uniform(self, piece: Piece, index: ElementIndex, dtype: torch.dtype) -> Tensor:
        return uniform_at(index.low(piece), *self.keys_of(index.block(piece)), dtype)


class _Step(NamedTuple):
    """What all layers share in one step."""

    number: Tensor
    verdict: Verdict
    scores: dict[torch.dtype, Scores]
    keys: Tensor
    compiles: bool
    """Whether a compiled function moves vectors."""


def _tensor(number: float | Tensor, layer: Layer) -> Tensor:
    """Return a number as a tensor: a compiled function would be made anew for each float."""
    if isinstance(number, Tensor):
        return number
    dtype = compute_dtype(layer.grad.dtype)
    return torch.full((), number, dtype=dtype, device=layer.grad.device)


def _as_tensors(rates: Rates, layer: Layer) -> Rates:
    return Rates(*(_tensor(number, layer) for number in rates))


def _common_layout(layer: Layer) -> MemoryLayout | None:
    """Return the memory layout that a layer's tensors share; None if they cannot be vectors."""
    tensors, window = layer.tensors(), layer.window
    if any(tensor.stride() != tensors[0].stride() for tensor in tensors):
        return None
    if window and window.offset >> BLOCK_BITS != window.last >> BLOCK_BITS:
        return None
    return memory_layout(tensors[0], window) if tensors[0].numel() <= compiled.LARGEST else None


def _move_one(layer: Layer, place: int, step: _Step, index: ElementIndex) -> Tensor:
    """Move one layer; return the sums of its probabilities and of its batches."""
    device, dtype = layer.grad.device, compute_dtype(layer.grad.dtype)
    fixed = layer.group["probability"]
    scores = Scores(*(vector[place].to(device) for vector in step.scores[dtype]))
    first, second = step.keys[:, place].to(device)
    coins = _Coins(layer, (first, second), step.number)
    layout = _common_layout(layer) if step.compiles else None
    if layout:
        first, second = coins.keys_of(layout.offset >> BLOCK_BITS)
        weight, grad, *memory = (memory_vector(tensor) for tensor in layer.tensors())
        sums = compiled.move(
            Scalars(weight, *memory),
            grad,
            compiled.strides_of(layout, device),
            (first, second),
            scores if fixed is None else _tensor(fixed, layer),
            step.verdict.on(device),
            _as_tensors(layer.rates, layer),
            layer.rule,
        )
        return torch.stack([total.to(torch.float32) for total in sums])
    chances, batches = [], []
    for piece in pieces(layer.tensors(), layer.window):
        weight, grad, *memory = piece.tensors
        batches.append(memory[1].sum())
        after, chance = advance(
            Scalars(weight, *memory),
            grad,
            coins.uniform(piece, index, dtype),
            scores if fixed is None else fixed,
            step.verdict.on(device),
            layer.rates,
            layer.rule,
        )
        for held, new in zip((weight, *memory), after.held(), strict=True):
            held.copy_(new)
        if isinstance(chance, Tensor):
            chances.append(chance.sum())
    count = torch.stack(batches).sum().to(torch.float32)
    total = torch.stack(chances).sum() if chances else torch.zeros_like(count)
    return torch.stack((total.to(torch.float32), count))


def _move_together(layers: Sequence[Layer], bundle: Bundle, step: _Step) -> Tensor:
    """Move small layers; return the sums of their probabilities and batches, one row each."""
    members = [layers[place] for place in bundle.places]
    head = members[0]
    device, dtype = head.grad.device, compute_dtype(head.grad.dtype)
    columns = list(zip(*(member.tensors() for member in members), strict=True))
    weight, grad, *memory = (torch.cat([t.reshape(-1) for t in column]) for column in columns)
    fixed = head.group["probability"]
    scores = Scores(*(vector.to(device)[bundle.owner] for vector in step.scores[dtype]))
    first, second = step.keys.to(device)[:, bundle.owner]
    now, verdict, chance = Scalars(weight, *memory), step.verdict.on(device), fixed
    after, batches = now, memory[1]
    if step.compiles:  # in place
        chances = scores if fixed is None else _tensor(fixed, head)
        rates = _as_tensors(head.rates, head)
        chance, batches = compiled.move(
            now, grad, bundle.low, (first, second), chances, verdict, rates, head.rule
        )
    else:
        coins = uniform_at(bundle.low, first, second, dtype)
        chances = scores if fixed is None else fixed
        after, chance = advance(now, grad, coins, chances, verdict, head.rates, head.rule)
    del columns[1]  # gradients are not changed
    for held, new in zip(columns, after.held(), strict=True):
        parts = torch.split_with_sizes(new, bundle.sizes)
        shaped = [part.view(own.shape) for part, own in zip(parts, held, strict=True)]
        torch._foreach_copy_(list(held), shaped)
    observed = torch.zeros(len(weight), 2, dtype=dtype, device=device)
    observed[:, 0] = chance
    observed[:, 1] = batches
    sums = torch.zeros(len(members), 2, dtype=accumulation_dtype(device), device=device)
    return sums.index_add_(0, bundle.member, observed.to(sums.dtype)).to(torch.float32)


class Account(NamedTuple):
    """Where the running means of a layer are kept."""

    tally: Tensor
    fixed: float | None
    """The probability, if it is the same for all scalars."""


def account(layer: Layer) -> Account:
    """Return the account of a layer."""
    return Account(layer.state[TALLY], layer.group["probability"])


def record(accounts: Sequence[Account], sums: Tensor, sizes: Tensor, counts: Tensor) -> None:
    """Enter a step into the running means of layers, unless it did not count.

    Args:
        accounts: of the layers.
        sums: of their probabilities and of their batches, one row a layer.
        sizes: their numbers of scalars.
        counts: whether the step counted.
    """
    tallies = [each.tally for each in accounts]
    tally = torch.stack([each.to(sums.device) for each in tallies])
    observed = (sums / sizes[:, None].to(sums.dtype)).to(tally.dtype)
    for row, each in zip(observed, accounts, strict=True):
        if each.fixed is not None:
            row[0].fill_(each.fixed)
    steps = tally[:, :1] + 1
    means = tally[:, 1:] + (observed - tally[:, 1:]) / steps
    after = torch.where(counts, torch.cat((steps, means), dim=1), tally)
    torch._foreach_copy_(tallies, list(after.unbind()))


class Taken(NamedTuple):
    """What a step did."""

    verdict: Verdict
    sums: Tensor
    """Of the probabilities and of the batches of what moved here, one row a layer."""


def local_sums(layers: Sequence[Layer], roster: Roster, compiles: bool) -> Tensor:
    """Return sum and sum of squared deviations of |g| of what is here of each layer."""
    grads, like = [layer.grad for layer in layers], roster.layers.size
    return add_up(grads, like, compiled.whole_moments) if compiles else add_up(grads, like)


def take_step(
    layers: Sequence[Layer],
    roster: Roster,
    number: Tensor,
    sums_of_grads: Tensor,
    compiles: bool,
) -> Taken:
    """Move the scalars of all layers (none of them empty as a whole).

    Args:
        layers: the layers.
        roster: facts about them.
        number: the step's.
        sums_of_grads: what `local_sums` says of the whole layers.
        compiles: whether a compiled function moves vectors.
    """
    moments = measured(sums_of_grads, roster.layers.size)
    verdict = judge(layers, moments)
    scores = layer_scores(moments, roster.layers)
    dtypes = {compute_dtype(layer.grad.dtype) for layer in layers}
    in_dtypes = {dtype: scores.in_dtype(dtype) for dtype in dtypes}
    step = _Step(number, verdict, in_dtypes, stream_keys(roster.roots, number), compiles)
    indices = {device: ElementIndex(device) for device in {x.grad.device for x in layers}}
    sums: dict[int, Tensor] = {}
    for place in roster.single:
        layer = layers[place]
        sums[place] = _move_one(layer, place, step, indices[layer.grad.device])
    for bundle in roster.bundles:
        sums.update(zip(bundle.places, _move_together(layers, bundle, step), strict=True))
    nothing = torch.zeros(2, dtype=torch.float32, device=number.device)
    rows = [sums.get(place, nothing).to(number.device) for place in range(len(layers))]
    return Taken(verdict, torch.stack(rows))
