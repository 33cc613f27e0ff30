"""Invariant: a state dict is loaded and the training goes on, or it is refused as it stands.

Refused means: state, groups and defaults are exactly as they were.
"""

import copy
import re
from typing import Any

import pytest
import torch

from stochbatch import SBS
from tests.optim.cast import CAST, Bowl, Problem, Row
from tests.optim.networks import same_state
from tests.optim.test_contract import prepared


def groups_of(parameters: list) -> list[dict[str, Any]]:
    named = [(f"p{number}", parameter) for number, parameter in enumerate(parameters)]
    return [{"params": named[:2], "kind": "linear"}, {"params": named[2:], "lr": 0.05}]


def begun(row: Row, steps: int, momentum: float = 0.5) -> tuple[Problem, Any]:
    """Return a problem and its optimizer after some steps."""
    problem = Bowl(torch.ones(4, 3), torch.full((3, 3), 0.5), torch.zeros(3), torch.tensor(1.0))
    options = {"momentum": momentum} if "momentum" in row.make(problem).defaults else {}
    optimizer = row.make(problem, groups_of(list(problem.network)), **options)
    row.train(problem, optimizer, range(steps))
    return problem, optimizer


def photograph(optimizer: torch.optim.Optimizer) -> list:
    """Return everything that loading could change: which tensors there are, and their values."""
    groups = [{**group, "params": [*map(id, group["params"])]} for group in optimizer.param_groups]
    state = [
        (id(parameter), [(name, id(value), value.tolist()) for name, value in entry.items()])
        for parameter, entry in optimizer.state.items()
    ]
    return [groups, state, dict(optimizer.defaults), id(optimizer.param_groups)]


def test_an_older_state_dict_keeps_the_defaults_of_newer_options() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    saved = SBS([weight]).state_dict()
    for option in SBS.later:
        del saved["param_groups"][0][option]
    optimizer = SBS([weight], maximize=True, fused=False)
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["maximize"] is True
    assert optimizer.param_groups[0]["fused"] is False


@pytest.mark.parametrize(
    "step", [2, 2.0, *(torch.tensor(2, dtype=d) for d in (torch.uint8, torch.bfloat16))], ids=repr
)
@pytest.mark.parametrize("name", CAST)
def test_a_whole_number_of_steps_may_have_any_type(name: str, step: Any, monkeypatch) -> None:
    row = prepared(name, monkeypatch)
    _, trained = begun(row, 2)
    saved = copy.deepcopy(trained.state_dict())
    for state in saved["state"].values():
        state["step"] = step
    _, optimizer = begun(row, 1)
    optimizer.load_state_dict(saved)
    assert optimizer.steps == 2
    assert same_state(trained, optimizer)


@pytest.mark.parametrize(
    ("state", "value", "error", "message"),
    [
        ("step", 1, ValueError, "step must be the same for all parameters"),
        ("skipped_steps", 3, ValueError, "skipped_steps must be the same for all parameters"),
        ("wrapper", range(3), TypeError, "generator"),  # torch's own loading fails midway
    ],
)
def test_a_bad_value_is_refused_and_nothing_is_changed(
    state: str, value: Any, error: type, message: str
) -> None:
    saved = copy.deepcopy(begun(CAST["SBS"], 2)[1].state_dict())
    first = saved["state"][0]
    first[state] = torch.full(first[state].shape, value) if state in first else value
    _, optimizer = begun(CAST["SBS"], 1)
    before = photograph(optimizer)
    with pytest.raises(error, match=re.escape(message)):
        optimizer.load_state_dict(saved)
    assert photograph(optimizer) == before


@pytest.mark.parametrize(
    ("place", "value", "error", "message"),
    [
        (["param_groups", 1, "seed"], 9, ValueError, "seed must be the same in all parameter gr"),
        (["param_groups", 1, "kind"], 3, ValueError, "kind must be"),
    ],
    ids=str,
)
def test_a_bad_place_is_refused_and_nothing_is_changed(
    place: list, value: Any, error: type, message: str
) -> None:
    saved = copy.deepcopy(begun(CAST["SBS"], 2)[1].state_dict())
    part: Any = saved
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    _, optimizer = begun(CAST["SBS"], 1)
    before = photograph(optimizer)
    with pytest.raises(error, match=re.escape(message)):
        optimizer.load_state_dict(saved)
    assert photograph(optimizer) == before


def test_unknown_state_is_left_as_torch_loads_it() -> None:
    _, trained = begun(CAST["SBS"], 2)
    saved = copy.deepcopy(trained.state_dict())
    saved["state"][1].update({"ema": torch.ones(2, dtype=torch.float64), "note": {"a": [3]}})
    _, optimizer = begun(CAST["SBS"], 1)
    optimizer.load_state_dict(saved)
    loaded = optimizer.state_dict()["state"][1]
    assert loaded["ema"].dtype == torch.float32
    assert loaded["note"] == {"a": [3]}
    del loaded["ema"], loaded["note"]
    assert same_state(trained, optimizer)


@pytest.mark.parametrize("missing", [("batches",), ("grad_mean",), ("grad_mean", "batches")])
def test_averages_and_counts_come_together(missing: tuple[str, ...]) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    optimizer = SBS([weight])
    optimizer.step()
    saved = optimizer.state_dict()
    saved["state"] = {0: {n: v for n, v in saved["state"][0].items() if n not in missing}}
    with pytest.raises(ValueError, match="state_dict is not one of SBS"):
        optimizer.load_state_dict(saved)
    assert optimizer.steps == 1
