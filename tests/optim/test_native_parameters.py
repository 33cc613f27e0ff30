"""Invariant: the compiled step moves the parameters that are there, as they are at that moment."""

import contextlib
import copy

import pytest
import torch
from torch import nn

from stochbatch import SBS
from stochbatch.optim.kernels import native
from tests.optim.networks import (
    moves_natively,
    same_weights,
    small_network,
    train,
)
from tests.optim.test_native import CHANNELS_LAST, available

pytestmark = pytest.mark.skipif(not available(), reason="no C++ compiler that can build the step")


def test_a_gradient_in_another_layout_is_the_same_gradient() -> None:
    weights = [nn.Parameter(torch.ones(8, 4, 3, 3)) for _ in range(2)]
    gradient = torch.randn(8, 4, 3, 3)
    for weight, layout in zip(weights, (torch.contiguous_format, CHANNELS_LAST), strict=True):
        weight.grad = gradient.clone(memory_format=layout)
        SBS([weight], fused=True).step()
    assert torch.equal(*weights)


def test_autograd_notices_the_change() -> None:
    weight = nn.Parameter(torch.ones(3))
    loss = (weight * weight).sum()
    weight.grad = torch.ones(3)
    SBS([weight], fused=True).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_weights_replaced_between_steps_are_the_ones_that_move() -> None:
    weight = nn.Parameter(torch.zeros(1000))
    optimizer = SBS([weight], lr=1.0, probability=1.0, fused=True)
    for _ in range(3):
        weight.data = torch.zeros(1000)
        weight.grad = torch.ones(1000)
        optimizer.step()
        assert torch.equal(weight, -torch.ones(1000))


@pytest.mark.parametrize(
    "weight",
    [
        torch.ones(8)[::2],
        torch.ones(8, dtype=torch.bfloat16)[::2],
        torch.ones(5, 4).t(),
    ],
    ids=lambda w: f"{w.dtype} {w.stride()}",
)
def test_what_cannot_be_fused_is_refused_or_taken_eagerly(weight: torch.Tensor) -> None:
    parameter = nn.Parameter(weight)
    parameter.grad = torch.ones_like(parameter)
    refusing = SBS([parameter], fused=True)
    with pytest.raises(RuntimeError, match="fused=True needs plain, dense parameters, contiguous"):
        refusing.step()
    assert refusing.steps == 0
    assert torch.equal(parameter, weight)
    optimizer = SBS([parameter, nn.Parameter(torch.ones(9))], lr=0.5)
    optimizer.param_groups[0]["params"][1].grad = torch.ones(9)
    optimizer.step()
    assert optimizer.steps == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_what_is_frozen_may_be_of_any_dtype(dtype: torch.dtype) -> None:
    frozen = nn.Parameter(torch.ones(8, dtype=dtype), requires_grad=False)
    moving = nn.Parameter(torch.ones(8))
    moving.grad = torch.ones(8)
    optimizer = SBS([frozen, moving], 1.0, probability=1.0, fused=True)
    optimizer.step()
    assert torch.equal(moving, torch.zeros(8))
    assert torch.equal(frozen, torch.ones(8, dtype=dtype))


def test_a_network_that_changes_its_dtype_stays_fused() -> None:
    network = nn.Linear(200, 200).double()
    optimizer = SBS(network.parameters(), fused=True)
    for dtype in (torch.float64, torch.bfloat16):
        network.to(dtype)
        optimizer.zero_grad()
        network(torch.ones(1, 200, dtype=dtype)).sum().backward()
        optimizer.step()
        assert moves_natively(optimizer)
    assert optimizer.steps == 2


def test_counters_on_another_device_are_not_taken_for_memory_of_this_one() -> None:
    """As after a step of other layers of the network, on a GPU."""
    weight = nn.Parameter(torch.ones(8))
    weight.grad = torch.ones(8)
    optimizer = SBS([weight])
    optimizer.step()
    assert moves_natively(optimizer)
    optimizer.state[weight]["step"] = torch.zeros((), dtype=torch.int64, device="meta")
    with contextlib.suppress(NotImplementedError, RuntimeError):  # nothing can be read there
        optimizer.step()
    assert not moves_natively(optimizer)


def test_a_parameter_that_grew_is_refused() -> None:
    for fused in (True, False):
        weight = nn.Parameter(torch.zeros(1000))
        optimizer = SBS([weight], fused=fused)
        weight.grad = torch.ones(1000)
        optimizer.step()
        weight.grad = None
        weight.data = torch.zeros(2000)
        weight.grad = torch.ones(2000)
        message = r"shape \(1000,\) has become one of shape \(2000,\)"
        with pytest.raises(ValueError, match=message):
            optimizer.step()


def test_a_view_at_the_same_address_is_not_the_same_parameter() -> None:
    base = torch.zeros(4, 4)
    results = []
    for fused in (True, False):
        weight = nn.Parameter(base.clone())
        optimizer = SBS([weight], lr=1.0, probability=1.0, fused=fused)
        for step in range(2):
            if step:
                weight.data = weight.data.t()
            weight.grad = torch.arange(16.0).reshape(4, 4)
            if fused and step:
                with pytest.raises(RuntimeError, match="fused=True needs"):
                    optimizer.step()
                optimizer.param_groups[0]["fused"] = None
            optimizer.step()
        results.append(weight.detach().clone())
    assert torch.equal(*results)


def test_a_gradient_of_another_dtype_is_not_read_as_float32() -> None:
    weight = nn.Parameter(torch.zeros(9, dtype=torch.float64))
    weight.grad = torch.ones_like(weight)
    weight.data = weight.data.float()
    optimizer = SBS([weight], lr=1.0, probability=1.0)
    optimizer.step()
    assert torch.equal(weight, -torch.ones_like(weight))


def test_state_follows_a_model_that_changes_its_dtype() -> None:
    weight = nn.Parameter(torch.zeros(9, dtype=torch.float64))
    optimizer = SBS([weight], lr=1.0, probability=0.5)
    for dtype in (torch.float64, torch.float32, torch.float64):
        weight.grad = None
        weight.data = weight.data.to(dtype)
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        assert optimizer.state[weight]["grad_mean"].dtype == dtype
    # The mean of ones is one: every weight has moved by a whole number of steps.
    assert set(weight.tolist()) <= {0.0, -1.0, -2.0, -3.0}
    assert optimizer.steps == 3


def test_state_follows_a_model_that_changes_its_layout() -> None:
    network = small_network()
    optimizer = SBS(network.parameters(), momentum=0.9, fused=True)
    train(network, optimizer, range(2))
    saved = copy.deepcopy(optimizer.state_dict())
    plain = copy.deepcopy(network)
    network.to(memory_format=CHANNELS_LAST)
    train(network, optimizer, range(2, 4))
    loaded = SBS(plain.to(memory_format=CHANNELS_LAST).parameters(), fused=True)
    loaded.load_state_dict(saved)
    train(plain, loaded, range(2, 4))
    assert same_weights(network, plain)


def test_a_negated_view_is_negative() -> None:
    weight = nn.Parameter(torch.zeros(5))
    weight.grad = torch._neg_view(torch.ones(5))
    SBS([weight], lr=1.0, probability=1.0, fused=True).step()
    assert torch.equal(weight, torch.ones(5))


def test_tensor_subclasses_are_left_to_eager_steps() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    numbers = torch.zeros(9)
    weight = nn.Parameter(TwoTensor(numbers, numbers.clone()))
    optimizer = SBS([weight], lr=1.0, probability=1.0)
    weight.grad = TwoTensor(torch.ones_like(numbers), torch.ones_like(numbers))
    optimizer.step()
    assert not moves_natively(optimizer)
    assert torch.equal(weight.a, -torch.ones(9))


def test_parameters_moved_to_another_group_take_its_options() -> None:
    a, b, c = (nn.Parameter(torch.zeros(3)) for _ in range(3))
    optimizer = SBS(
        [{"params": [a, b], "lr": 1.0}, {"params": [c], "lr": 100.0}], probability=1.0, fused=True
    )
    for step in range(2):
        if step:
            groups = optimizer.param_groups
            groups[1]["params"].insert(0, groups[0]["params"].pop())
        for weight in (a, b, c):
            weight.grad = torch.ones(3)
        optimizer.step()
    assert (a[0].item(), b[0].item(), c[0].item()) == (-2.0, -101.0, -200.0)


def test_a_refused_step_leaves_no_state_behind() -> None:
    dense, table = nn.Parameter(torch.ones(3)), nn.Embedding(5, 3, sparse=True)
    (table(torch.tensor([1, 2])) * dense).sum().backward()
    optimizer = SBS([dense, table.weight], fused=True)
    with pytest.raises(RuntimeError, match="SBS needs dense gradients"):
        optimizer.step()
    assert not optimizer.state


def test_an_optimizer_without_parameters_steps() -> None:
    optimizer = SBS([{"params": []}])
    optimizer.step()
    assert optimizer.steps == 0


def test_a_slice_does_not_ask_for_the_library(monkeypatch) -> None:
    monkeypatch.setattr(native, "library", lambda: pytest.fail("asked"))
    weight = nn.Parameter(torch.zeros(18)[::2])
    weight.grad = torch.ones_like(weight)
    SBS([weight]).step()
