"""Invariant: the state of SBS is exact in every dtype and follows its parameter.

What holds for the state of every optimizer is in ``test_contract_state.py``.
"""

import copy
import io

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from stochbatch import SBS, param_groups
from tests.optim.networks import (
    backward,
    same_state,
    same_weights,
    small_network,
    take_eager_steps,
    train,
)


@pytest.fixture(autouse=True, params=["eager", "native"])
def _path(request: pytest.FixtureRequest, monkeypatch) -> None:
    """Run every test here on eager steps and on compiled ones (where those apply)."""
    if request.param == "eager":
        take_eager_steps(monkeypatch)


DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
OPTIONS = {"momentum": 0.9, "weight_decay": 1e-3, "seed": 7}


def saved_and_loaded(thing: object) -> object:
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_state_is_loaded_exactly_in_every_dtype(dtype: torch.dtype) -> None:
    """Torch would cast the averages and the counts to the parameter's dtype."""
    weight = nn.Parameter(torch.randn(257).to(dtype))
    optimizer = SBS([weight], momentum=0.9, probability=2.0**-20)
    for _ in range(300):
        weight.grad = torch.randn(257).to(dtype)
        optimizer.step()
    assert optimizer.state[weight]["batches"].max() == 301, "not exact in bfloat16"
    twin = nn.Parameter(weight.detach().clone())
    loaded = SBS([twin])
    loaded.load_state_dict(saved_and_loaded(optimizer.state_dict()))
    assert same_state(optimizer, loaded)
    assert loaded.state[twin]["batches"].dtype == torch.int16


def test_counts_leave_in_32_bits_and_come_back_in_16() -> None:
    """No backend of torch.distributed sends 16; in 32 an earlier version's may be larger."""
    network = small_network()
    optimizer = SBS(network.parameters())
    train(network, optimizer, range(2))
    seen = []
    optimizer.register_state_dict_post_hook(lambda _, found: seen.append(found["state"][0]))
    saved = optimizer.state_dict()
    held = optimizer.state[network[0].weight]
    assert (held["batches"].dtype, saved["state"][0]["batches"].dtype) == (torch.int16, torch.int32)
    assert saved["state"][0] is seen[0]
    assert saved["state"][0]["grad_mean"] is held["grad_mean"]
    for offset in (1, 40_000):
        for state in saved["state"].values():
            state["batches"].add_(offset)
        optimizer.load_state_dict(saved)
        for saved_state, state in zip(
            saved["state"].values(), optimizer.state.values(), strict=True
        ):
            assert state["batches"].dtype == torch.int16
            assert torch.equal(state["batches"].int(), saved_state["batches"].clamp(max=2**15 - 1))


def test_an_optimizer_pickled_with_counts_of_32_bits_goes_on() -> None:
    network = small_network()
    optimizer = SBS(network.parameters())
    train(network, optimizer, range(2))
    held = optimizer.state[network[0].weight]
    held["batches"] = torch.full_like(held["batches"], 40_000, dtype=torch.int32)
    train(network, optimizer, range(2, 3))
    assert held["batches"].dtype == torch.int16
    assert set(held["batches"].unique().tolist()) <= {1, 2**15 - 1}


def test_state_of_another_precision_is_converted() -> None:
    single, double = (nn.Parameter(torch.ones(3, dtype=d)) for d in (torch.float32, torch.float64))
    source = SBS([single], probability=0.5)
    single.grad = torch.tensor([0.1, 0.2, 0.3])
    source.step()
    target = SBS([double])
    target.load_state_dict(source.state_dict())
    assert target.state[double]["grad_mean"].dtype == torch.float64
    double.grad = torch.ones(3, dtype=torch.float64)
    target.step()
    assert target.steps == 2


def test_load_hooks_see_and_change_what_is_loaded() -> None:
    network = small_network()
    optimizer = SBS(network.parameters())
    train(network, optimizer, range(2))
    saved = optimizer.state_dict()
    target = SBS(network.parameters())

    def doubled(_: torch.optim.Optimizer, state_dict: dict) -> dict:
        changed = copy.deepcopy(state_dict)
        changed["state"][0]["batches"] *= 2
        return changed

    seen = []
    target.register_load_state_dict_pre_hook(doubled)
    target.register_load_state_dict_post_hook(
        lambda o: seen.append(o.state[network[0].weight]["batches"].dtype)
    )
    target.load_state_dict(saved)
    assert torch.equal(target.state[network[0].weight]["batches"], saved["state"][0]["batches"] * 2)
    assert seen == [torch.int16]


@pytest.mark.parametrize("tensor_lr", [False, True])
def test_the_checkpoint_library_leaves_a_run_as_it_was(tensor_lr: bool) -> None:
    """It makes an optimizer allocate its state by a step with zero gradients and rates."""
    networks = [small_network() for _ in range(2)]
    rates = [torch.tensor(0.1), torch.tensor(0.1)] if tensor_lr else [0.1, 0.1]
    visited, plain = (
        SBS(param_groups(n), r, **OPTIONS) for n, r in zip(networks, rates, strict=True)
    )
    get_optimizer_state_dict(networks[0], visited)
    assert visited.state
    assert visited.steps == 0
    for step in range(7):
        train(networks[0], visited, range(step, step + 1))
        train(networks[1], plain, range(step, step + 1))
        networks[0].zero_grad()
        get_optimizer_state_dict(networks[0], visited)
        assert same_weights(*networks)
        assert same_state(visited, plain)


@pytest.mark.skipif(
    torch.__version__ < (2, 13), reason="the library itself fails there (seen with torch 2.6)"
)
def test_the_checkpoint_library_with_a_parameter_that_never_had_a_gradient() -> None:
    network = small_network()
    optimizer = SBS(network.parameters())
    backward(network, 0)
    network[0].weight.grad = None
    optimizer.step()
    network.zero_grad()
    state = get_optimizer_state_dict(network, optimizer)
    assert "0.weight" not in state["state"]
    options = StateDictOptions(strict=False)
    set_optimizer_state_dict(network, optimizer, state, options=options)
    assert network[0].weight not in optimizer.state
    assert optimizer.steps == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a second kind of device")
def test_state_moves_between_devices() -> None:
    here, there = small_network(), small_network(device="cuda")
    optimizer, target = SBS(here.parameters()), SBS(there.parameters())
    train(here, optimizer, range(2))
    target.load_state_dict(optimizer.state_dict())
    for p, q in zip(here.parameters(), there.parameters(), strict=True):
        for name, value in optimizer.state[p].items():
            assert torch.equal(value, target.state[q][name].cpu())
            assert target.state[q][name].device.type == "cuda"
