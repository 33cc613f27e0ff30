"""The table of optimizers: how each is made and stepped, its good and its wrong inputs.

A new optimizer gets a row here, and with it the whole contract suite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stochbatch.optim import SBS, AccSGD, AlternatingSGD, EntropySGD, ExactSBS
from tests.optim.networks import batch, small_network

NAN, INF = float("nan"), float("inf")


class Problem:
    """A network and the loss of each of its batches."""

    def __init__(self, dtype: torch.dtype = torch.float32, device: str = "cpu") -> None:
        self.network: nn.Module = small_network(dtype, device)

    def loss(self, number: int) -> Tensor:
        parameter = next(self.network.parameters())
        images, labels = batch(number, parameter.dtype, parameter.device.type)
        return nn.functional.cross_entropy(self.network(images), labels)


class Bowl(Problem):
    """Parameters of any shape and dtype under a smooth loss."""

    def __init__(self, *tensors: Tensor) -> None:
        self.network = nn.ParameterList([nn.Parameter(tensor.clone()) for tensor in tensors])

    def loss(self, number: int) -> Tensor:
        parts = [(p - 0.3 * (number + 1)).abs().square().sum() for p in self.network]
        return torch.stack([part.to(torch.float32) for part in parts]).sum()


class GradientOfSamples:
    """What ``ExactSBS`` asks: a sample is a batch of the problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.optimizer: Optimizer | None = None

    def __call__(self, samples: list[int]) -> Sequence[Tensor]:
        loss = torch.stack([self.problem.loss(sample) for sample in samples]).mean()
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        found = torch.autograd.grad(loss, parameters)
        return [gradient.detach() for gradient in found]


def make_plainly(kind: type[Optimizer]) -> Callable[..., Optimizer]:
    def make(problem: Problem, params: Any = None, **options: Any) -> Optimizer:
        return kind(problem.network.parameters() if params is None else params, **options)

    return make


def make_exact(problem: Problem, params: Any = None, **options: Any) -> ExactSBS:
    gradient = GradientOfSamples(problem)
    params = problem.network.parameters() if params is None else params
    gradient.optimizer = ExactSBS(params, gradient, **options)
    return gradient.optimizer


def advance_plainly(problem: Problem, optimizer: Optimizer, number: int) -> None:
    optimizer.zero_grad()
    problem.loss(number).backward()
    optimizer.step()


def advance_by_closure(problem: Problem, optimizer: Optimizer, number: int) -> None:
    numbers = iter(range(100 * number, 100 * number + 99))

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = problem.loss(next(numbers))
        loss.backward()
        return loss

    optimizer.step(closure)


def advance_by_samples(problem: Problem, optimizer: Optimizer, number: int) -> None:
    optimizer.step([2 * number, 2 * number + 1])


@dataclass(frozen=True)
class Row:
    """One optimizer."""

    kind: type[Optimizer]
    good: tuple[dict[str, Any], ...]
    wrong: tuple[tuple[dict[str, Any], type[Exception], str], ...]
    whole: dict[str, Any] = field(default_factory=dict)
    """Options that must agree in all groups, each with a value that is not the default."""
    advance: Callable[[Problem, Optimizer, int], None] = advance_plainly
    own_make: Callable[..., Optimizer] | None = None
    native: bool = False
    """Whether its steps are compiled where that is possible."""
    calls: int = 1
    """How often a step calls its closure; 0: it takes none."""

    @property
    def make(self) -> Callable[..., Optimizer]:
        return self.own_make or make_plainly(self.kind)

    def train(self, problem: Problem, optimizer: Optimizer, steps: range) -> None:
        for number in steps:
            self.advance(problem, optimizer, number)


LR = (
    ({"lr": -0.1}, ValueError, "Invalid learning rate: -0.1 (lr must be 0 or more)"),
    ({"lr": NAN}, ValueError, "lr must be finite, got nan"),
    ({"lr": "0.1"}, TypeError, "lr must be a number, got str: '0.1'"),
    ({"lr": True}, TypeError, "lr must be a number, got bool: True"),
    ({"lr": None}, TypeError, "lr must be a number, got NoneType: None"),
    ({"lr": torch.ones(2)}, ValueError, "Tensor lr must be 1-element, got shape (2,)"),
    ({"lr": torch.tensor(1)}, ValueError, "lr as a tensor must be floating-point, got torch.int64"),
    ({"lr": torch.tensor(-1.0)}, ValueError, "Invalid learning rate: -1.0 (lr must be 0 or more)"),
)
SEED = (
    ({"seed": -1}, ValueError, "seed must be in [0, 2**64), got -1"),
    ({"seed": 2**64}, ValueError, "seed must be in [0, 2**64), got 18446744073709551616"),
    ({"seed": 0.5}, TypeError, "seed must be an int, got float: 0.5"),
)
DECAY = (
    (
        {"weight_decay": -1e-4},
        ValueError,
        "Invalid weight_decay value: -0.0001 (weight_decay mus",
    ),
    ({"weight_decay": INF}, ValueError, "weight_decay must be finite, got inf"),
)
MOMENTUM = (
    ({"momentum": 1.5}, ValueError, "Invalid momentum value: 1.5 (momentum must be in [0, 1))"),
    ({"momentum": 1}, ValueError, "Invalid momentum value: 1 (momentum must be in [0, 1))"),
    ({"momentum": -0.1}, ValueError, "Invalid momentum value: -0.1 (momentum must be in [0, 1))"),
    ({"momentum": None}, TypeError, "momentum must be a number, got NoneType: None"),
    ({"nesterov": 1}, TypeError, "nesterov must be True or False, got int: 1"),
)
SCHEME = (
    ({"alpha": INF}, ValueError, "alpha must be finite, got inf"),
    ({"alpha": "a"}, TypeError, "alpha must be a number, got str: 'a'"),
    ({"lambd": NAN}, ValueError, "lambd must be finite, got nan"),
    ({"lambd": [1]}, TypeError, "lambd must be a number, got list: [1]"),
    ({"probability": 0}, ValueError, "probability must be None or in (0, 1], got 0"),
    ({"probability": 1.01}, ValueError, "probability must be None or in (0, 1], got 1.01"),
    ({"probability": "half"}, TypeError, "probability must be a number, got str: 'half'"),
    ({"cross_layer": "sum"}, ValueError, "one of ('total', 'mean', 'weighted'), got 'sum'"),
)

SBS_GOOD = (
    {},
    {"momentum": 0.9, "weight_decay": 1e-3, "seed": 7},
    {"momentum": 0.5, "nesterov": True, "lr_scaling": "linear"},
    {"probability": 0.5, "maximize": True, "cross_layer": "mean"},
)
SBS_WRONG = (
    *LR,
    *SCHEME,
    ({"lr_scaling": True}, ValueError, "lr_scaling must be one of ('none', 'linear'), got True"),
    *MOMENTUM,
    ({"nesterov": True}, ValueError, "Nesterov momentum requires a momentum above 0, got momen"),
    *DECAY,
    ({"maximize": "yes"}, TypeError, "maximize must be True or False, got str: 'yes'"),
    *SEED,
    ({"compare": "layer"}, ValueError, "one of ('kind', 'type', 'all'), got 'layer'"),
    ({"coin": "tensor"}, ValueError, "one of ('scalar', 'none'), got 'tensor'"),
    ({"skip_nonfinite": None}, TypeError, "skip_nonfinite must be True or False, got NoneType"),
    ({"fused": 1}, TypeError, "fused must be None, True or False, got int: 1"),
)
SBS_WHOLE = {
    "compare": "all",
    "coin": "none",
    "seed": 1,
    "skip_nonfinite": False,
    "fused": False,
}

CAST = {
    "SBS": Row(SBS, SBS_GOOD, SBS_WRONG, SBS_WHOLE),
    "SBS native": Row(SBS, SBS_GOOD, SBS_WRONG, SBS_WHOLE, native=True),
    "ExactSBS": Row(
        ExactSBS,
        ({}, {"probability": 0.4, "seed": 3}, {"cross_layer": "weighted", "lambd": -1.0}),
        (*LR, *SCHEME, *SEED),
        {"seed": 1, "alpha": 0.0, "lambd": 0.0, "probability": 0.5, "cross_layer": "mean"},
        advance=advance_by_samples,
        own_make=make_exact,
        calls=0,
    ),
    "AccSGD": Row(
        AccSGD,
        ({"lr": 0.01}, {"lr": 0.01, "kappa": 100.0, "xi": 5.0, "weight_decay": 1e-3}),
        (
            *LR,
            ({"kappa": 0}, ValueError, "kappa must be above 0, got 0"),
            ({"kappa": "k"}, TypeError, "kappa must be a number, got str: 'k'"),
            ({"xi": 0}, ValueError, "xi must be in (0, sqrt(kappa)], got 0 with kappa=1000.0"),
            ({"xi": 32}, ValueError, "xi must be in (0, sqrt(kappa)], got 32 with kappa=1000.0"),
            ({"xi": INF}, ValueError, "xi must be finite, got inf"),
            ({"small_const": 0}, ValueError, "small_const must be in (0, 1], got 0"),
            ({"small_const": 1.1}, ValueError, "small_const must be in (0, 1], got 1.1"),
            ({"small_const": None}, TypeError, "small_const must be a number, got NoneType"),
            *DECAY,
        ),
    ),
    "EntropySGD": Row(
        EntropySGD,
        (
            {},
            {"L": 2, "momentum": 0.9, "weight_decay": 1e-3, "seed": 7, "noise": 1e-2},
            {"L": 3, "momentum": 0.5, "nesterov": False, "beta": 0.5, "gamma0": 1.0},
        ),
        (
            *LR,
            ({"L": 0}, ValueError, "L must be 1 or more, got 0"),
            ({"L": 2.0}, TypeError, "L must be an int, got float: 2.0"),
            ({"gamma0": -1}, ValueError, "gamma0 must be 0 or more, got -1"),
            ({"scoping": -1e-3}, ValueError, "scoping must be 0 or more, got -0.001"),
            ({"gamma_max": -1}, ValueError, "gamma_max must be 0 or more, got -1"),
            ({"gamma_max": "x"}, TypeError, "gamma_max must be a number, got str: 'x'"),
            ({"noise": -1.0}, ValueError, "noise must be 0 or more, got -1.0"),
            ({"noise": "loud"}, TypeError, "noise must be a number, got str: 'loud'"),
            ({"inner_lr": 0}, ValueError, "inner_lr must be above 0, got 0"),
            ({"beta": 1}, ValueError, "beta must be in [0, 1), got 1"),
            ({"beta": -0.5}, ValueError, "beta must be in [0, 1), got -0.5"),
            *MOMENTUM,
            *DECAY,
            *SEED,
        ),
        {"seed": 1, "L": 2},
        advance=advance_by_closure,
        calls=5,
    ),
    "AlternatingSGD": Row(
        AlternatingSGD,
        ({}, {"weight_decay": 1e-2, "seed": 5}),
        (*LR, *DECAY, *SEED),
        {"seed": 1},
    ),
}


def settings() -> list[tuple[str, dict[str, Any]]]:
    """Return every row's name with each of its good inputs."""
    return [(name, options) for name, row in CAST.items() for options in row.good]


def finite(problem: Problem) -> bool:
    return all(math.isfinite(float(p.detach().abs().sum())) for p in problem.network.parameters())
