"""Uniform numbers as a function, not a stream.

The number of a scalar is a hash of (seed, step, index of the parameter, index of the
element). No generator is read or advanced, so the numbers are the same on any device,
in any chunking or sharding, and after a resume.

The generator. A 32-bit mixing function (four xor-shifts, three multiplications; the
constants of "triple32", C. Wellons, hash-prospector, 2018) is used twice:

* as a chain over the 32-bit words of seed, parameter index and step, run twice from two
  starting points, which gives a 64-bit key for each parameter and step;
* over the element index, with one word of the key xored in before the
  first round and the other added after its multiplication.

Two rounds are not enough: the same construction on "lowbias32" fails a chi-square test
of uniformity from 2**20 neighbouring elements on; this one passes at 2**22.

It was chosen over Philox because it needs only 32-bit multiplications, which every
vector unit has and which plain integer tensors express; Philox's 64-bit products do not
vectorise there. Within one (seed, step, parameter) the hash is a permutation of 2**32
elements, which is as many as a parameter may have. Steps run to 2**63.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from stochbatch.checks import check_seed

MOST_ELEMENTS = 1 << 32
"""Of a parameter."""

UNIFORM_BITS = 24
"""A uniform is a multiple of ``2**-UNIFORM_BITS``, exact in float32."""

_CHAIN_STARTS = (0x243F6A88, 0x13198A2E)  # arbitrary constants: digits of pi


def as_int32(word: int) -> int:
    """Return the signed 32-bit integer with the same low 32 bits as ``word``."""
    word &= 0xFFFFFFFF
    return word - (1 << 32) if word >> 31 else word


MULTIPLIERS = (0xED5AD4BB, 0xAC4C1B51, 0x31848BAB)
_SIGNED = tuple(map(as_int32, MULTIPLIERS))


def _shift_right(word: Tensor, places: int) -> Tensor:
    # Torch's shift of a signed integer copies the sign bit: mask the copies away.
    return (word >> places).bitwise_and_((1 << (32 - places)) - 1)


def _mix_(word: Tensor, early: Tensor | int = 0) -> Tensor:
    """Mix 32-bit words in place; ``early`` is added (modulo 2**32) in the first of three rounds."""
    word.bitwise_xor_(_shift_right(word, 17)).mul_(_SIGNED[0]).add_(early)
    word.bitwise_xor_(_shift_right(word, 11)).mul_(_SIGNED[1])
    word.bitwise_xor_(_shift_right(word, 15)).mul_(_SIGNED[2])
    return word.bitwise_xor_(_shift_right(word, 14))


def _extend(chain: Tensor, word: Tensor | int) -> Tensor:
    return _mix_(chain ^ word)


def _words(number: Tensor) -> tuple[Tensor, Tensor]:
    return number.to(torch.int32), (number >> 32).to(torch.int32)


def stream_roots(seed: int, indices: Tensor) -> Tensor:
    """Return the part of the keys that no step changes, of shape ``(2, *indices.shape)``."""
    shape = (2,) + (1,) * indices.dim()
    chain = torch.tensor(
        [as_int32(start) for start in _CHAIN_STARTS], dtype=torch.int32, device=indices.device
    ).reshape(shape)
    for word in (as_int32(seed), as_int32(seed >> 32)):
        chain = _extend(chain, word)
    chain = _extend(chain, indices.to(torch.int32))
    return _extend(chain, 0)  # a word kept free: without it every seed would have other coins


def stream_keys(roots: Tensor, step: Tensor) -> Tensor:
    """Return the two key words of each root at ``step`` (an integer tensor)."""
    for word in _words(step):
        roots = _extend(roots, word)
    return roots


def uniform_at(index: Tensor, first: Tensor, second: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the uniforms of elements with these indices (int32) under a key's two words."""
    word = _mix_(index ^ first, early=second)
    return _shift_right(word, 32 - UNIFORM_BITS).to(dtype).mul_(2.0**-UNIFORM_BITS)


def uniform(
    seed: int,
    step: int | Tensor,
    parameter_index: int,
    shape: Sequence[int],
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """Return the numbers in [0, 1) that a step's coins are made from.

    A scalar moves when its number is smaller than its update probability.

    Args:
        seed: the optimizer's ``seed``, in [0, 2**64).
        step: number of steps that counted before this one; the first step is step 0.
        parameter_index: position of the parameter over all groups, in their order.
        shape: shape of the parameter (of its real view, if it is complex).
        dtype: ``torch.float32`` or ``torch.float64``; the numbers are the same.
        device: where to make them.

    Returns:
        A tensor of ``shape``; every number is a multiple of 2**-24.

    Example:
        >>> import stochbatch
        >>> stochbatch.uniform(0, 0, 0, (3,))
        tensor([0.0278, 0.1137, 0.2085])
        >>> stochbatch.uniform(0, 1, 0, (3,))
        tensor([0.4024, 0.1748, 0.1865])
    """
    return _fill(seed, step, parameter_index, shape, dtype, device)


def normal(
    seed: int,
    step: int | Tensor,
    parameter_index: int,
    shape: Sequence[int],
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """Return numbers of the standard normal distribution, one for each uniform.

    The quantile of the uniform's cell midpoint: so no number is larger than 5.5. Arguments
    are those of :func:`uniform`. Unlike uniforms, the last place of a number may differ
    between devices and between dtypes, as a library's functions do.

    Example:
        >>> from stochbatch.optim.coins import normal
        >>> normal(0, 0, 0, (3,))
        tensor([-1.9146, -1.2072, -0.8116])
    """
    return _fill(seed, step, parameter_index, shape, dtype, device, _quantile)


def _quantile(numbers: Tensor) -> Tensor:
    # 2 (u + half a cell) - 1 is exact in float32, and never -1 or 1.
    return numbers.mul_(2).sub_(1 - 2.0**-UNIFORM_BITS).erfinv_().mul_(math.sqrt(2))


CHUNK_BITS = 17
"""On a CPU numbers are made in chunks of ``2**CHUNK_BITS``, which stay in its cache."""

_CHUNK_BITS_ELSEWHERE = 26


def _fill(
    seed: int,
    step: int | Tensor,
    parameter_index: int,
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device | str | None,
    transform: Callable[[Tensor], Tensor] = lambda numbers: numbers,
) -> Tensor:
    """Return the transformed uniforms; ``transform`` may work in place."""
    check_seed(seed)
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
    if isinstance(parameter_index, bool) or not isinstance(parameter_index, int):
        kind = type(parameter_index).__name__
        raise TypeError(f"parameter_index must be an int, got {kind}: {parameter_index!r}")
    if not 0 <= parameter_index < 1 << 32:
        raise ValueError(f"parameter_index must be in [0, 2**32), got {parameter_index}")
    if not isinstance(step, Tensor):
        if step < 0:
            raise ValueError(f"step must be 0 or more, got {step}")
        step = torch.tensor(step, dtype=torch.int64, device=device)
    if math.prod(shape) > MOST_ELEMENTS:
        raise ValueError(f"shape must have at most 2**32 elements, got {tuple(shape)}")
    result = torch.empty(math.prod(shape), dtype=dtype, device=device)
    parameter = torch.tensor(as_int32(parameter_index), dtype=torch.int32, device=device)
    key = stream_keys(stream_roots(seed, parameter), step)
    chunk = 1 << (CHUNK_BITS if result.device.type == "cpu" else _CHUNK_BITS_ELSEWHERE)
    for start in range(0, result.numel(), chunk):
        piece = result[start : start + chunk]
        index = torch.arange(piece.numel(), dtype=torch.int32, device=device).add_(as_int32(start))
        piece.copy_(transform(uniform_at(index, key[0], key[1], dtype)))
    return result.reshape(tuple(shape))
