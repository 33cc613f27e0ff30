"""Invariant: what surrounds an optimizer changes nothing in its steps.

Torch's default dtype and device, wrappers that keep things of their own in its state, copies of
that state, options that a training came to.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from stochbatch import SBS
from stochbatch.data import epoch_order, subset
from stochbatch.data.batches import Normalisation
from tests.optim.cast import CAST, Bowl, Row
from tests.optim.networks import same_state, same_weights
from tests.optim.test_contract import prepared


@pytest.fixture(params=CAST)
def row(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Row:
    return prepared(request.param, monkeypatch)


def bowl() -> Bowl:
    generator = torch.Generator().manual_seed(0)
    shapes = [(50,), (3, 4), (5, 6), ()]
    return Bowl(*(torch.randn(shape, generator=generator) for shape in shapes))


def trained(row: Row, options: dict) -> tuple[Bowl, torch.optim.Optimizer]:
    problem = bowl()
    optimizer = row.make(problem, **options)
    row.train(problem, optimizer, range(4))
    return problem, optimizer


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_torch_s_default_dtype(row: Row, dtype: torch.dtype) -> None:
    plain, optimizer = trained(row, row.good[-1])
    other = bowl()
    second = row.make(other, **row.good[-1])
    with default_dtype(dtype):
        row.train(other, second, range(4))
    assert same_weights(plain.network, other.network)
    assert same_state(optimizer, second)
    if isinstance(optimizer, SBS):
        assert str(optimizer.layer_report()) == str(second.layer_report())


def test_torch_s_default_device(row: Row) -> None:
    plain, optimizer = trained(row, row.good[-1])
    other = bowl()
    second = row.make(other, **row.good[-1])
    with torch.device("meta"):
        row.train(other, second, range(4))
    assert same_weights(plain.network, other.network)
    assert same_state(optimizer, second)


def test_data_are_drawn_on_the_host_whatever_torch_s_default_device() -> None:
    images = torch.randint(256, (9, 1, 2, 2), dtype=torch.uint8)
    expected = subset(3, 9, 0.5), epoch_order(3, 1, 9), Normalisation.of(images)
    with torch.device("meta"):
        found = subset(3, 9, 0.5), epoch_order(3, 1, 9), Normalisation.of(images)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])
    assert found[2] == expected[2]


def copy_states(optimizer: torch.optim.Optimizer) -> None:
    """Put copies in place of an optimizer's state, as those do who roll a training back."""
    for tensor, state in optimizer.state.items():
        optimizer.state[tensor] = {name: value.clone() for name, value in state.items()}


@pytest.mark.parametrize("native", [False, True])
def test_copied_states_count_their_steps_together(
    native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = prepared("SBS native" if native else "SBS", monkeypatch)
    whole, copied = bowl(), bowl()
    optimizers = [row.make(problem, probability=0.5) for problem in (whole, copied)]
    for number in range(9):
        for problem, optimizer in zip((whole, copied), optimizers, strict=True):
            optimizer.zero_grad()
            problem.loss(number).backward()
            if number > 6:
                problem.network[0].grad = None
            optimizer.step()
        if number in (2, 6):
            copy_states(optimizers[1])
    assert [optimizer.steps for optimizer in optimizers] == [9, 9]
    assert same_weights(whole.network, copied.network)
    assert {int(state["step"]) for state in optimizers[1].state.values()} == {9}


def test_what_a_wrapper_keeps_in_the_state_stays_there(row: Row) -> None:
    plain, _ = trained(row, row.good[-1])
    other = bowl()
    second = row.make(other, **row.good[-1])
    for parameter in other.network:
        second.state[parameter]["slow weights"] = parameter.detach().clone()
    row.train(other, second, range(4))
    assert same_weights(plain.network, other.network)
    assert second.steps == 4
    third = row.make(bowl(), **row.good[-1])
    third.load_state_dict(copy.deepcopy(second.state_dict()))
    assert same_state(second, third)
    assert all("slow weights" in state for state in third.state.values())


def test_what_a_wrapper_keeps_is_loaded_before_the_first_step(row: Row) -> None:
    first, second = row.make(bowl()), row.make(bowl())
    for group in first.param_groups:
        for parameter in group["params"]:
            first.state[parameter]["slow weights"] = parameter.detach().clone()
    second.load_state_dict(first.state_dict())
    assert second.steps == 0
    assert len(second.state) == 4


def test_a_group_added_after_loading_takes_the_options_of_the_whole(row: Row) -> None:
    if not row.whole:
        pytest.skip("has no options of the whole")
    first = row.make(bowl(), **row.whole)
    problem = bowl()
    second = row.make(problem)
    second.load_state_dict(first.state_dict())
    second.add_param_group({"params": [nn.Parameter(torch.ones(3))]})
    for name, value in row.whole.items():
        assert [group[name] for group in second.param_groups] == [value] * 2


def test_momentum_may_end_under_nesterov_and_be_saved_so() -> None:
    problem, twin = bowl(), bowl()
    optimizer = SBS(problem.network.parameters(), momentum=0.9, nesterov=True)
    CAST["SBS"].train(problem, optimizer, range(2))
    optimizer.param_groups[0]["momentum"] = 0
    CAST["SBS"].train(problem, optimizer, range(2, 3))
    loaded = SBS(twin.network.parameters())
    loaded.load_state_dict(optimizer.state_dict())
    assert same_state(optimizer, loaded)


def test_a_rate_of_one_element_moves_parameters_of_any_shape(row: Row) -> None:
    options = {**row.good[0], "lr": 0.01}
    plain, _ = trained(row, options)
    other, _ = trained(row, {**options, "lr": torch.tensor([0.01])})
    for one, two in zip(plain.network, other.network, strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("fused", [False, True])
def test_a_gradient_without_memory_is_zero(fused: bool) -> None:
    def moved(gradient: Tensor) -> nn.Parameter:
        weight = nn.Parameter(torch.ones(100))
        optimizer = SBS([weight], lr=0.1, weight_decay=0.1, probability=1.0, fused=fused)
        for _ in range(2):
            weight.grad = gradient
            optimizer.step()
        return weight

    assert torch.equal(moved(torch._efficientzerotensor((100,))), moved(torch.zeros(100)))
