"""Invariant: ``EntropySGD`` is the published algorithm, in double precision to rounding."""

import math

import pytest
import torch
from torch import Tensor, nn

from stochbatch.optim import EntropySGD
from stochbatch.optim.coins import normal

WIDTH, STEPS = 5, 6
OPTIONS = [
    {},
    {"L": 3, "momentum": 0.8, "weight_decay": 0.05},
    {"L": 4, "momentum": 0.5, "nesterov": False, "noise": 0.1, "seed": 9},
    {"L": 1, "gamma0": 2.0, "scoping": 0.5, "inner_lr": 0.02, "beta": 0.0},
]


def curvature(call: int) -> list[float]:
    return [0.1 * (1 + (call + j) % 4) for j in range(WIDTH)]


def by_hand(
    x: list[float],
    rates: list[float],
    L: int = 5,  # noqa: N803
    gamma0: float = 0.03,
    scoping: float = 1e-3,
    noise: float = 1e-4,
    inner_lr: float = 0.1,
    beta: float = 0.75,
    momentum: float = 0.0,
    nesterov: bool = True,
    weight_decay: float = 0.0,
    seed: int = 0,
) -> list[float]:
    """The gradient of call c at w is curvature(c) (w - 1)."""
    x, outer = list(x), [0.0] * WIDTH
    call = 0

    def through(buffer: list[float], j: int, d: float) -> float:
        if not momentum:
            return d
        buffer[j] = momentum * buffer[j] + d
        return d + momentum * buffer[j] if nesterov else buffer[j]

    for t, lr in enumerate(rates):
        gamma = gamma0 * (1 + scoping) ** t
        w, mu, inner = list(x), list(x), [0.0] * WIDTH
        for i in range(L):
            z = normal(seed, t * L + i, 0, (WIDTH,), torch.float64).tolist()
            for j in range(WIDTH):
                d = curvature(call)[j] * (w[j] - 1) + weight_decay * w[j]
                d = through(inner, j, d)
                d = d + gamma * (w[j] - x[j]) + noise / math.sqrt(0.5 * inner_lr) * z[j]
                w[j] = w[j] - inner_lr * d
                mu[j] = beta * mu[j] + (1 - beta) * w[j]
            call += 1
        for j in range(WIDTH):
            d = through(outer, j, (x[j] - mu[j]) + weight_decay * x[j])
            x[j] = x[j] - lr * d
    return x


class Run:
    def __init__(self, **options: object) -> None:
        self.weight = nn.Parameter(torch.linspace(-1, 2, WIDTH, dtype=torch.float64))
        self.optimizer = EntropySGD([self.weight], **options)
        self.calls = 0

    def closure(self) -> Tensor:
        self.optimizer.zero_grad()
        slope = torch.tensor(curvature(self.calls), dtype=torch.float64)
        loss = 0.5 * (slope * (self.weight - 1) ** 2).sum()
        loss.backward()
        self.calls += 1
        return loss


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_it_is_the_published_algorithm_under_a_schedule(options: dict) -> None:
    run = Run(**options)
    start = run.weight.detach().tolist()
    rates = [1.0 * 0.8**t for t in range(STEPS)]
    for rate in rates:
        run.optimizer.param_groups[0]["lr"] = rate
        run.optimizer.step(run.closure)
    expected = torch.tensor(by_hand(start, rates, **options), dtype=torch.float64)
    torch.testing.assert_close(run.weight.detach(), expected, rtol=1e-12, atol=1e-13)
    assert run.calls == STEPS * options.get("L", 5)
    assert run.optimizer.steps == STEPS


@pytest.mark.parametrize("steps", [6_000, 10_000, 10**6])
@pytest.mark.parametrize("gamma_max", [None, 0.5])
def test_it_stays_stable_however_long_it_runs(steps: int, gamma_max: float | None) -> None:
    """The pull back to the start grows without end in the article it comes from."""
    run = Run(lr=0.5, gamma_max=gamma_max)
    run.optimizer.step(run.closure)
    run.optimizer.state[run.weight]["step"].fill_(steps)
    for _ in range(200):
        run.optimizer.step(run.closure)
    assert (run.weight - 1).abs().max() < 1.0


def test_noise_is_another_for_each_seed_step_evaluation_and_parameter() -> None:
    numbers = [normal(s, t, p, (200,)) for s in (0, 1) for t in (0, 1) for p in (0, 1)]
    correlations = torch.corrcoef(torch.stack(numbers)).fill_diagonal_(0)
    assert correlations.abs().max() < 0.35  # five standard errors of 28 correlations


def test_if_the_closure_raises_the_weights_are_put_back() -> None:
    run = Run(momentum=0.5, lr=1.0)
    run.optimizer.step(run.closure)
    before = run.weight.detach().clone()
    buffer = run.optimizer.state[run.weight]["momentum_buffer"].clone()

    def fails_at_the_third_call() -> Tensor:
        if run.calls == 7:
            assert not torch.equal(run.weight, before), "the inner steps have moved it by now"
            raise KeyboardInterrupt
        return run.closure()

    with pytest.raises(KeyboardInterrupt):
        run.optimizer.step(fails_at_the_third_call)
    assert torch.equal(run.weight, before)
    assert torch.equal(run.optimizer.state[run.weight]["momentum_buffer"], buffer)
    assert run.optimizer.steps == 1


def test_a_closure_may_return_a_number_or_nothing() -> None:
    run = Run()

    def number() -> float:
        return float(run.closure().detach())

    def nothing() -> None:
        run.closure()

    assert isinstance(run.optimizer.step(number), float)
    assert run.optimizer.step(nothing) is None
