"""Parameters of which each process holds a part: ``DTensor``, as FSDP2 makes them.

A part knows where it lies in its whole tensor (`Window`), so that its coins are those of
the whole. What a step must know of the whole tensor comes from one collective for all
parameters together (``parts``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from stochbatch.optim.pieces import Window


def is_sharded(tensor: object) -> bool:
    """Return whether a tensor is a ``DTensor``, without importing what defines it."""
    return hasattr(tensor, "device_mesh") and hasattr(tensor, "placements")


def local(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this process holds: any other tensor as it is."""
    if not is_sharded(tensor):
        return tensor
    part: Tensor = tensor.to_local()  # type: ignore[attr-defined]
    return part


def local_grad(weight: Tensor, grad: Tensor) -> Tensor:
    """Return the gradient of this process's part of a weight."""
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


def window_of(tensor: Tensor) -> Window | None:
    """Return where this process's part of a parameter lies; None if it has all of it.

    Raises:
        ValueError: the parameter is laid out in a way that is not a block.
    """
    if not is_sharded(tensor):
        return None
    mesh, placements = tensor.device_mesh, tensor.placements  # type: ignore[attr-defined]
    if all(placement.is_replicate() for placement in placements):
        return None
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise ValueError("a parameter's mesh has no place for this process")
    spans = list(_block(tensor.shape, mesh.shape, placements, coordinate))
    starts, part = (tuple(span[end] for span in spans) for end in (0, 1))
    if part != tuple(local(tensor).shape):
        raise ValueError(
            f"a parameter of shape {tuple(tensor.shape)} is sharded in an unknown way: "
            f"{placements} leaves this process {tuple(local(tensor).shape)}"
        )
    return Window(tuple(tensor.shape), starts, part)


def _block(
    shape: Sequence[int], mesh: Sequence[int], placements: Sequence[Any], coordinate: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Yield start and size of a process's part along each dimension of a tensor."""
    for axis, size in enumerate(shape):
        cuts = [place for place, kind in enumerate(placements) if _cuts(kind, axis)]
        # FSDP2 cuts what tensor parallelism has cut before, although its place in the mesh
        # comes first. Such a placement has a split factor.
        cuts.sort(key=lambda place: hasattr(placements[place], "split_factor"))
        start = 0
        for place in cuts:
            step = -(-size // mesh[place])
            first = min(coordinate[place] * step, size)
            start, size = start + first, min(step, size - first)
        yield start, size


def _cuts(placement: Any, axis: int) -> bool:
    return not placement.is_replicate() and placement.dim == axis


def check_placements(tensor: Tensor, owner: str) -> None:
    """Raise if a parameter is sharded in a way that no optimizer can move."""
    placements = tensor.placements  # type: ignore[attr-defined]
    if tensor.is_complex():
        raise TypeError(f"{owner} cannot move complex parameters that are sharded (DTensor)")
    for placement in placements:
        if placement.is_partial():
            raise TypeError(
                f"{owner} cannot move a parameter that is a sum over processes: "
                f"its placements are {placements}, expected Shard or Replicate"
            )
