"""``ExactSBS``: Algorithm 1, which moves every scalar on the gradient of its own set of samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, islice
from operator import index
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.optim.optimizer import ParamsT

from stochbatch.checks import check_seed
from stochbatch.optim.coins import uniform
from stochbatch.optim.optimizer import (
    COUNTER,
    STEP,
    CheckedOptimizer,
    Member,
    Slot,
    Slots,
    check_lr,
    rate_of,
    real_grad,
    real_view,
)
from stochbatch.optim.probability import CrossLayer, check_scheme, update_probability

BATCHES = "batches"
SAMPLES = "samples"
SIZES = "sizes"

_VECTOR = Slot(torch.int64, (-1,), shared=True, on_host=True)


class ExactSBS(CheckedOptimizer):
    """Algorithm 1: every scalar moves on the gradient of its own set of samples.

    A scalar's set is the union of the universal batches since it last moved, so there are
    as many different sets as there are ages: a step asks for one gradient an age among the
    scalars that were drawn, all at the present weights. For small models and for checking
    Algorithm 2.

    Args:
        params: parameters, as for ``torch.optim.SGD``; a group may have a ``kind``.
        gradient: a function that takes sample indices and returns the gradient of their
            mean loss at the present weights, one tensor a parameter, in order.
        lr: learning rate, a float or a tensor.
        alpha, lambd, cross_layer, probability, seed: as for :class:`stochbatch.SBS`; the
            same in all groups.

    Example:
        >>> import torch
        >>> from stochbatch.optim import ExactSBS
        >>> targets = torch.tensor([1.0, 3.0])
        >>> w = torch.nn.Parameter(torch.zeros(1))
        >>> def gradient(samples):
        ...     return [w.detach() - targets[samples].mean()]
        >>> optimizer = ExactSBS([w], gradient, lr=0.5, probability=1.0)
        >>> optimizer.step([0, 1])
        >>> w.item()
        1.0

    Reference: Nakamura, Soatto, Hong, "Stochastic batch size for adaptive regularization
    in deep network optimization", 2020, Algorithm 1.
    """

    slots: ClassVar[Slots] = {
        BATCHES: Slot(torch.int64, least=0),
        STEP: COUNTER,
        SAMPLES: _VECTOR,
        SIZES: _VECTOR._replace(least=1),
    }
    whole = ("alpha", "lambd", "probability", "cross_layer", "seed")

    def __init__(
        self,
        params: ParamsT,
        gradient: Callable[[list[int]], Sequence[Tensor]],
        lr: float | Tensor = 0.1,
        *,
        alpha: float = 0.1,
        lambd: float = -4.0,
        probability: float | None = None,
        cross_layer: CrossLayer = "total",
        seed: int = 0,
    ) -> None:
        if not callable(gradient):
            raise TypeError(f"gradient must be a function, got {type(gradient).__name__}")
        self.gradient = gradient
        defaults = {
            "lr": lr,
            "alpha": alpha,
            "lambd": lambd,
            "probability": probability,
            "cross_layer": cross_layer,
            "seed": seed,
        }
        super().__init__(params, defaults)

    @staticmethod
    def _check_options(options: Mapping[str, Any]) -> None:
        check_lr(options["lr"])
        check_scheme(options)
        check_seed(options["seed"])

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "gradient": self.gradient}

    def new_epoch(self) -> None:
        """Empty the stochastic batches of all scalars."""
        for state in self._filled():
            state[BATCHES].zero_()

    @_disable_dynamo
    @torch.no_grad()
    def step(self, samples: Sequence[int] | Tensor) -> None:  # type: ignore[override]
        """Take the universal batch with these sample indices."""
        batches = [*self._universal_batches(), _indices(samples)]
        members = [member for member in self._members() if member.tensor.numel()]
        drawn = self._draw(members, batches[-1])
        ages = [self._age(member) + 1 for member in members]
        moving = {age for chi, its in zip(drawn, ages, strict=True) for age in its[chi].tolist()}
        # Every gradient is taken at the same weights, before any of them moves.
        gradients = {age: self._gradient(_union(batches[-age:])) for age in sorted(moving)}
        for chi, its, member in zip(drawn, ages, members, strict=True):
            weight = real_view(member.tensor)
            for age, gradient in gradients.items():
                move = rate_of(member.group) * real_grad(gradient[member.number])
                weight -= torch.where(chi & (its == age), move, 0.0)
            its.masked_fill_(chi, 0)
        self._remember(members, ages, batches)

    def _gradient(self, samples: list[int]) -> Sequence[Tensor]:
        with torch.enable_grad():
            gradients = list(self.gradient(samples))
        expected = [tuple(member.tensor.shape) for member in self._members()]
        found = [
            tuple(one.shape) if isinstance(one, Tensor) else type(one).__name__ for one in gradients
        ]
        if found != expected:
            raise ValueError(
                f"gradient must return one tensor a parameter, of shapes {expected}, got {found}"
            )
        return gradients

    def _draw(self, members: list[Member], samples: list[int]) -> list[Tensor]:
        """Return chi for every scalar; the current universal batch makes the statistics."""
        options = members[0].group if members else self.defaults
        step, seed = self._counter(), options["seed"]
        coins = [
            uniform(seed, step, member.number, view.shape, torch.float64, view.device)
            for member, view in ((member, real_view(member.tensor)) for member in members)
        ]
        if options["probability"] is not None:
            return [u < options["probability"] for u in coins]
        current = self._gradient(samples)
        views = [real_grad(current[member.number]) for member in members]
        scheme = {name: options[name] for name in ("alpha", "lambd", "cross_layer")}
        chances = update_probability(views, [member.kind for member in members], **scheme)
        return [u < p for u, p in zip(coins, chances, strict=True)]

    def _age(self, member: Member) -> Tensor:
        """Return the number of batches since each scalar moved, before this step."""
        held: Tensor | None = self.state.get(member.tensor, {}).get(BATCHES)
        if held is None:
            return torch.zeros_like(real_view(member.tensor), dtype=torch.int64)
        return held

    def _universal_batches(self) -> list[list[int]]:
        samples, sizes = self._shared(SAMPLES), self._shared(SIZES)
        if samples is None or sizes is None:
            return []
        remaining = iter(samples.tolist())
        return [list(islice(remaining, size)) for size in sizes.tolist()]

    def _remember(
        self, members: list[Member], ages: list[Tensor], batches: list[list[int]]
    ) -> None:
        oldest = max((int(age.max()) for age in ages), default=0)
        kept = batches[len(batches) - oldest :]
        step = self._counter()
        samples = torch.tensor(list(chain.from_iterable(kept)), dtype=torch.int64, device="cpu")
        sizes = torch.tensor([len(batch) for batch in kept], dtype=torch.int64, device="cpu")
        for member, age in zip(members, ages, strict=True):
            self.state[member.tensor].update(
                {BATCHES: age, STEP: step, SAMPLES: samples, SIZES: sizes}
            )
        step.add_(1)


def _indices(samples: Sequence[int] | Tensor) -> list[int]:
    if callable(samples):
        raise TypeError("ExactSBS.step takes the sample indices of a batch, got a function")
    given = samples.tolist() if isinstance(samples, Tensor) else list(samples)
    if not given:
        raise ValueError("ExactSBS.step takes the sample indices of a batch, got none")
    if any(isinstance(sample, bool) or not hasattr(sample, "__index__") for sample in given):
        raise TypeError(f"sample indices must be whole numbers, got {given!r:.60}")
    return [index(sample) for sample in given]  # numpy's integers too


def _union(batches: list[list[int]]) -> list[int]:
    return sorted(set(chain.from_iterable(batches)))
