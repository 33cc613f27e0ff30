# mypy: ignore-errors
# ruff: noqa: N803, SIM108 (Triton has no conditional expressions of tensors)
"""The arithmetic of ``update`` and ``probability`` in Triton's language, for ``gpu``.

A program moves one chunk of one layer. What it needs of a layer it finds in tables, so that one
launch serves all layers of a parameter group. Coins and probabilities are those of the eager
step: multiplications and additions are apart (``enable_fp_fusion=False``), divisions are rounded
correctly, and ``fma`` stands where torch's own kernels fuse.
"""

import torch
import triton
import triton.language as tl

from stochbatch.optim.coins import MULTIPLIERS, UNIFORM_BITS
from stochbatch.optim.probability import LARGEST_EXPONENT, POWER_OF_TWO
from stochbatch.optim.update import MOST_BATCHES

MEMORY = tl.constexpr(4)  # addresses of weight, grad_mean, batches, momentum_buffer
FACTS = tl.constexpr(7)  # size, place in the plan, whether it is plain, then its MemoryLayout
SEEN = tl.constexpr(3)  # two sums over a chunk, and the number of scalars in it

_M0, _M1, _M2 = (tl.constexpr(word) for word in MULTIPLIERS)
_SHIFT, _CELL = tl.constexpr(32 - UNIFORM_BITS), tl.constexpr(2.0**-UNIFORM_BITS)
_C0, _C1, _C2, _C3, _C4, _C5 = (tl.constexpr(c) for c in POWER_OF_TWO[torch.float32])
_LARGEST = tl.constexpr(LARGEST_EXPONENT)
_ROUNDS = tl.constexpr(1.5 * 2**23)  # added and taken away: rounds to an integer, half to even
_MOST = tl.constexpr(MOST_BATCHES - 1)


@triton.jit
def _mix(word, early):
    word = (word ^ (word >> 17)) * _M0 + early
    word = (word ^ (word >> 11)) * _M1
    word = (word ^ (word >> 15)) * _M2
    return word ^ (word >> 14)


@triton.jit
def _key(root, step):
    zero = (step ^ step).to(tl.uint32)
    word = _mix(root.to(tl.uint32) ^ step.to(tl.uint32), zero)
    return _mix(word ^ (step >> 32).to(tl.uint32), zero)


@triton.jit
def _probability(grad, centre, slope, shift):
    bits = (tl.abs(grad) - centre) * slope + shift
    limited = tl.minimum(tl.maximum(-bits, -_LARGEST), _LARGEST)
    whole = (limited + _ROUNDS) - _ROUNDS
    f = limited - whole
    power = ((((f * _C5 + _C4) * f + _C3) * f + _C2) * f + _C1) * f + _C0
    scale = ((whole.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    chance = tl.div_rn(1.0, power * scale + 1.0)
    return tl.where(bits == bits, chance, bits)  # a NaN stays one


@triton.jit(do_not_specialize=["first"])
def measure(grads, facts, chunks, partials, first, GRAD: tl.constexpr, BLOCK: tl.constexpr):
    """Sum |g| over each chunk, and its squared deviations from its mean there."""
    chunk = first + tl.program_id(0)
    layer, start = tl.load(chunks + 2 * chunk), tl.load(chunks + 2 * chunk + 1)
    size = tl.load(facts + FACTS * layer).to(tl.int32)
    place = start + tl.arange(0, BLOCK)
    here = place < size
    grad = tl.load(tl.load(grads + layer).to(tl.pointer_type(GRAD)) + place, mask=here, other=0.0)
    value = tl.abs(grad.to(tl.float32)).to(tl.float64)
    count = tl.minimum(size - start, BLOCK).to(tl.float64)
    total = tl.sum(value, 0)
    apart = tl.where(here, value - total / count, 0.0)
    tl.store(partials + SEEN * chunk, total)
    tl.store(partials + SEEN * chunk + 1, tl.sum(apart * apart, 0))
    tl.store(partials + SEEN * chunk + 2, count)


@triton.jit
def combine(partials, ranges, result, MOMENTS: tl.constexpr, BLOCK: tl.constexpr):
    """Add up the chunks of each layer, always in the same order."""
    layer = tl.program_id(0)
    begin, end = tl.load(ranges + 2 * layer), tl.load(ranges + 2 * layer + 1)
    total = tl.zeros([BLOCK], tl.float64)
    second = tl.zeros([BLOCK], tl.float64)
    count = tl.zeros([BLOCK], tl.float64)
    for at in range(begin, end, BLOCK):
        chunk = at + tl.arange(0, BLOCK)
        own = chunk < end
        total += tl.load(partials + SEEN * chunk, mask=own, other=0.0)
        second += tl.load(partials + SEEN * chunk + 1, mask=own, other=0.0)
        count += tl.load(partials + SEEN * chunk + 2, mask=own, other=0.0)
    whole = tl.sum(total, 0)
    if MOMENTS:  # Chan, Golub, LeVeque 1979: deviations between the chunks' means
        mean = whole / tl.maximum(tl.sum(count, 0), 1.0)
        for at in range(begin, end, BLOCK):
            chunk = at + tl.arange(0, BLOCK)
            own = chunk < end
            number = tl.load(partials + SEEN * chunk + 2, mask=own, other=1.0)
            apart = tl.load(partials + SEEN * chunk, mask=own, other=0.0) / number - mean
            second += tl.where(own, number * apart * apart, 0.0)
    tl.store(result + 2 * layer, whole)
    tl.store(result + 2 * layer + 1, tl.sum(second, 0))


@triton.jit(do_not_specialize=["first", "layers"])
def move(
    memory,
    grads,
    facts,
    chunks,
    partials,
    roots,  # [2, layers of the plan]
    scores,  # [3, layers of the plan]: centre, slope, shift
    step,
    applies,
    lr_tensor,
    first,
    layers,
    lr,
    probability,
    momentum,
    decay,
    WEIGHT: tl.constexpr,
    GRAD: tl.constexpr,
    COUNT: tl.constexpr,
    COIN: tl.constexpr,
    ADAPTIVE: tl.constexpr,
    MOMENTUM: tl.constexpr,
    NESTEROV: tl.constexpr,
    LINEAR: tl.constexpr,
    MAXIMIZE: tl.constexpr,
    DECAYS: tl.constexpr,
    LR_TENSOR: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Move the scalars of each chunk; sum up their probabilities and batches."""
    chunk = first + tl.program_id(0)
    layer, start = tl.load(chunks + 2 * chunk), tl.load(chunks + 2 * chunk + 1)
    facts += FACTS * layer
    size, own = tl.load(facts).to(tl.int32), tl.load(facts + 1)
    place = start + tl.arange(0, BLOCK)
    here = place < size
    writes = place < tl.where(tl.load(applies) != 0, size, 0)
    if LR_TENSOR:
        lr = tl.load(lr_tensor)

    weight_at = tl.load(memory + MEMORY * layer).to(tl.pointer_type(WEIGHT)) + place
    grad_at = tl.load(grads + layer).to(tl.pointer_type(GRAD)) + place
    weight = tl.load(weight_at, mask=here, other=0.0).to(tl.float32)
    grad = tl.load(grad_at, mask=here, other=0.0).to(tl.float32)
    if ADAPTIVE:
        centre = tl.load(scores + own)
        slope, shift = tl.load(scores + layers + own), tl.load(scores + 2 * layers + own)
        p = _probability(grad, centre, slope, shift)
    else:
        p = tl.zeros([BLOCK], tl.float32) + probability
    if MAXIMIZE:
        grad = -grad
    if DECAYS:
        grad = tl.fma(weight, tl.zeros([BLOCK], tl.float32) + decay, grad)

    drawn = writes
    direction = grad
    if COIN:
        low = place.to(tl.uint32)
        if tl.load(facts + 2) == 0:  # an element's index is not its place in memory
            middle, inner = tl.load(facts + 3).to(tl.int32), tl.load(facts + 4).to(tl.int32)
            row = place // inner
            index = (row // middle) * tl.load(facts + 5) + tl.load(facts + 6)
            low = (index + place % inner * middle + row % middle).to(tl.uint32)
        now = tl.load(step)
        one = _key(tl.load(roots + own), now)
        two = _key(tl.load(roots + layers + own), now)
        word = _mix(low ^ one, two)
        drawn = (word >> _SHIFT).to(tl.float32) * _CELL < tl.where(writes, p, 0.0)
        mean_at = tl.load(memory + MEMORY * layer + 1).to(tl.pointer_type(tl.float32)) + place
        batches_at = tl.load(memory + MEMORY * layer + 2).to(tl.pointer_type(COUNT)) + place
        grad_mean = tl.load(mean_at, mask=here, other=0.0)
        batches = tl.load(batches_at, mask=here, other=1).to(tl.int32)
        direction = tl.div_rn(grad - grad_mean, batches.to(tl.float32)) + grad_mean
        tl.store(mean_at, tl.where(drawn, 0.0, direction), mask=writes)
        tl.store(batches_at, tl.where(drawn, 1, tl.minimum(batches, _MOST) + 1), mask=writes)
        total = tl.sum(tl.where(here, batches, 0).to(tl.float64), 0)
    else:
        total = tl.minimum(size - start, BLOCK).to(tl.float64)
    if MOMENTUM:
        buffer_at = tl.load(memory + MEMORY * layer + 3).to(tl.pointer_type(tl.float32)) + place
        factor = tl.zeros([BLOCK], tl.float32) + momentum
        rolled = tl.load(buffer_at, mask=here, other=0.0) * factor + direction
        tl.store(buffer_at, rolled, mask=drawn)
        if NESTEROV:
            direction = tl.fma(rolled, factor, direction)
        else:
            direction = rolled
    if LINEAR:
        direction = direction * batches.to(tl.float32)
    if not COIN:
        direction = direction * p
    moved = tl.fma(direction, tl.zeros([BLOCK], tl.float32) - lr, weight)
    tl.store(weight_at, moved.to(WEIGHT), mask=drawn)
    tl.store(partials + SEEN * chunk, tl.sum(tl.where(here, p, 0.0).to(tl.float64), 0))
    tl.store(partials + SEEN * chunk + 1, total)
    tl.store(partials + SEEN * chunk + 2, tl.minimum(size - start, BLOCK).to(tl.float64))
