"""Invariant: ``SBS`` is Algorithm 2 as one reads it, option by option, and after a resume."""

import copy
import inspect
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from stochbatch import SBS, param_groups
from stochbatch.optim.article import algorithm1, algorithm2
from stochbatch.optim.article.algorithm2 import Algorithm2
from tests.optim.networks import backward, same_weights, small_network

OPTIONS = [
    {},
    {"alpha": 1.0, "lambd": 0.0},
    {"alpha": 0.0, "lambd": -1.0, "seed": 3},
    {"cross_layer": "mean", "momentum": 0.9},
    {"cross_layer": "weighted", "weight_decay": 1e-2},
    {"probability": 0.4, "momentum": 0.5, "weight_decay": 1e-2, "seed": 2**40 + 1},
    {"probability": 1.0},
]


def both(**options: Any) -> tuple[nn.Module, Algorithm2, nn.Module, SBS]:
    one, other = small_network(torch.float64), small_network(torch.float64)
    sbs = SBS(param_groups(other), fused=False, **options)
    return one, Algorithm2(param_groups(one), **options), other, sbs


def backward_both(one: nn.Module, other: nn.Module, step: int) -> None:
    """Set equal gradients: a bias before a batch norm has nothing but its rounding."""
    backward(one, step)
    for w, v in zip(one.parameters(), other.parameters(), strict=True):
        v.grad = w.grad.clone()


def assert_the_same(one: Algorithm2, other: SBS) -> None:
    """Demand equal masks (a mask is where the count is 1) and weights to 1e-12."""
    pairs = zip(one.param_groups, other.param_groups, strict=True)
    for w, v in ((w, v) for g, h in pairs for w, v in zip(g["params"], h["params"], strict=True)):
        torch.testing.assert_close(w, v, rtol=1e-12, atol=1e-12)
        if v in other.state:
            assert torch.equal(one.state[w]["batches"], other.state[v]["batches"].double())
            found, expected = one.state[w]["grad_mean"], other.state[v]["grad_mean"]
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_it_equals_sbs_over_epochs(options: dict) -> None:
    one, algorithm2, other, sbs = both(**options)
    for step in range(12):
        if step % 5 == 4:
            algorithm2.new_epoch()
            sbs.new_epoch()
        for optimizer in (algorithm2, sbs):
            optimizer.param_groups[1]["lr"] = 0.1 / (step + 1)  # as a scheduler would
        backward_both(one, other, step)
        algorithm2.step()
        sbs.step()
        assert_the_same(algorithm2, sbs)
    assert not same_weights(one, small_network(torch.float64))


def test_groups_may_differ_and_gradients_may_be_missing() -> None:
    one, _, other, _ = both()
    overrides = {"conv": {"lambd": -1.0, "cross_layer": "mean"}, "bias": {"probability": 0.5}}
    algorithm2 = Algorithm2(param_groups(one, **overrides), lr=0.05)
    sbs = SBS(param_groups(other, **overrides), lr=0.05, fused=False)
    for step in range(6):
        backward_both(one, other, step)
        for network, optimizer in ((one, algorithm2), (other, sbs)):
            if step % 2:
                network[3].weight.grad = network[8].bias.grad = None
            optimizer.step()
        assert_the_same(algorithm2, sbs)


def test_plain_parameters_have_kinds_by_shape() -> None:
    one, other = small_network(torch.float64), small_network(torch.float64)
    algorithm2, sbs = Algorithm2(one.parameters()), SBS(other.parameters(), fused=False)
    for step in range(4):
        backward_both(one, other, step)
        algorithm2.step()
        sbs.step()
        assert_the_same(algorithm2, sbs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_resumed_run_is_bitwise_the_run_that_never_stopped(dtype: torch.dtype) -> None:
    options = {"momentum": 0.9, "weight_decay": 1e-3, "seed": 5}
    whole, resumed = small_network(dtype), small_network(dtype)
    optimizer = Algorithm2(param_groups(whole), **options)
    for step in range(3):
        backward(whole, step)
        optimizer.step()
    file = io.BytesIO()
    torch.save({"network": whole.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    other = Algorithm2(param_groups(resumed))
    resumed.load_state_dict(saved["network"])
    other.load_state_dict(saved["optimizer"])
    for step in range(3, 7):
        for network, its_optimizer in ((whole, optimizer), (resumed, other)):
            backward(network, step)
            its_optimizer.step()
    assert same_weights(whole, resumed)


def test_a_closure_is_called_with_gradients_on_and_its_loss_returned() -> None:
    network = small_network()
    optimizer = Algorithm2(network.parameters(), probability=1.0)
    with torch.no_grad():
        loss = optimizer.step(lambda: backward(network, 0))
    twin = small_network()
    assert loss == backward(twin, 0)
    torch.optim.SGD(twin.parameters(), lr=0.1).step()
    for w, v in zip(network.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(w, v)


def test_copies_go_on_as_the_original_does() -> None:
    network = small_network()
    optimizer = Algorithm2(network.parameters(), momentum=0.9)
    backward(network, 0)
    optimizer.step()
    twin, its_optimizer = copy.deepcopy((network, optimizer))
    for a_network, an_optimizer in ((network, optimizer), (twin, its_optimizer)):
        backward(a_network, 1)
        an_optimizer.step()
    assert same_weights(network, twin)


@pytest.mark.parametrize("module", [algorithm1, algorithm2], ids=lambda m: m.__name__)
def test_it_can_be_read_in_one_sitting(module: Any) -> None:
    assert len(Path(inspect.getfile(module)).read_text().splitlines()) < 120
