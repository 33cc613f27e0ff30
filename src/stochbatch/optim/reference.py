"""The article's algorithms as printed: slow, short, and what the fast code is tested against.

``ReferenceSBS`` is Algorithm 2 (and the open points that ``SBS`` has as options) in
scalar loops over Python floats. ``ExactSBS`` is Algorithm 1, which keeps the set of
samples of every scalar and evaluates its gradient at the present weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from stochbatch.optim.coins import check_seed, uniform
from stochbatch.optim.kinds import kind_by_shape
from stochbatch.optim.options import check_lr
from stochbatch.optim.probability import update_probability

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
        >>> from stochbatch.optim.reference import ReferenceSBS
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
        lr_scaling: str = "none",
        momentum: float = 0.0,
        nesterov: bool = False,
        momentum_mode: str = "lazy",
        weight_decay: float = 0.0,
        maximize: bool = False,
        steps_per_epoch: int | None = None,
        seed: int = 0,
    ) -> None:
        self.weights = weights
        self.kinds = kinds
        self.lr = lr
        self.alpha, self.lambd, self.cross_layer = alpha, lambd, cross_layer
        self.probability = probability
        self.linear = lr_scaling == "linear"
        self.momentum, self.nesterov = momentum, nesterov
        self.push = momentum_mode == "push"
        self.weight_decay, self.maximize = weight_decay, maximize
        self.steps_per_epoch = steps_per_epoch
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
        if self.steps_per_epoch and self.steps % self.steps_per_epoch == 0:
            self.new_epoch()

    def _scalar(self, layer: int, j: int, g: float, chi: bool) -> None:
        w, k = self.weights[layer][j], self.batches[layer][j]
        g = (-g if self.maximize else g) + self.weight_decay * w
        mean = self.grad_mean[layer][j]
        mean = mean + (g - mean) / k
        rate = self.lr * (k if self.linear else 1)
        if self.momentum == 0:
            w = w - chi * rate * mean
        elif self.push:
            pushed = chi * mean * (k if self.linear else 1)
            b = self.momentum * self.buffer[layer][j] + pushed
            w = w - self.lr * (pushed + self.momentum * b if self.nesterov else b)
            self.buffer[layer][j] = b
        elif chi:
            b = self.momentum * self.buffer[layer][j] + mean
            w = w - rate * (mean + self.momentum * b if self.nesterov else b)
            self.buffer[layer][j] = b
        self.weights[layer][j] = w
        self.grad_mean[layer][j] = (1 - chi) * mean
        self.batches[layer][j] = (1 - chi) * (k + 1) + chi


class ExactSBS(Optimizer):
    """Algorithm 1: every scalar moves on the gradient of its own set of samples.

    A scalar's set is the union of the universal batches since it last moved, so there are
    as many different sets as there are ages: a step asks for one gradient an age among the
    scalars that were drawn. For small models and for checking Algorithm 2.

    Args:
        params: parameters, as for ``torch.optim.SGD``; a group may have a ``kind``.
        gradient: a function that takes sample indices and returns the gradient of their
            mean loss at the present weights, one tensor a parameter, in order.
        lr: learning rate.
        alpha, lambd, cross_layer, probability, seed: as for :class:`stochbatch.SBS`.

    Example:
        >>> import torch
        >>> from stochbatch.optim.reference import ExactSBS
        >>> targets = torch.tensor([1.0, 3.0])
        >>> w = torch.nn.Parameter(torch.zeros(1))
        >>> def gradient(samples):
        ...     return [w.detach() - targets[samples].mean()]
        >>> optimizer = ExactSBS([w], gradient, lr=0.5, probability=1.0)
        >>> optimizer.step([0, 1])
        >>> w.item()
        1.0

    Reference: Nakamura, Soatto, Hong 2020, Algorithm 1.
    """

    def __init__(
        self,
        params: ParamsT,
        gradient: Callable[[list[int]], Sequence[Tensor]],
        lr: float | Tensor = 0.1,
        *,
        alpha: float = 0.1,
        lambd: float = -4.0,
        probability: float | None = None,
        cross_layer: str = "total",
        seed: int = 0,
    ) -> None:
        check_lr(lr)
        check_seed(seed)
        self.gradient = gradient
        self.steps = 0
        self.universal_batches: list[list[int]] = []
        self.adaptive: dict[str, Any] = {
            "alpha": alpha,
            "lambd": lambd,
            "cross_layer": cross_layer,
        }
        self.probability = probability
        self.seed = seed
        super().__init__(params, {"lr": lr})

    def new_epoch(self) -> None:
        """Empty the stochastic batches of all scalars."""
        self.universal_batches = []
        for state in self.state.values():
            state["batches"].zero_()

    def _stochastic_batch(self, age: int) -> list[int]:
        """Return the union of the last ``age`` universal batches."""
        return sorted(set(chain.from_iterable(self.universal_batches[-age:])))

    @torch.no_grad()
    def step(self, samples: Sequence[int]) -> None:  # type: ignore[override]
        """Take the universal batch with these sample indices."""
        members = [(group, p) for group in self.param_groups for p in group["params"]]
        self.universal_batches.append(list(samples))
        ages = []
        for _, parameter in members:
            state = self.state[parameter]
            state.setdefault("batches", torch.zeros_like(parameter, dtype=torch.int64)).add_(1)
            ages.append(state["batches"])
        drawn = self._draw(samples)
        moving = [age[chi].tolist() for chi, age in zip(drawn, ages, strict=True)]
        # Every gradient is taken at the same weights, before any of them moves.
        gradients = {
            age: self._gradient(self._stochastic_batch(age))
            for age in sorted(set(chain.from_iterable(moving)))
        }
        for layer, (group, parameter) in enumerate(members):
            for age, gradient in gradients.items():
                chi = drawn[layer] & (ages[layer] == age)
                parameter -= torch.where(chi, group["lr"] * gradient[layer], 0.0)
            ages[layer].masked_fill_(drawn[layer], 0)
        self.steps += 1

    def _gradient(self, samples: list[int]) -> Sequence[Tensor]:
        with torch.enable_grad():
            return self.gradient(samples)

    def _draw(self, samples: Sequence[int]) -> list[Tensor]:
        """Return chi for every scalar; the current universal batch makes the statistics."""
        members = [(group, p) for group in self.param_groups for p in group["params"]]
        kinds = [group.get("kind") or kind_by_shape(p) for group, p in members]
        coins = [
            uniform(self.seed, self.steps, layer, p.shape, torch.float64, p.device)
            for layer, (_, p) in enumerate(members)
        ]
        if self.probability is not None:
            return [u < self.probability for u in coins]
        current = self._gradient(list(samples))
        chances = update_probability(current, kinds, **self.adaptive)
        return [u < p for u, p in zip(coins, chances, strict=True)]
