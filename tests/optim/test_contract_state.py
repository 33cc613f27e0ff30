"""Invariant: a run that is saved, loaded and continued is the run that was never stopped.

For every optimizer of the table in ``cast.py``.
"""

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    get_state_dict,
    set_state_dict,
)

from tests.optim.cast import CAST, Bowl, Problem, Row, settings
from tests.optim.networks import same_state, same_weights
from tests.optim.test_contract import prepared

WITH_THE_LIBRARY = [
    (name, options) for name, options in settings() if name != "ExactSBS"
]  # ExactSBS steps on samples, and the library can only call step()


@pytest.fixture(params=CAST)
def row(request: pytest.FixtureRequest, monkeypatch) -> Row:
    return prepared(request.param, monkeypatch)


def saved_and_loaded(thing: object) -> Any:
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def test_one_state_can_be_loaded_again_and_into_a_copy(row: Row) -> None:
    problem = Problem()
    optimizer = row.make(problem, **row.good[-1])
    row.train(problem, optimizer, range(2))
    options = set(optimizer.param_groups[0])
    snapshot = copy.deepcopy(optimizer.state_dict())
    wanted = copy.deepcopy(snapshot["state"])
    for loading in (optimizer, optimizer, copy.deepcopy(optimizer)):
        row.train(problem, optimizer, range(2, 4))
        loading.load_state_dict(snapshot)
        assert set(loading.param_groups[0]) == options
        for number, state in loading.state_dict()["state"].items():
            assert all(torch.equal(value, wanted[number][name]) for name, value in state.items())


@pytest.mark.parametrize("stop", [0, 1, 4, 5])
@pytest.mark.parametrize(("name", "options"), settings(), ids=str)
def test_a_resumed_run_is_bitwise_the_run_that_never_stopped(
    name: str, options: dict, stop: int, device: str, monkeypatch
) -> None:
    row = prepared(name, monkeypatch)
    whole, stopped, resumed = (Problem(device=device) for _ in range(3))
    optimizer = row.make(whole, **options)
    row.train(whole, optimizer, range(7))

    first = row.make(stopped, **options)
    row.train(stopped, first, range(stop))
    saved = saved_and_loaded(
        {"network": stopped.network.state_dict(), "optimizer": first.state_dict()}
    )
    second = row.make(resumed)  # every option comes with the state
    resumed.network.load_state_dict(saved["network"])
    second.load_state_dict(saved["optimizer"])
    assert second.steps == stop
    row.train(resumed, second, range(stop, 7))
    assert same_weights(whole.network, resumed.network)
    assert same_state(optimizer, second)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("name", "options"), settings(), ids=str)
def test_state_is_loaded_exactly_in_every_dtype(
    name: str, options: dict, dtype: torch.dtype, monkeypatch
) -> None:
    """Torch would cast floating-point and integer state to the parameter's dtype."""
    row = prepared(name, monkeypatch)
    problem, twin = Bowl(torch.randn(50).to(dtype)), Bowl(torch.randn(50).to(dtype))
    optimizer = row.make(problem, **{**options, "lr": 1e-3})
    row.train(problem, optimizer, range(5))
    loaded = row.make(twin)
    loaded.load_state_dict(saved_and_loaded(optimizer.state_dict()))
    assert same_state(optimizer, loaded)


def test_loading_does_not_alias_what_was_loaded(row: Row) -> None:
    problem, twin = Problem(), Problem()
    optimizer, loaded = row.make(problem, **row.good[-1]), row.make(twin)
    row.train(problem, optimizer, range(2))
    saved = optimizer.state_dict()
    before = copy.deepcopy(saved)
    loaded.load_state_dict(saved)
    row.train(twin, loaded, range(2, 4))
    for number, state in before["state"].items():
        for name, value in state.items():
            assert torch.equal(value, saved["state"][number][name])


def test_the_step_number_is_shared_again_after_loading(row: Row) -> None:
    problem = Problem()
    optimizer = row.make(problem)
    row.train(problem, optimizer, range(2))
    optimizer.load_state_dict(saved_and_loaded(optimizer.state_dict()))
    assert len({id(state["step"]) for state in optimizer.state.values()}) == 1
    row.train(problem, optimizer, range(2, 3))
    assert {int(state["step"]) for state in optimizer.state.values()} == {3}


def spoil(state_dict: dict, change: str) -> Any:
    first = state_dict["state"][0]
    name = next(iter(first))
    if change == "shape":
        first[name] = first[name].new_zeros(1, 2, 3)
    elif change == "missing":
        del first["step"]
    elif change == "not a tensor":
        first["step"] = "3"
    elif change == "option":
        state_dict["param_groups"][0]["lr"] = -1.0
    elif change == "stray":
        state_dict["state"][99] = first
    elif change == "size":
        state_dict["param_groups"][0]["params"].pop()
    elif change == "groups":
        state_dict["param_groups"].append(state_dict["param_groups"][0])
    elif change == "keys":
        return {"state": {}}
    elif change == "list":
        return [1, 2]
    elif change == "sgd":
        return torch.optim.SGD(Problem().network.parameters(), lr=0.1).state_dict()
    return state_dict


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ("shape", ValueError, r"of parameter 0 has shape \(1, 2, 3\) in the state_dict, expected"),
        ("missing", ValueError, "not one of NAME: its state of parameter 0 has"),
        ("not a tensor", TypeError, "step of parameter 0 must be a tensor, got str"),
        ("option", ValueError, "Invalid learning rate: -1.0"),
        ("stray", ValueError, "state for parameter 99, of no group"),
        ("size", ValueError, r"groups of sizes \[9\], this optimizer \[10\]"),
        ("groups", ValueError, r"groups of sizes \[10, 10\], this optimizer \[10\]"),
        ("keys", ValueError, "must be a dict with 'state' and 'param_groups'"),
        ("list", TypeError, "state_dict must be a dict, got list"),
        ("sgd", ValueError, "not one of NAME: its parameter group 0 lacks"),
    ],
)
def test_a_wrong_state_dict_is_refused_and_nothing_is_changed(
    row: Row, change: str, error: type, message: str
) -> None:
    problem = Problem()
    optimizer = row.make(problem)
    row.train(problem, optimizer, range(1))
    wrong = spoil(copy.deepcopy(optimizer.state_dict()), change)
    before = copy.deepcopy(optimizer.state_dict())
    if change == "sgd" and set(optimizer.defaults) <= set(wrong["param_groups"][0]):
        pytest.skip("its options are among SGD's")
    if change == "missing" and not wrong["state"][0]:
        pytest.skip("an empty state is that of a parameter that never had a gradient")
    with pytest.raises(error, match=message.replace("NAME", row.kind.__name__)):
        optimizer.load_state_dict(wrong)
    after = optimizer.state_dict()
    assert before["param_groups"] == after["param_groups"]
    for number, state in before["state"].items():
        for name, value in state.items():
            assert torch.equal(value, after["state"][number][name])
    assert not optimizer._optimizer_load_state_dict_pre_hooks, "a hook stayed behind"
    assert not optimizer._optimizer_load_state_dict_post_hooks, "a hook stayed behind"


@pytest.mark.parametrize(("name", "options"), WITH_THE_LIBRARY, ids=str)
def test_the_checkpoint_library_leaves_a_run_as_it_was(
    name: str, options: dict, monkeypatch
) -> None:
    """It makes an optimizer allocate its state by a step with zero gradients and rates."""
    row = prepared(name, monkeypatch)
    problem, plain = Problem(), Problem()
    visited, undisturbed = row.make(problem, **options), row.make(plain, **options)
    get_optimizer_state_dict(problem.network, visited)
    assert visited.state
    assert visited.steps == 0
    assert same_weights(problem.network, plain.network)
    for step in range(3):
        row.advance(problem, visited, step)
        row.advance(plain, undisturbed, step)
        problem.network.zero_grad()
        get_optimizer_state_dict(problem.network, visited)
        assert same_weights(problem.network, plain.network)
        assert same_state(visited, undisturbed)


@pytest.mark.parametrize("stop", [0, 3])
@pytest.mark.parametrize(("name", "options"), WITH_THE_LIBRARY, ids=str)
def test_saved_and_loaded_by_the_checkpoint_library(
    name: str, options: dict, stop: int, tmp_path: Path, monkeypatch
) -> None:
    row = prepared(name, monkeypatch)
    whole, stopped, resumed = Problem(), Problem(), Problem()
    uninterrupted = row.make(whole, **options)
    row.train(whole, uninterrupted, range(6))

    first = row.make(stopped, **options)
    row.train(stopped, first, range(stop))
    stopped.network.zero_grad()
    model_state, optimizer_state = get_state_dict(stopped.network, first)
    dcp.save({"m": model_state, "o": optimizer_state}, checkpoint_id=tmp_path)

    second = row.make(resumed, **options)
    model_state, optimizer_state = get_state_dict(resumed.network, second)
    loaded = {"m": model_state, "o": optimizer_state}
    dcp.load(loaded, checkpoint_id=tmp_path)
    set_state_dict(
        resumed.network, second, model_state_dict=loaded["m"], optim_state_dict=loaded["o"]
    )
    assert second.steps == stop
    row.train(resumed, second, range(stop, 6))
    assert same_weights(whole.network, resumed.network)
    assert same_state(uninterrupted, second)
