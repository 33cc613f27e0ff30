"""The layers of a step, and what stays true of them from step to step."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stochbatch.optim.coins import BLOCK_BITS, stream_roots
from stochbatch.optim.pieces import ElementIndex, Piece, Window
from stochbatch.optim.probability import Layers, compute_dtype, describe_layers
from stochbatch.optim.shards import local
from stochbatch.optim.state import BATCHES, GRAD_MEAN, MOMENTUM_BUFFER
from stochbatch.optim.update import Rates, Rule

SMALL = 1 << 14
"""Layers with fewer scalars are moved together."""

TOGETHER = 1 << 15
"""Number of scalars at which a bundle is full: it is copied, so it bounds the temporaries."""


KEPT = 8
"""Rosters that an optimizer remembers."""


@dataclass
class Layer:
    """A parameter tensor that has a gradient in this step, with all that moves it.

    Complex tensors come as their real views. Of a sharded one weight, gradient and memory
    are this process's part.
    """

    index: int
    kind: str
    parameter: Tensor
    """The whole tensor, which may be a ``DTensor``."""
    grad: Tensor
    state: dict[str, Tensor]
    group: dict[str, Any]
    window: Window | None = None
    """Where the part lies; None for a whole tensor."""

    @property
    def weight(self) -> Tensor:
        """What is here of the parameter."""
        return local(self.parameter)

    @property
    def size(self) -> int:
        """Number of scalars of the whole tensor."""
        return self.parameter.numel()

    @property
    def rule(self) -> Rule:
        """The options of the layer's group that say how its scalars move."""
        given = {name: self.group[name] for name in Rule._fields if name != "decays"}
        return Rule(**given, decays=self.group["weight_decay"] != 0)

    @property
    def rates(self) -> Rates:
        """The options of the layer's group that say how far its scalars move."""
        lr = self.group["lr"]
        if isinstance(lr, Tensor):
            dtype = compute_dtype(self.grad.dtype)
            lr = lr.to(self.grad.device, dtype, non_blocking=True).reshape(())
        return Rates(lr, self.group["momentum"], self.group["weight_decay"])

    def tensors(self) -> list[Tensor]:
        """Weight, gradient, mean, batches and, where there is one, the momentum buffer."""
        names = [GRAD_MEAN, BATCHES, *([MOMENTUM_BUFFER] if self.group["momentum"] else [])]
        return [self.weight, self.grad, *(local(self.state[name]) for name in names)]


class Roster(NamedTuple):
    """Facts about the layers of a step that stay the same until the options change."""

    layers: Layers
    roots: Tensor
    single: list[int]
    """Places of the layers that are moved one by one. (An empty part is not moved at all.)"""
    bundles: list[Bundle]


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


def call_roster(layers: Sequence[Layer], known: dict[Hashable, Roster]) -> Roster:
    """Return the roster of these layers: one of the known ones, if there is one for them.

    Some are kept, as parts of a network may take turns; not all, as they may come and go at will.
    """
    key = tuple(
        (
            layer.index,
            layer.kind,
            layer.grad.shape,
            layer.grad.dtype,
            layer.grad.device,
            layer.group["alpha"],
            layer.group["lambd"],
            layer.group["cross_layer"],
            layer.group["seed"],
            id(layer.group),
            layer.window,
        )
        for layer in layers
    )
    if key in known:
        return known[key]
    if len(known) == KEPT:
        known.clear()
    facts = describe_layers(
        [layer.grad for layer in layers],
        [layer.size for layer in layers],
        [layer.kind for layer in layers],
        [layer.group["alpha"] for layer in layers],
        [layer.group["lambd"] for layer in layers],
        [layer.group["cross_layer"] for layer in layers],
    )
    indices = torch.tensor([layer.index for layer in layers], device=facts.size.device)
    roots = stream_roots(layers[0].group["seed"], indices)
    known[key] = Roster(facts, roots, *_divide(layers))
    return known[key]


def _divide(layers: Sequence[Layer]) -> tuple[list[int], list[Bundle]]:
    """Return the places of layers to be moved one by one, and bundles of the others."""
    single: list[int] = []
    alike: dict[tuple[object, ...], list[list[int]]] = {}
    for place, layer in enumerate(layers):
        size = layer.grad.numel()
        if size == 0:
            continue
        if size >= SMALL or (layer.window and layer.window.last >> BLOCK_BITS):
            single.append(place)
            continue
        kind = (id(layer.group), layer.grad.dtype, layer.grad.device)
        parts = alike.setdefault(kind, [[]])
        if sum(layers[other].grad.numel() for other in parts[-1]) + size > TOGETHER:
            parts.append([])
        parts[-1].append(place)
    full = [places for parts in alike.values() for places in parts]
    single += [places[0] for places in full if len(places) == 1]
    bundles = []
    for places in (places for places in full if len(places) > 1):
        device = layers[places[0]].grad.device
        sizes = [layers[place].grad.numel() for place in places]
        low = torch.cat([_low(layers[place]) for place in places])
        lengths = torch.tensor(sizes, device=device)
        member = torch.arange(len(places), device=device).repeat_interleave(
            lengths,
            output_size=sum(sizes),  # which a device would have to be asked for
        )
        owner = torch.tensor(places, device=device)[member]
        bundles.append(Bundle(places, sizes, low, owner, member))
    return single, bundles


def _low(layer: Layer) -> Tensor:
    """Return the low words of a small layer's element indices, as a vector."""
    device, size = layer.grad.device, layer.grad.numel()
    if layer.window is None:
        return torch.arange(size, dtype=torch.int32, device=device)
    part = torch.empty(layer.window.part, dtype=torch.int8, device=device)
    piece = Piece(layer.window.offset, layer.window.strides, (part,))
    return ElementIndex(device).low(piece).reshape(-1)
