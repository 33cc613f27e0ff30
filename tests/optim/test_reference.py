"""Invariant: Algorithm 2 agrees with Algorithm 1 where it should, and nears it where it must."""

import math

import pytest
import torch
from torch import Tensor, nn

from stochbatch import SBS
from stochbatch.optim import ExactSBS

SAMPLES, WIDTH = 24, 6
BATCHES = [list(range(start, start + 4)) for start in range(0, SAMPLES, 4)]


class Problem:
    """Mean of f_i(w) over samples: linear, or a quartic whose gradients depend on w."""

    def __init__(self, linear: bool) -> None:
        generator = torch.Generator().manual_seed(5)
        self.data = torch.randn(SAMPLES, WIDTH, generator=generator, dtype=torch.float64)
        self.linear = linear
        self.weight = nn.Parameter(torch.linspace(-1, 1, WIDTH, dtype=torch.float64))

    def gradient(self, samples: list[int]) -> list[Tensor]:
        weight = self.weight.detach().clone().requires_grad_()
        if self.linear:
            loss = (self.data[samples] @ weight).mean()
        else:
            loss = ((self.data[samples] @ weight - 1) ** 4).mean()
        (gradient,) = torch.autograd.grad(loss, weight)
        return [gradient]


def run_both(linear: bool, lr: float, epochs: int = 3, **options: object) -> tuple[Tensor, Tensor]:
    exact, fast = Problem(linear), Problem(linear)
    one = ExactSBS([exact.weight], exact.gradient, lr, **options)
    two = SBS([fast.weight], lr, **options)
    for epoch in range(epochs):
        if epoch:
            one.new_epoch()
            two.new_epoch()
        for samples in BATCHES:
            one.step(samples)
            (fast.weight.grad,) = fast.gradient(samples)
            two.step()
    return exact.weight.detach(), fast.weight.detach()


@pytest.mark.parametrize("options", [{"probability": 0.4}, {"alpha": 1.0}], ids=str)
def test_they_agree_where_gradients_do_not_depend_on_the_weights(options: dict) -> None:
    exact, fast = run_both(True, 0.1, **options)
    torch.testing.assert_close(exact, fast, rtol=1e-12, atol=1e-14)
    assert not torch.equal(exact, Problem(True).weight)


@pytest.mark.parametrize("options", [{}, {"alpha": 0.0, "cross_layer": "mean"}], ids=str)
def test_they_agree_on_layers_of_several_kinds_too(options: dict) -> None:
    """With the default lambda, so that layers are compared; the loss is linear in the weights."""
    kinds = {"conv": [4, 9, 20], "bias": [3, 5]}
    generator = torch.Generator().manual_seed(6)
    slopes = [
        torch.randn(SAMPLES, size, generator=generator, dtype=torch.float64)
        for sizes in kinds.values()
        for size in sizes
    ]
    weights = [[nn.Parameter(torch.zeros_like(slope[0])) for slope in slopes] for _ in range(2)]

    def gradient(samples: list[int]) -> list[Tensor]:
        return [slope[samples].mean(dim=0) for slope in slopes]

    exact, fast = (
        [{"params": own[:3], "kind": "conv"}, {"params": own[3:], "kind": "bias"}]
        for own in weights
    )
    one, two = ExactSBS(exact, gradient, 0.1, **options), SBS(fast, 0.1, **options)
    for samples in BATCHES:
        one.step(samples)
        for weight, found in zip(weights[1], gradient(samples), strict=True):
            weight.grad = found
        two.step()
        for ours, theirs in zip(*weights, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
    assert any(weight.any() for weight in weights[0])


def test_elsewhere_the_gap_falls_with_the_square_of_the_rate() -> None:
    gaps = []
    for lr in (1e-3, 1e-4):
        exact, fast = run_both(False, lr, epochs=1, probability=0.4)
        gaps.append((exact - fast).abs().max().item())
    order = math.log10(gaps[0] / gaps[1])
    assert gaps[0] > 0
    assert 1.8 < order < 2.2


def test_probability_one_is_plain_sgd() -> None:
    exact, _ = run_both(False, 1e-3, probability=1.0)
    problem = Problem(False)
    sgd = torch.optim.SGD([problem.weight], lr=1e-3)
    for _ in range(3):
        for samples in BATCHES:
            (problem.weight.grad,) = problem.gradient(samples)
            sgd.step()
    torch.testing.assert_close(exact, problem.weight.detach(), rtol=1e-14, atol=0)


def test_a_stochastic_batch_is_the_union_since_the_last_move() -> None:
    """Written out as the article prints it: one set a scalar."""
    problem = Problem(False)
    optimizer = ExactSBS([problem.weight], problem.gradient, 1e-2, probability=0.4, seed=9)
    from stochbatch import uniform

    sets: list[set[int]] = [set() for _ in range(WIDTH)]
    weight = problem.weight.detach().clone()
    for step, samples in enumerate(BATCHES):
        chi = uniform(9, step, 0, (WIDTH,), torch.float64) < 0.4
        moves = {}
        for j in range(WIDTH):
            sets[j] |= set(samples)
            if chi[j]:
                moves[j] = problem.gradient(sorted(sets[j]))[0][j]
                sets[j] = set()
        for j, gradient in moves.items():
            weight[j] -= 1e-2 * gradient
        optimizer.step(samples)
        torch.testing.assert_close(problem.weight.detach(), weight, rtol=1e-13, atol=0)
        assert optimizer.state[problem.weight]["batches"].tolist() == [len(s) // 4 for s in sets]


def test_bad_input() -> None:
    problem = Problem(True)
    with pytest.raises(ValueError, match="Invalid learning rate: "):
        ExactSBS([problem.weight], problem.gradient, -1.0)
    with pytest.raises(ValueError, match="seed must be in"):
        ExactSBS([problem.weight], problem.gradient, seed=-1)
