"""Parameters of which each rank holds a shard: ``DTensor``, as FSDP2 makes them.

A shard knows where it lies in its whole tensor (`Window`), so its coins are those of the whole.
What a step must know of the whole tensors comes from one all-reduce for all of them together
(`Shards.total`): the only place in this package that knows of ranks.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from operator import is_
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Window(NamedTuple):
    """Where a shard lies in the whole tensor: a block, along every dimension."""

    shape: tuple[int, ...]
    """Of the whole tensor."""
    starts: tuple[int, ...]
    """Index in the whole tensor of the shard's first element, along each dimension."""
    part: tuple[int, ...]
    """Shape of the shard."""

    @property
    def strides(self) -> tuple[int, ...]:
        """Row-major index distance between neighbours in the whole tensor."""
        return tuple(math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape)))

    @property
    def offset(self) -> int:
        """Row-major index, in the whole tensor, of the shard's first element."""
        return sum(start * stride for start, stride in zip(self.starts, self.strides, strict=True))

    @property
    def cut(self) -> list[int]:
        """Dimensions but the first along which the shard has not everything."""
        return [axis for axis in range(1, len(self.shape)) if self.part[axis] != self.shape[axis]]


def is_sharded(tensor: object) -> bool:
    """Return whether a tensor is a ``DTensor``, without importing what defines it."""
    return hasattr(tensor, "device_mesh") and hasattr(tensor, "placements")


def local(tensor: Tensor) -> Tensor:
    """Return the shard of a tensor that this rank holds: any other tensor as it is."""
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def local_grad(weight: Tensor, grad: Tensor) -> Tensor:
    """Return the gradient of this rank's shard of a weight."""
    if not is_sharded(weight):
        if is_sharded(grad):
            raise RuntimeError("a plain parameter has a DTensor as its gradient")
        return grad
    if not is_sharded(grad):
        raise RuntimeError("a sharded parameter (DTensor) has a plain tensor as its gradient")
    mesh, placements = weight.device_mesh, weight.placements  # type: ignore[attr-defined]
    if grad.device_mesh != mesh:  # type: ignore[attr-defined]
        raise RuntimeError(
            f"a parameter and its gradient lie on different meshes: {mesh} and {grad.device_mesh}"  # type: ignore[attr-defined]
        )
    if grad.placements != placements:  # type: ignore[attr-defined]
        grad = grad.redistribute(mesh, placements)  # type: ignore[attr-defined]
    return local(grad)


def window_of(tensor: Any) -> Window | None:
    """Return where this rank's shard of a parameter lies; None if it has all of it.

    Raises:
        ValueError: the parameter is sharded in a way that is not a block.
    """
    if not is_sharded(tensor) or all(place.is_replicate() for place in tensor.placements):
        return None
    if tensor.device_mesh.get_coordinate() is None:
        raise ValueError("a parameter's mesh has no place for this rank")
    (chunk,) = tensor.__create_chunk_list__()
    window = Window(tuple(tensor.shape), tuple(chunk.offsets), tuple(chunk.sizes))
    if window.part != tuple(local(tensor).shape) or not _is_block(tensor):
        raise ValueError(
            f"a parameter of shape {tuple(tensor.shape)} is sharded in a way that is not one "
            f"block per rank: {tensor.placements}"
        )
    return window


def _is_block(tensor: Any) -> bool:
    """Return whether a rank's rows are neighbours also under strided placements.

    FSDP2 shards what tensor parallelism has sharded before, although its dimension of the mesh
    comes first. Such a placement has a split factor: the number of shards made before it.
    """
    sizes = list(zip(tensor.placements, tensor.device_mesh.shape, strict=True))
    for axis, (placement, _) in enumerate(sizes):
        if hasattr(placement, "split_factor"):
            later = [
                s for p, s in sizes[axis + 1 :] if not p.is_replicate() and p.dim == placement.dim
            ]
            if placement.split_factor != math.prod(later):
                return False
    return True


def check_placements(tensor: Tensor, owner: str) -> None:
    """Raise if a parameter is sharded in a way that no optimizer can move."""
    placements = tensor.placements  # type: ignore[attr-defined]
    if tensor.is_complex():
        raise TypeError(f"{owner} cannot move complex parameters that are sharded (DTensor)")
    for placement in placements:
        if placement.is_partial():
            raise TypeError(
                f"{owner} cannot move a parameter that is a sum over ranks: "
                f"its placements are {placements}, expected Shard or Replicate"
            )


SUM, SQUARES, PRESENT = range(3)
"""Rows of a message: sums of |g| and of its squares over a shard, and 1 if it has a gradient."""

_NO_SPREAD = 1e-14
"""A variance that is smaller, relative to the squared mean, is lost in the rounding of squares
that are summed about zero."""


class Seats(NamedTuple):
    """Which layers of a step stand in which column of a message."""

    places: Tensor
    columns: Tensor
    here: Tensor
    """Number of scalars that are here of each."""
    copies: Tensor
    """How many ranks hold the same shard."""
    size: Tensor
    """Number of scalars of the whole tensor."""


class Shards:
    """The sharded parameters of an optimizer, and the one all-reduce of a step.

    Args:
        tensors: all parameters of the optimizer, in the same order on every rank.
        kinds: their kinds.
    """

    def __init__(self, tensors: Sequence[Any], kinds: Sequence[str]) -> None:
        found = {index: window_of(tensor) for index, tensor in enumerate(tensors)}
        self.windows: dict[int, Window] = {i: window for i, window in found.items() if window}
        """Where each shard lies, by the index of its parameter."""
        self._sharded = {index: tensors[index] for index in self.windows}
        self._columns = {index: column for column, index in enumerate(self.windows)}
        self.alike: Tensor | None = None
        """Whether, in the latest step, of every parameter all ranks had a gradient, or none."""
        self._looked: dict[int, Seats] = {}
        if self._sharded:
            self._mesh, self._groups = _everyone(list(self._sharded.values()))
            shapes = [(kind, tuple(t.shape)) for kind, t in zip(kinds, tensors, strict=True)]
            # 20 bits: sums of its square over some thousand ranks are exact.
            self._fingerprint = zlib.crc32(repr(shapes).encode()) >> 12

    def __bool__(self) -> bool:
        return bool(self._sharded)

    def copies(self, index: int) -> int:
        """Return how many ranks hold the same shard of a parameter as this one."""
        tensor = self._sharded.get(index)
        if tensor is None:
            return 1
        mesh = tensor.device_mesh
        pairs = zip(tensor.placements, mesh.shape, strict=True)
        copies = math.prod(size for placement, size in pairs if placement.is_replicate())
        # On a smaller mesh than others, a parameter lies on several such meshes side by side.
        return int(copies * self._mesh.size() // mesh.size())

    def seats(self, indices: Sequence[int], counts: Sequence[int], like: Tensor) -> Seats:
        """Return where layers stand in a message.

        Args:
            indices: of the layers' parameters.
            counts: number of scalars that are here of each layer.
            like: in the dtype of sums, on their device.
        """
        here = [place for place, index in enumerate(indices) if index in self._columns]
        mine = [indices[place] for place in here]

        def vector(numbers: list[int], dtype: torch.dtype = like.dtype) -> Tensor:
            return torch.tensor(numbers, dtype=dtype, device=like.device)

        return Seats(
            places=vector(here, torch.int64),
            columns=vector([self._columns[index] for index in mine], torch.int64),
            here=vector([max(counts[place], 1) for place in here]),
            copies=vector([self.copies(index) for index in mine]),
            size=vector([math.prod(self.windows[index].shape) for index in mine]),
        )

    def total(self, sums: Tensor, seats: Seats | None) -> Tensor:
        """Return sums over the whole of each layer, given those over what is here.

        Args:
            sums: [2, layers]: sum of |g| and of its squared deviations from its mean.
            seats: of the layers; None if there is nothing sharded.
        """
        if seats is None:
            return sums
        message = self._blank(sums)
        total, squares = sums[:, seats.places]
        message[SUM, seats.columns] = total / seats.copies
        squares = squares + total * total / seats.here
        message[SQUARES, seats.columns] = squares / seats.copies
        message[PRESENT, seats.columns] = 1
        message = self.sum_over_ranks(message)
        if _may_look(sums.device) or id(seats) not in self._looked:
            if len(self._looked) > 16:
                self._looked.clear()
            self._looked[id(seats)] = seats  # kept: no other can have its id
            self._check(message)
        total, squares = message[SUM, seats.columns], message[SQUARES, seats.columns]
        about_zero = total * total / seats.size
        squares = squares - about_zero
        squares = torch.where(squares <= _NO_SPREAD * about_zero, 0.0, squares)
        # Where some ranks have a gradient and others none, nobody may move.
        self.alike = self._alike(message)
        whole = torch.where(self.alike, torch.stack((total, squares)), torch.nan)
        return sums.index_copy(1, seats.places, whole)

    def listen(self) -> None:
        """Take part in the all-reduce of a step that finds no gradient on this rank."""
        if self._sharded:
            home = local(next(iter(self._sharded.values()))).device
            dtype = torch.float32 if home.type == "mps" else torch.float64
            blank = self._blank(torch.zeros((), dtype=dtype, device=home))
            self._check(self.sum_over_ranks(blank))

    def _blank(self, like: Tensor) -> Tensor:
        """Return a message that says nothing of any parameter; its last column says of which."""
        message = like.new_zeros(3, len(self._columns) + 1)
        message[SUM, -1] = self._fingerprint
        message[SQUARES, -1] = self._fingerprint**2
        message[PRESENT, -1] = 1
        return message

    def _alike(self, message: Tensor) -> Tensor:
        """Return whether of every parameter all of its ranks have a gradient, or none."""
        present = message[PRESENT, :-1]
        return ((present == 0) | (present == message[PRESENT, -1])).all()

    def _check(self, message: Tensor) -> None:
        """Raise, on all ranks alike, if they do not step with the same parameters."""
        total, squares, ranks = message[:, -1].tolist()
        if total * total != squares * ranks:
            raise RuntimeError(
                "the optimizers of these ranks have different parameters, or another order of them"
            )
        if not self._alike(message):
            raise RuntimeError(
                "some ranks have no gradient where others have one: of a sharded parameter all "
                "of them must have one, or none"
            )

    def sum_over_ranks(self, rows: Tensor) -> Tensor:
        """Return the sum of all ranks' rows: a collective."""
        wire = rows.to(self._mesh.device_type)  # parameters may wait on the host
        for group in self._groups:
            torch.distributed.all_reduce(wire, group=group)
        return wire.to(rows.device)


class KnownShards:
    """The shards of an optimizer, made anew when its parameters are others."""

    def __init__(self) -> None:
        self._tensors: list[Any] = []
        self._shards: Shards | None = None

    def of(self, tensors: list[Any], kinds: Sequence[str]) -> Shards:
        """Return the shards of all parameters of an optimizer."""
        same = len(tensors) == len(self._tensors) and all(map(is_, tensors, self._tensors))
        if self._shards is None or not same:
            self._tensors, self._shards = tensors, Shards(tensors, kinds)
        return self._shards


def _may_look(device: torch.device) -> bool:
    """Return whether reading a tensor on the host is free (CPU). On a GPU: only after a change."""
    return device.type == "cpu"


def _everyone(tensors: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Return the mesh of all ranks that hold shards, and groups that together reach all of them.

    No group is made here: to make one, NCCL may want ranks that know nothing of this mesh.
    """
    mesh = max((tensor.device_mesh for tensor in tensors), key=lambda mesh: mesh.size())
    ranks = set(mesh.mesh.flatten().tolist())
    for tensor in tensors:
        if not set(tensor.device_mesh.mesh.flatten().tolist()) <= ranks:
            raise ValueError(
                "parameters lie on meshes of which none contains the others: "
                f"{tensor.device_mesh} and {mesh}"
            )
    if len(ranks) == torch.distributed.get_world_size():
        return mesh, [torch.distributed.group.WORLD]
    return mesh, [mesh.get_group(axis) for axis in range(mesh.ndim)]
