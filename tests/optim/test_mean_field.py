"""Invariant: without a coin every scalar moves, by its probability times what SGD would do."""

import copy

import pytest
import torch
from torch import nn

from stochbatch import SBS, param_groups, update_probability
from tests.optim.networks import (
    backward,
    moves_natively,
    same_state,
    same_weights,
    small_network,
    train,
)

OPTIONS = [
    {},
    {"momentum": 0.9},
    {"momentum": 0.9, "nesterov": True, "weight_decay": 1e-2},
    {"weight_decay": 1e-2, "maximize": True},
]


def pair(dtype: torch.dtype = torch.float64) -> tuple[nn.Module, nn.Module]:
    network = small_network(dtype)
    return network, copy.deepcopy(network)


@pytest.mark.parametrize("options", OPTIONS)
def test_a_fixed_half_is_sgd_at_half_the_rate(options: dict) -> None:
    """Weight decay enters the gradient, before the half: so it is halved with the rate."""
    ours, theirs = pair()
    mean_field = SBS(ours.parameters(), lr=0.2, probability=0.5, coin="none", **options)
    sgd = torch.optim.SGD(theirs.parameters(), lr=0.1, **options)
    for step in range(5):
        train(ours, mean_field, range(step, step + 1))
        train(theirs, sgd, range(step, step + 1))
        assert same_weights(ours, theirs)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("options", OPTIONS)
def test_probability_one_is_sgd_bit_for_bit(options: dict, fused: bool) -> None:
    ours, theirs = pair(torch.float32)
    mean_field = SBS(
        ours.parameters(), lr=0.1, probability=1.0, coin="none", fused=fused, **options
    )
    sgd = torch.optim.SGD(theirs.parameters(), lr=0.1, foreach=False, **options)
    train(ours, mean_field, range(5))
    train(theirs, sgd, range(5))
    assert same_weights(ours, theirs)


def test_each_scalar_moves_by_its_probability() -> None:
    network = small_network(torch.float64)
    optimizer = SBS(param_groups(network), lr=0.1, coin="none", alpha=0.7, lambd=-1.5)
    backward(network, 0)
    members = list(optimizer._members())
    grads = [member.tensor.grad for member in members]
    chances = update_probability(grads, [member.kind for member in members], 0.7, -1.5)
    before = [member.tensor.detach().clone() for member in members]
    optimizer.step()
    for member, old, p in zip(members, before, chances, strict=True):
        torch.testing.assert_close(
            member.tensor, old - 0.1 * p * member.tensor.grad, rtol=0, atol=1e-15
        )


@pytest.mark.parametrize("options", [*OPTIONS, {"probability": 0.3}, {"compare": "all"}])
def test_compiled_steps_are_the_eager_ones(options: dict) -> None:
    networks = pair(torch.float32)
    optimizers = [
        SBS(param_groups(network), coin="none", fused=fused, **options)
        for network, fused in zip(networks, (True, False), strict=True)
    ]
    for network, optimizer in zip(networks, optimizers, strict=True):
        train(network, optimizer, range(6))
    assert moves_natively(optimizers[0])
    assert same_weights(*networks)
    for one, other in zip(*(optimizer.layer_report() for optimizer in optimizers), strict=True):
        assert one.batches == other.batches == 1
        assert one.probability == pytest.approx(other.probability, rel=1e-6)


def test_it_keeps_no_average_and_no_count() -> None:
    network, _ = pair(torch.float32)
    optimizer = SBS(network.parameters(), coin="none", momentum=0.9)
    train(network, optimizer, range(2))
    optimizer.new_epoch()
    names = {name for state in optimizer.state.values() for name in state}
    assert names == {"momentum_buffer", "step", "skipped_steps", "tally"}


@pytest.mark.parametrize("fused", [False, True])
def test_it_resumes_bit_for_bit(fused: bool) -> None:
    network, other = pair(torch.float32)
    options = {"coin": "none", "momentum": 0.9, "fused": fused}
    optimizer = SBS(network.parameters(), **options)
    train(network, optimizer, range(3))
    resumed = SBS(other.parameters(), **options)
    other.load_state_dict(network.state_dict())
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(network, optimizer, range(3, 6))
    train(other, resumed, range(3, 6))
    assert same_weights(network, other)
    assert same_state(optimizer, resumed)


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_with_a_nan_moves_nothing(fused: bool) -> None:
    weight = nn.Parameter(torch.ones(20))
    optimizer = SBS([weight], lr=1.0, coin="none", momentum=0.9, fused=fused)
    weight.grad = torch.ones(20)
    optimizer.step()
    before = weight.detach().clone()
    weight.grad[7] = torch.nan
    optimizer.step()
    assert torch.equal(weight, before)
    assert (optimizer.steps, optimizer.skipped_steps) == (1, 1)
