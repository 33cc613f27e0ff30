"""Algorithm 1 of the article, the exact form: a scalar moves on its own set of samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.optim.optimizer import ParamsT

from stochbatch.checks import check_seed
from stochbatch.optim import optimizer as base
from stochbatch.optim.coins import uniform
from stochbatch.optim.probability import CrossLayer, check_scheme, update_probability
from stochbatch.optim.slots import COUNTER, Slot, Slots


class ExactSBS(base.CheckedOptimizer):
    """Algorithm 1: every scalar moves on the gradient of its own set of samples.

    A scalar's set is the union of the universal batches since it last moved: a step asks for one
    gradient per age of the scalars drawn. For small models, and for checking Algorithm 2.

    Args:
        params: parameters, as for ``torch.optim.SGD``; a group may have a ``kind``.
        gradient: takes sample indices, returns the gradient of their mean loss for each parameter.
        lr, alpha, lambd, probability, cross_layer, seed: as for :class:`stochbatch.SBS`.

    Example:
        >>> import torch
        >>> from stochbatch.optim import ExactSBS
        >>> targets = torch.tensor([1.0, 3.0])
        >>> w = torch.nn.Parameter(torch.zeros(1))
        >>> gradient = lambda samples: [w.detach() - targets[samples].mean()]
        >>> optimizer = ExactSBS([w], gradient, lr=0.5, probability=1.0)
        >>> optimizer.step([0, 1])
        >>> w.item()
        1.0

    Reference: Nakamura, Soatto, Hong 2020, Algorithm 1.
    """

    _seen = Slot(torch.int64, (-1, 2), shared=True, on_host=True)  # rows of (sample, step)
    slots: ClassVar[Slots] = {"batches": Slot(torch.int64, least=0), "step": COUNTER, "seen": _seen}
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
        self.gradient = gradient
        scheme = {"alpha": alpha, "lambd": lambd, "cross_layer": cross_layer, "seed": seed}
        super().__init__(params, {"lr": lr, "probability": probability, **scheme})

    @staticmethod
    def _check_options(options: Mapping[str, Any]) -> None:
        base.check_lr(options["lr"])
        check_scheme(options)
        check_seed(options["seed"])

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "gradient": self.gradient}

    def new_epoch(self) -> None:
        """Empty the stochastic batches of all scalars."""
        for state in self._filled():
            state["batches"].zero_()

    @_disable_dynamo
    @torch.no_grad()
    def step(self, samples: Sequence[int] | Tensor) -> None:  # type: ignore[override]
        """Take the universal batch with these sample indices."""
        batch = torch.as_tensor(list(samples), device="cpu")
        if not batch.numel() or batch.is_floating_point() or batch.dtype == torch.bool:
            raise TypeError(f"step takes the sample indices of a batch, got {samples!r:.60}")
        t, before, group = self._counter(), self._shared("seen"), self.param_groups[0]
        now = torch.stack((batch.long(), t.expand(len(batch))), dim=1)
        seen = now if before is None else torch.cat((before, now))
        layers = list(self._members())
        chances: Sequence[Any] = [group["probability"]] * len(layers)
        if group["probability"] is None:
            scheme = group["alpha"], group["lambd"], group["cross_layer"]
            chances = update_probability(self._gradient(now), [m.kind for m in layers], *scheme)
        drawn, ages = [], []
        for layer, p in zip(layers, chances, strict=True):
            w, state = base.real_view(layer.tensor), self.state.get(layer.tensor, {})
            u = uniform(group["seed"], t, layer.number, w.shape, torch.float64, w.device)
            drawn.append(u < p)  # Eq. 9
            ages.append(torch.ones_like(w, dtype=torch.int64) + state.get("batches", 0))
        moving = {k for chi, age in zip(drawn, ages, strict=True) for k in age[chi].tolist()}
        # Eq. 12: a set of age k has the last k batches. All gradients come before the first move.
        gradients = {k: self._gradient(seen[seen[:, 1] > t - k]) for k in sorted(moving)}
        for layer, chi, age in zip(layers, drawn, ages, strict=True):
            w, lr = base.real_view(layer.tensor), base.rate_of(layer.group)
            for k, g in gradients.items():
                w -= torch.where(chi & (age == k), lr * g[layer.number], 0)  # Eq. 10
            age.masked_fill_(chi, 0)
        seen = seen[seen[:, 1] > t - max(int(age.max()) for age in ages if age.numel())]
        for layer, age in zip(layers, ages, strict=True):
            self.state[layer.tensor].update({"batches": age, "step": t, "seen": seen})
        t += 1

    def _gradient(self, rows: Tensor) -> list[Tensor]:
        """Return the gradient of every layer over a set of samples (Eq. 11)."""
        with torch.enable_grad():
            found = list(self.gradient(sorted({*rows[:, 0].tolist()})))
        if [one.shape for one in found] != (shapes := [m.tensor.shape for m in self._members()]):
            raise ValueError(f"gradient must return one tensor per parameter, of {shapes}")
        return [base.real_grad(one) for one in found]
