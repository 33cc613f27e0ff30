"""Algorithm 2 of the article, to be read: plain torch, line by line, nothing made fast.

:class:`stochbatch.SBS` does the same, by test. It is faster, checks its input, leaves out steps
with a non-finite gradient, and is right for sharded, complex and half-precision parameters too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stochbatch.optim.coins import uniform
from stochbatch.optim.kinds import kind_by_shape


class Layer(NamedTuple):
    """A parameter tensor w with its gradient."""

    number: int
    kind: str
    group: dict[str, Any]
    w: Tensor
    size: Tensor
    """|g_j| of its scalars; mu and sigma are their mean and population standard deviation."""
    mu: float
    sigma: float


class Algorithm2(torch.optim.Optimizer):
    """Stochastic batch size via cumulative moving average; its options mean what they mean for SBS.

    Example:
        >>> import torch, stochbatch
        >>> from stochbatch.optim.article.algorithm2 import Algorithm2
        >>> model = torch.nn.Linear(4, 2)
        >>> optimizer = Algorithm2(stochbatch.param_groups(model), lr=0.1)
        >>> model(torch.ones(8, 4)).square().mean().backward()
        >>> optimizer.step()
    """

    def __init__(
        self,
        params: Any,
        lr: float = 0.1,
        *,
        alpha: float = 0.1,
        lambd: float = -4.0,
        probability: float | None = None,
        cross_layer: str = "total",
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        seed: int = 0,
    ) -> None:
        scheme = {"alpha": alpha, "lambd": lambd, "cross_layer": cross_layer, "seed": seed}
        rates = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(params, {**rates, **scheme, "probability": probability})

    def new_epoch(self) -> None:
        """Start an epoch: the first lines of the pseudocode."""
        for state in self.state.values():
            state["grad_mean"].zero_()  # g~_j = 0
            state["batches"].fill_(1)  # k_j = 1

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one universal batch: one turn of the pseudocode's loop over t."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        # The number of steps before this one; parameters without a gradient have an older one.
        t = max((state["step"] for state in self.state.values()), default=0)
        layers = self._layers()
        for layer in layers:
            w, group, state = layer.w, layer.group, self.state[layer.w]
            if not state:
                state["grad_mean"], state["batches"] = torch.zeros_like(w), torch.ones_like(w)
                state["momentum_buffer"] = torch.zeros_like(w)
            mean, k, b = state["grad_mean"], state["batches"], state["momentum_buffer"]
            u = uniform(group["seed"], t, layer.number, w.shape, torch.float64, w.device)
            chi = u < update_probability(layer, layers)  # Eq. 9
            mean += (w.grad + group["weight_decay"] * w - mean) / k  # Eq. 14
            b.copy_(torch.where(chi, group["momentum"] * b + mean, b))  # without momentum: g~_j
            w -= torch.where(chi, group["lr"] * b, 0)  # Eq. 10, 15
            mean.masked_fill_(chi, 0)  # g~_j = (1 - chi_j) g~_j
            k.add_(1).masked_fill_(chi, 1)  # k_j = (1 - chi_j) (k_j + 1) + chi_j
            state["step"] = t + 1
        return loss

    def _layers(self) -> list[Layer]:
        layers = []
        members = ((group, w) for group in self.param_groups for w in group["params"])
        for number, (group, w) in enumerate(members):
            if w.grad is not None and w.numel():
                kind, size = group.get("kind") or kind_by_shape(w), w.grad.double().abs()
                mu, sigma = size.mean().item(), size.std(correction=0).item()
                layers.append(Layer(number, kind, group, w, size, mu, sigma))
        return layers


def update_probability(layer: Layer, layers: list[Layer]) -> Tensor | float:
    """Return p_j of a layer's scalars; the layer is compared with the layers of its kind."""
    group, reading = layer.group, layer.group["cross_layer"]
    if group["probability"] is not None:
        return float(group["probability"])
    peers = [peer for peer in layers if peer.kind == layer.kind and peer.mu > 0] or [layer]
    score = {peer.number: peer.mu * (peer.w.numel() if reading == "total" else 1) for peer in peers}
    share = {peer.number: peer.w.numel() if reading == "weighted" else 1 for peer in peers}
    m = sum(share[i] * score[i] for i in score) / sum(share.values())
    s = math.sqrt(sum(share[i] * (score[i] - m) ** 2 for i in score) / sum(share.values()))
    # A spread of rounding errors is none: then the score is 0, as that of a gradient of zeros.
    tiny = 1e-12 if layer.w.dtype == torch.float64 else 1e-6
    v = layer.size - layer.mu
    v = v / layer.sigma if layer.sigma > tiny * layer.mu else 0 * v  # Eq. 17
    t = (score.get(layer.number, m) - m) / s if s > tiny * m else 0.0  # Eq. 19
    return torch.sigmoid(group["alpha"] * v + group["lambd"] * t)  # Eq. 16, 21
