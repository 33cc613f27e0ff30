"""Cache-sized views of tensors, walked in step with each other.

An elementwise computation of some twenty operations over a large tensor is bound by
memory when every operation visits the whole tensor, and by arithmetic when all of them
visit one piece that stays in the cache. A piece also bounds the temporaries of a step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from stochbatch.optim.coins import as_int32, uniform_at
from stochbatch.optim.shards import Window

PIECE_BITS = 17
"""A piece on a CPU has at most ``2**PIECE_BITS`` elements, unless one row alone has more."""

GPU_PIECE_BITS = 26


class Piece(NamedTuple):
    """A piece of some tensors of one shape: a stretch of the flat tensor, or some rows."""

    offset: int
    """Row-major index, in the whole tensor, of the piece's first element."""
    strides: tuple[int, ...]
    """Row-major index distance between neighbours along each dimension of the piece."""
    tensors: tuple[Tensor, ...]


def pieces(tensors: Sequence[Tensor], window: Window | None = None) -> Iterator[Piece]:
    """Yield the pieces of ``tensors`` (all of one shape, any memory layout).

    Contiguous tensors are cut as flat vectors; others along the dimension that is outermost in
    the memory of the first tensor. ``window`` says where parts lie in a whole tensor.
    """
    first = tensors[0]
    if first.numel() == 0:
        return
    whole = window or Window(first.shape, (0,) * first.dim(), first.shape)
    if all(tensor.is_contiguous() for tensor in tensors) and not whole.cut:
        views = [tensor.view(-1) for tensor in tensors]
        strides: tuple[int, ...] = (1,)
    else:
        order = sorted(range(first.dim()), key=first.stride, reverse=True)
        views = [tensor.permute(order) for tensor in tensors]
        strides = tuple(whole.strides[axis] for axis in order)
    rows = views[0].shape[0]
    bits = PIECE_BITS if first.is_cpu else GPU_PIECE_BITS
    step = max(1, (1 << bits) * rows // first.numel())
    start = 0
    while start < rows:
        offset, length = whole.offset + start * strides[0], min(step, rows - start)
        yield Piece(offset, strides, tuple(view.narrow(0, start, length) for view in views))
        start += length


class MemoryLayout(NamedTuple):
    """A tensor's memory is [outer, middle, inner] where row-major order is [outer, inner, middle].

    That is so for channels-last tensors, and for contiguous ones with ``middle = 1``.
    """

    middle: int
    inner: int
    pitch: int
    """Row-major index distance between neighbours along ``outer``."""
    offset: int = 0
    """Row-major index of the first element."""

    @property
    def counts(self) -> bool:
        """Whether the elements in memory have the indices 0, 1, 2, ..."""
        return self.middle == 1 and self.offset == 0 and self.pitch == self.inner


def memory_layout(tensor: Tensor, window: Window | None = None) -> MemoryLayout | None:
    """Return the layout of a contiguous or channels-last tensor, None for any other.

    With a window, indices are those of the whole tensor. A part that is cut along several
    dimensions after the first has no layout.
    """
    if tensor.is_contiguous():
        layout = MemoryLayout(1, tensor.numel(), tensor.numel())
    elif tensor.dim() > 2 and tensor.movedim(1, -1).is_contiguous():
        middle, inner = math.prod(tensor.shape[2:]), tensor.shape[1]
        layout = MemoryLayout(middle, inner, middle * inner)
    else:
        return None
    if window is None:
        return layout
    if not window.cut:
        return layout._replace(offset=window.offset)
    axis = window.cut[0]
    if len(window.cut) > 1 or (layout.middle > 1 and axis > 1):
        return None
    inner = layout.inner if layout.middle > 1 else math.prod(window.part[axis:])
    return MemoryLayout(layout.middle, inner, window.strides[axis - 1], window.offset)


@cache
def _counting(device: torch.device) -> Tensor:
    return torch.arange(1 << PIECE_BITS, dtype=torch.int32, device=device)


def element_index(piece: Piece) -> Tensor:
    """Return each element's row-major index in the whole tensor, modulo 2**32, as int32."""
    shape, device = piece.tensors[0].shape, piece.tensors[0].device
    index: Tensor | None = None
    for axis, (size, stride) in enumerate(zip(shape, piece.strides, strict=True)):
        counting = _counting(device)[:size]
        if size > len(counting):
            counting = torch.arange(size, dtype=torch.int32, device=device)
        if stride != 1:
            counting = counting * as_int32(stride)
        counting = counting.reshape((size,) + (1,) * (len(shape) - axis - 1))
        index = counting if index is None else index + counting
    assert index is not None, "a piece has at least one dimension"
    return index + as_int32(piece.offset) if piece.offset else index


def uniforms(piece: Piece, key: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the uniforms of a piece of a parameter; ``key`` has the two words of its key."""
    return uniform_at(element_index(piece), key[0], key[1], dtype)
