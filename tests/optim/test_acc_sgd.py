"""Invariant: ``AccSGD`` is the published recursion, in double precision to rounding."""

import torch
from torch import nn

from stochbatch.optim import AccSGD

PARAMETERS = [
    {},
    {"kappa": 100.0, "xi": 5.0, "small_const": 0.3},
    {"weight_decay": 0.1},
    {"kappa": 1.0, "xi": 1.0, "small_const": 1.0},
]


def by_hand(
    w: list[float],
    gradients: list[list[float]],
    rates: list[float],
    kappa: float = 1000.0,
    xi: float = 10.0,
    small_const: float = 0.7,
    weight_decay: float = 0.0,
) -> list[float]:
    w, v, c = list(w), list(w), small_const
    for g, lr in zip(gradients, rates, strict=True):
        for j in range(len(w)):
            b = c**2 * xi / kappa
            zeta = c / (c + b)
            d = g[j] + weight_decay * w[j]
            v[j] = (1 - b) * v[j] + b * (w[j] - lr * kappa / c * d)
            w[j] = zeta * (w[j] - lr * d) + (1 - zeta) * v[j]
    return w


def test_it_is_the_published_recursion_under_a_schedule() -> None:
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(7, generator=generator, dtype=torch.float64)
    gradients = torch.randn(20, 7, generator=generator, dtype=torch.float64)
    rates = [0.1 * 0.9**step for step in range(20)]
    for options in PARAMETERS:
        weight = nn.Parameter(start.clone())
        optimizer = AccSGD([weight], **options)
        for gradient, rate in zip(gradients, rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate
            weight.grad = gradient.clone()
            optimizer.step()
        expected = by_hand(start.tolist(), gradients.tolist(), rates, **options)
        torch.testing.assert_close(
            weight.detach(), torch.tensor(expected, dtype=torch.float64), rtol=1e-13, atol=1e-14
        )


def test_options_are_read_from_the_group_at_each_step() -> None:
    weight = nn.Parameter(torch.ones(1, dtype=torch.float64))
    optimizer = AccSGD([weight], lr=0.1, kappa=10.0, xi=2.0)
    weight.grad = torch.ones(1, dtype=torch.float64)
    optimizer.step()
    halfway = weight.item()
    optimizer.param_groups[0].update(kappa=50.0, xi=3.0, small_const=0.5)
    optimizer.step()
    b, c = 0.25 * 3 / 50, 0.5
    first = (1 - 0.098) * 1 + 0.098 * (1 - 0.1 * 10 / 0.7)
    v = (1 - b) * first + b * (halfway - 0.1 * 50 / c)
    expected = c / (c + b) * (halfway - 0.1) + b / (c + b) * v
    torch.testing.assert_close(weight.item(), expected, rtol=1e-13, atol=0)


def test_under_a_constant_gradient_the_step_tends_to_its_limit() -> None:
    weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = AccSGD([weight], lr=0.01)
    for _ in range(8000):
        before = weight.item()
        weight.grad = torch.ones(1, dtype=torch.float64)
        optimizer.step()
    limit = 0.7 * (1 + 10) / (1 + 0.7)
    torch.testing.assert_close((before - weight.item()) / 0.01, limit, rtol=1e-6, atol=0)


def test_a_low_precision_weight_keeps_its_average_in_single_precision() -> None:
    weight = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = AccSGD([weight])
    weight.grad = torch.ones(3, dtype=torch.bfloat16)
    optimizer.step()
    assert optimizer.state[weight]["average"].dtype == torch.float32
