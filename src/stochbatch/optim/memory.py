"""Whether tensors are still what they were when a plan was made, found out in few calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from stochbatch.optim.shards import local

PLAIN = (Tensor, torch.nn.Parameter)
"""Types of tensors whose memory is what it seems."""

_dtype = attrgetter("dtype")
_address, _numel, _offset = Tensor.data_ptr, Tensor.numel, Tensor.storage_offset
_storage = Tensor.untyped_storage


class Memory:
    """The tensors that a step touches: where they lie, and how large their storages are.

    Args:
        params: all parameters that have a gradient.
        held: their state.
    """

    def __init__(self, params: Sequence[Tensor], held: Sequence[Tensor]) -> None:
        grads: list[Any] = [param.grad for param in params]
        plain = [
            type(param) in PLAIN and type(grad) is Tensor
            for param, grad in zip(params, grads, strict=True)
        ]
        self._plain = [place for place, is_plain in enumerate(plain) if is_plain]
        """Places of the plain ones among the parameters."""
        self._others = [place for place, is_plain in enumerate(plain) if not is_plain]
        self._weights = [params[place] for place in self._plain]
        state = list({id(tensor): tensor for tensor in held if type(tensor) is Tensor}.values())
        self._tensors = self._weights + state
        self._storages = list(map(_storage, state))
        self._odd = [params[place] for place in self._others]
        self._odd += [tensor for tensor in held if type(tensor) is not Tensor]
        # Whether a tensor is contiguous takes less time to find out than its strides.
        dense = [*self._weights, *(grads[place] for place in self._plain)]
        whole = all(tensor.is_contiguous() for tensor in dense)
        self._order: Callable[[Tensor], Any] = Tensor.is_contiguous if whole else Tensor.stride
        self._facts = self._look(grads)

    @property
    def all_plain(self) -> bool:
        """Whether all parameters and their gradients are plain."""
        return not self._others

    def fits(self, grads: Sequence[Tensor]) -> bool:
        """Return whether the tensors, and gradients like these, are what they were."""
        try:
            return self._facts == self._look(grads)
        except RuntimeError:  # a sparse gradient has no storage
            return False

    def _look(self, grads: Sequence[Tensor]) -> list[object]:
        """Return all that may change of these tensors: every step pays for it, for all of them.

        Not where a gradient lies, which may change in every step.
        """
        odd: list[object] = []
        if self._odd:
            odd = [(_facts(tensor), _where(tensor)) for tensor in self._odd]
            odd += [_facts(grads[place]) for place in self._others]
            grads = [grads[place] for place in self._plain]
        order, weights = self._order, self._weights
        return [
            *odd,
            *map(type, grads),
            *map(_dtype, grads),
            *map(_offset, grads),
            *map(_numel, grads),
            *map(order, grads),
            *map(len, map(_storage, grads)),
            *map(order, weights),
            *map(len, map(_storage, weights)),
            *map(_numel, self._tensors),
            *map(_address, self._tensors),
            *map(len, self._storages),
        ]


def _facts(tensor: Tensor) -> tuple[object, ...]:
    """Return what a tensor is that is not plain: a subclass, a DTensor, a sparse one."""
    shard = local(tensor)
    more: tuple[object, ...] = ()
    if type(shard) in PLAIN and shard.layout is torch.strided:
        more = (shard.stride(), shard.storage_offset(), shard.untyped_storage().nbytes())
    placements = getattr(tensor, "placements", None)
    return (type(tensor), tensor.shape, tensor.dtype, tensor.layout, placements, *more)


def _where(tensor: Tensor) -> int:
    """Return what changes with a tensor's memory."""
    shard = local(tensor)
    plain = type(shard) in PLAIN and shard.layout is torch.strided
    return shard.data_ptr() if plain else id(tensor)
