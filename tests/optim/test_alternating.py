"""Invariant: ``AlternatingSGD`` moves each scalar on one of every two batches, by a fair coin."""

import torch
from torch import nn

from stochbatch import uniform
from stochbatch.optim import AlternatingSGD

WIDTH = 6


def by_hand(w: list[float], steps: int, seed: int, weight_decay: float) -> list[float]:
    """Equations 5 to 8 written out; the gradient of batch n at w is (n + 1) w - 1."""
    w = list(w)
    for step in range(steps):
        coins = uniform(seed, step // 2, 0, (WIDTH,)).tolist()
        gradients = [(step + 1) * x - 1 + weight_decay * x for x in w]
        for j in range(WIDTH):
            heads = coins[j] < 0.5
            if heads == (step % 2 == 0):
                w[j] = w[j] - 0.05 * gradients[j]
    return w


def test_it_is_the_article_s_alternation() -> None:
    for seed, weight_decay in ((0, 0.0), (7, 0.1)):
        weight = nn.Parameter(torch.linspace(-1, 1, WIDTH, dtype=torch.float64))
        start = weight.detach().tolist()
        optimizer = AlternatingSGD([weight], 0.05, weight_decay=weight_decay, seed=seed)
        for step in range(7):
            weight.grad = (step + 1) * weight.detach() - 1
            optimizer.step()
        expected = torch.tensor(by_hand(start, 7, seed, weight_decay), dtype=torch.float64)
        torch.testing.assert_close(weight.detach(), expected, rtol=1e-14, atol=1e-15)


def test_after_two_batches_every_scalar_has_moved_once() -> None:
    weight = nn.Parameter(torch.zeros(1000))
    optimizer = AlternatingSGD([weight], 1.0)
    for cycle in range(3):
        halves = []
        for _ in range(2):
            before = weight.detach().clone()
            weight.grad = torch.ones(1000)
            optimizer.step()
            halves.append(weight.detach() != before)
        assert (halves[0] ^ halves[1]).all()
        # A fair coin leaves this range once in 10**10 times.
        assert 400 < halves[0].sum() < 600
        assert torch.equal(weight.detach(), torch.full((1000,), -1.0 - cycle))


def test_every_cycle_has_new_coins() -> None:
    weight = nn.Parameter(torch.zeros(64))
    optimizer = AlternatingSGD([weight], 1.0)
    firsts = []
    for step in range(6):
        before = weight.detach().clone()
        weight.grad = torch.ones(64)
        optimizer.step()
        if step % 2 == 0:
            firsts.append(tuple((weight.detach() != before).tolist()))
    assert len(set(firsts)) == 3
