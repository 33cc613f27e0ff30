"""What the processes of these tests run: trainings, whole and in parts, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

from stochbatch import SBS

SHAPES = [(7, 5), (1, 3), (300, 90), (4, 6, 3, 3), (3, 5), (33, 2)]
"""Uneven, empty in some processes, large, small."""

NAMES = ("outer", "inner")


def placements(axes: Sequence[int | None]) -> list[Placement]:
    """Return placements by the dimension that each axis of the mesh cuts; None: none."""
    return [Replicate() if axis is None else Shard(axis) for axis in axes]


def mesh_of(*shape: int) -> DeviceMesh:
    """Return a mesh of all processes."""
    return init_device_mesh("cpu", shape, mesh_dim_names=NAMES[: len(shape)])


def numbers(shape: Sequence[int], seed: int, dtype: torch.dtype) -> Tensor:
    """Return numbers that are the same in all processes."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
    # Channels last where there are channels: a part of it must keep its memory layout.
    drawn = drawn.to(dtype)
    return drawn.to(memory_format=torch.channels_last) if len(shape) == 4 else drawn


def counted(optimizer: torch.optim.Optimizer, before: int) -> int:
    """Step; return how many collectives that takes, found out where ``before`` is negative.

    Under the mode that counts them steps are eager, so the others are taken without it.
    """
    if before >= 0:
        optimizer.step()
        return before
    with CommDebugMode() as communication:
        optimizer.step()
    return int(communication.get_total_counts())


class Pair:
    """The same parameters twice: whole, and in parts."""

    def __init__(
        self,
        mesh: DeviceMesh,
        cut: Sequence[Sequence[Placement]],
        shapes: Sequence[Sequence[int]] = SHAPES,
        dtype: torch.dtype = torch.float32,
        **options: Any,
    ) -> None:
        self.mesh, self.cut, self.dtype, self.seed = mesh, cut, dtype, 0
        values = [numbers(shape, seed, dtype) for seed, shape in enumerate(shapes)]
        self.whole = [nn.Parameter(value.clone()) for value in values]
        self.parts = [
            nn.Parameter(distribute_tensor(value.clone(), mesh, how))
            for value, how in zip(values, cut, strict=True)
        ]
        self.of_whole, self.of_parts = SBS(self.whole, **options), SBS(self.parts, **options)

    def grads(self) -> None:
        """Give both the same new gradients."""
        for whole, part, how in zip(self.whole, self.parts, self.cut, strict=True):
            self.seed += 1
            whole.grad = numbers(whole.shape, 1000 + self.seed, self.dtype)
            part.grad = distribute_tensor(whole.grad.clone(), self.mesh, how)

    collectives = -1

    def step(self) -> int:
        """Step both; return how many collectives a step takes."""
        self.grads()
        self.of_whole.step()
        self.collectives = counted(self.of_parts, self.collectives)
        return self.collectives

    def differences(self) -> list[str]:
        """Return what is not the same to the last bit: names of weights and state."""
        found = []
        for number, (whole, part) in enumerate(zip(self.whole, self.parts, strict=True)):
            pairs = {"weight": (whole.data, part.data)}
            state, other = self.of_whole.state[whole], self.of_parts.state[part]
            names = [name for name in state if name != "tally"]
            pairs |= {name: (state[name], other[name]) for name in names}
            for name, (one, two) in pairs.items():
                if not torch.equal(one, full(two).to(one.dtype)):  # counts have 16 and 32 bits
                    found.append(f"{name} of {number}")
        return found


def full(tensor: Tensor) -> Tensor:
    """Return a tensor with all its parts."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def compare(
    mesh_shape: Sequence[int],
    axes: Sequence[int | None],
    options: dict[str, Any],
    shapes: Sequence[Sequence[int]] = SHAPES,
    steps: int = 4,
) -> tuple[list[int], list[str]]:
    """Return the collectives of each step, and what is not the same in the end."""
    how = placements(axes)
    pair = Pair(mesh_of(*mesh_shape), [how] * len(shapes), shapes, **options)
    return [pair.step() for _ in range(steps)], pair.differences()
