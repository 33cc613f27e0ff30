"""Algorithm 2 in scalar loops over Python floats: what the fast code is tested against.

``ReferenceSBS`` has the options of ``SBS`` that say how weights move, but not its control, the
mean field. It shares no code with ``SBS`` but the coins. (To read the algorithms, see
``stochbatch.optim.article``.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from stochbatch.optim.coins import uniform

Vector = list[float]


def mean_and_std(numbers: Vector, weights: Vector | None = None) -> tuple[float, float]:
    """Return the weighted mean and population standard deviation."""
    weights = weights or [1.0] * len(numbers)
    mean = sum(w * x for w, x in zip(weights, numbers, strict=True)) / sum(weights)
    squares = (w * (x - mean) ** 2 for w, x in zip(weights, numbers, strict=True))
    return mean, math.sqrt(sum(squares) / sum(weights))


def standardised(x: float, mean: float, std: float) -> float:
    """Return (x - mean) / std, and 0 where there is no spread."""
    return 0.0 if std <= 1e-12 * mean else (x - mean) / std


def reference_probability(
    grads: Sequence[Vector],
    kinds: Sequence[str],
    alpha: float = 0.1,
    lambd: float = -4.0,
    cross_layer: str = "total",
) -> list[Vector]:
    """Return the update probabilities of Equations 16 to 21."""
    sizes = [[abs(g) for g in grad] for grad in grads]
    within = [mean_and_std(size) for size in sizes]
    result = []
    for layer, kind in enumerate(kinds):
        peers = [other for other, its_kind in enumerate(kinds) if its_kind == kind]
        counts = {other: float(len(grads[other])) for other in peers}
        score = {
            other: within[other][0] * (counts[other] if cross_layer == "total" else 1.0)
            for other in peers
        }
        weights = list(counts.values()) if cross_layer == "weighted" else None
        t = standardised(score[layer], *mean_and_std(list(score.values()), weights))  # Eq. 19
        p = []
        for size in sizes[layer]:
            v = standardised(size, *within[layer])  # Eq. 17
            p.append(1.0 / (1.0 + math.exp(-alpha * v - lambd * t)))  # Eq. 16, 21
        result.append(p)
    return result


class ReferenceSBS:
    """Algorithm 2, with the options of ``SBS``, on lists of Python floats.

    Args:
        weights: one flat list of numbers a layer, changed in place.
        kinds: the kind of each layer.
        lr: learning rate; may be set anew before a step.
        **options: as for ``SBS``.

    Example:
        >>> from tests.optim.reference import ReferenceSBS
        >>> weights = [[1.0, 2.0]]
        >>> optimizer = ReferenceSBS(weights, ["linear"], lr=0.5, probability=1.0)
        >>> optimizer.step([[1.0, 1.0]])
        >>> weights
        [[0.5, 1.5]]
    """

    def __init__(
        self,
        weights: list[Vector],
        kinds: Sequence[str],
        lr: float,
        *,
        alpha: float = 0.1,
        lambd: float = -4.0,
        probability: float | None = None,
        cross_layer: str = "total",
        compare: str = "kind",
        lr_scaling: str = "none",
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        maximize: bool = False,
        seed: int = 0,
    ) -> None:
        self.weights = weights
        self.kinds = [
            {"kind": kind, "type": kind.replace("norm_bias", "norm_weight"), "all": ""}[compare]
            for kind in kinds
        ]
        self.lr = lr
        self.alpha, self.lambd, self.cross_layer = alpha, lambd, cross_layer
        self.probability = probability
        self.linear = lr_scaling == "linear"
        self.momentum, self.nesterov = momentum, nesterov
        self.weight_decay, self.maximize = weight_decay, maximize
        self.seed = seed
        self.steps = 0
        self.buffer = [[0.0] * len(layer) for layer in weights]
        self.new_epoch()

    def new_epoch(self) -> None:
        """Set g-tilde to 0 and k to 1, as Algorithm 2 does before each epoch."""
        self.grad_mean = [[0.0] * len(layer) for layer in self.weights]
        self.batches = [[1] * len(layer) for layer in self.weights]

    def update_probability(self, grads: Sequence[Vector]) -> list[Vector]:
        """Return p for this universal batch."""
        if self.probability is not None:
            return [[self.probability] * len(grad) for grad in grads]
        return reference_probability(grads, self.kinds, self.alpha, self.lambd, self.cross_layer)

    def step(self, grads: Sequence[Vector]) -> None:
        """Take the gradient of one universal batch: one turn of Algorithm 2's middle loop."""
        p = self.update_probability(grads)
        for layer, grad in enumerate(grads):
            u = uniform(self.seed, self.steps, layer, (len(grad),), torch.float64).tolist()
            for j, g in enumerate(grad):
                self._scalar(layer, j, g, u[j] < p[layer][j])
        self.steps += 1

    def _scalar(self, layer: int, j: int, g: float, chi: bool) -> None:
        w, k = self.weights[layer][j], self.batches[layer][j]
        g = (-g if self.maximize else g) + self.weight_decay * w
        mean = self.grad_mean[layer][j]
        mean = mean + (g - mean) / k
        rate = self.lr * (k if self.linear else 1)
        if self.momentum == 0:
            w = w - chi * rate * mean
        elif chi:
            b = self.momentum * self.buffer[layer][j] + mean
            w = w - rate * (mean + self.momentum * b if self.nesterov else b)
            self.buffer[layer][j] = b
        self.weights[layer][j] = w
        self.grad_mean[layer][j] = (1 - chi) * mean
        self.batches[layer][j] = (1 - chi) * (k + 1) + chi
