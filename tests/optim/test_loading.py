"""Invariant: a state dict is loaded and the training goes on, or it is refused as it stands.

Refused means: one clear line, and state, groups and defaults exactly as they were. State dicts
are changed at random (by a fixed seed) for every optimizer of the table in ``cast.py``.
"""

import copy
import math
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from stochbatch import SBS
from tests.optim.cast import CAST, Bowl, Problem, Row, finite
from tests.optim.networks import same_state
from tests.optim.test_contract import prepared

MUTANTS = 120
"""State dicts per optimizer."""

NUMBERS = (0, -5, 0.5, 3, 10**400, math.nan, math.inf)
VALUES = (*NUMBERS, True, 1j, None, "3", [1, [2]], {"a": {}}, (), torch.ones(2, 2), object)
IDENTIFIERS = (99, -1, "a", 0.5, None, (1, [2]), True)
DTYPES = (
    *(torch.float16, torch.bfloat16, torch.float64, torch.float8_e5m2, torch.complex64),
    *(torch.bool, torch.uint8, torch.int16, torch.int64, torch.uint16),
)
SHAPES: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda t: t.reshape(-1),
    lambda t: t.reshape(-1)[:1],
    lambda t: t.reshape(-1)[:0],
    lambda t: t.unsqueeze(0),
    lambda t: t.sum(),
    lambda t: t.expand(2, *t.shape),
    lambda t: t.to_sparse(),
)


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


class Mutator:
    """Changes state dicts in place."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)

    def change(self, state_dict: dict) -> None:
        ways = [self.delete, self.rename, self.replace, self.retype, self.reshape, self.spoil]
        ways += [self.spoil, self.swap, self.identify, self.regroup, self.add, self.count]
        self.random.choice(ways)(state_dict)

    def node(self, state_dict: dict) -> tuple[dict, Any]:
        """Return a dict in the state dict, and one of its keys."""
        states, groups = state_dict.get("state"), state_dict.get("param_groups")
        inner = list(states.values()) if isinstance(states, dict) else []
        inner += groups if isinstance(groups, list) else []
        found = [d for d in (state_dict, states, *inner, *inner) if isinstance(d, dict) and d]
        chosen = self.random.choice(found) if found else {"": None}
        return chosen, self.random.choice(list(chosen))

    def tensor(self, state_dict: dict) -> tuple[dict, Any]:
        """Return a dict that holds a tensor of the state, and the tensor's key."""
        for _ in range(50):
            chosen, key = self.node(state_dict)
            if isinstance(chosen[key], Tensor) and chosen[key].layout == torch.strided:
                return chosen, key
        return {"": torch.ones(3)}, ""

    def delete(self, state_dict: dict) -> None:
        chosen, key = self.node(state_dict)
        del chosen[key]

    def rename(self, state_dict: dict) -> None:
        chosen, key = self.node(state_dict)
        other = self.random.choice([*chosen, f"{key}s", 7])
        chosen[other] = chosen.pop(key)

    def replace(self, state_dict: dict) -> None:
        chosen, key = self.node(state_dict)
        chosen[key] = self.random.choice(VALUES)

    def retype(self, state_dict: dict) -> None:
        chosen, key = self.tensor(state_dict)
        chosen[key] = chosen[key].to(self.random.choice(DTYPES))

    def reshape(self, state_dict: dict) -> None:
        chosen, key = self.tensor(state_dict)
        chosen[key] = self.random.choice(SHAPES)(chosen[key])

    def spoil(self, state_dict: dict) -> None:
        chosen, key = self.tensor(state_dict)
        number = self.random.choice([number for number in NUMBERS if number != 10**400])
        if chosen[key].numel() and not chosen[key].is_complex():
            changed = chosen[key].to(torch.float64, copy=True).contiguous()
            changed.view(-1)[self.random.randrange(changed.numel())] = number
            whole = not chosen[key].is_floating_point() and number == number // 1
            chosen[key] = changed.to(chosen[key].dtype if whole else torch.float32)

    def swap(self, state_dict: dict) -> None:
        states = state_dict.get("state")
        if isinstance(states, dict) and len(states) > 1:
            one, other = self.random.sample(list(states), 2)
            states[one], states[other] = states[other], states[one]

    def identify(self, state_dict: dict) -> None:
        for group in self.random.sample(self.groups(state_dict), 1):
            if isinstance(group, dict) and isinstance(group.get("params"), list):
                params = group["params"]
                params[0] = self.random.choice([*params, *IDENTIFIERS])

    def regroup(self, state_dict: dict) -> None:
        groups = self.groups(state_dict)
        way = self.random.randrange(5)
        state_dict["param_groups"] = [
            groups[1:],
            [*groups, groups[0]],
            groups[::-1],
            tuple(groups),
            [group["params"] for group in groups if isinstance(group, dict) and "params" in group],
        ][way]

    def groups(self, state_dict: dict) -> list:
        groups = state_dict.get("param_groups")
        return groups if isinstance(groups, list) and groups else [{}]

    def add(self, state_dict: dict) -> None:
        chosen, _ = self.node(state_dict)
        chosen["wrapper"] = self.random.choice([torch.ones(3), {"a": [torch.ones(1)]}, 3, None])

    def count(self, state_dict: dict) -> None:
        """Write the number of steps as older versions of torch did, in one or in all entries."""
        states = state_dict.get("state")
        number = self.random.choice([2, 2.0, 2.5, -2, torch.tensor(2.0), torch.tensor([2])])
        for state in states.values() if isinstance(states, dict) else ():
            if isinstance(state, dict) and "step" in state and self.random.random() < 0.9:
                state["step"] = number


def photograph(optimizer: torch.optim.Optimizer) -> list:
    """Return everything that loading could change: which tensors there are, and their values."""
    groups = [{**group, "params": [*map(id, group["params"])]} for group in optimizer.param_groups]
    state = [
        (id(parameter), [(name, id(value), value.tolist()) for name, value in entry.items()])
        for parameter, entry in optimizer.state.items()
    ]
    return [groups, state, dict(optimizer.defaults), id(optimizer.param_groups)]


def refused(optimizer: torch.optim.Optimizer, state_dict: dict) -> str | None:
    """Load a state dict; return the error's text if it is refused."""
    try:
        optimizer.load_state_dict(state_dict)
    except (TypeError, ValueError) as error:
        return str(error) or "\n"
    return None


def may_diverge(row: Row, state_dict: dict) -> bool:
    """Whether a state that is not finite was loaded where a diverged training may have one."""
    return any(
        isinstance(value, Tensor) and not bool(value.isfinite().all())
        for state in state_dict["state"].values()
        for name, value in state.items()
        if name in row.kind.slots and not row.kind.slots[name].finite
    )


@pytest.mark.parametrize("name", CAST)
def test_mutated_state_dicts_are_loaded_or_refused(name: str, monkeypatch) -> None:
    row = prepared(name, monkeypatch)
    saved = begun(row, 2)[1].state_dict()
    fresh = begun(row, 1, momentum=0)
    problem, optimizer = copy.deepcopy(fresh)
    accepted = 0
    for number in range(MUTANTS):
        mutator = Mutator(f"{name} {number}")
        mutant = copy.deepcopy(saved)
        for _ in range(mutator.random.choice([1, 1, 2])):
            mutator.change(mutant)
        before = photograph(optimizer)
        if line := refused(optimizer, mutant):
            assert "\n" not in line
            assert photograph(optimizer) == before, f"{number}: changed, and then {line}"
            continue
        accepted += 1
        row.train(problem, optimizer, range(2, 3))
        assert finite(problem) or may_diverge(row, mutant), f"{number}: {mutant}"
        problem, optimizer = copy.deepcopy(fresh)
    assert MUTANTS / 20 < accepted < MUTANTS / 2, "the mutants are all alike"


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
        ("batches", 0, ValueError, "batches of parameter 0 must be whole numbers (torch.int32), 1"),
        ("batches", -5, ValueError, "1 or more; got -5"),
        ("batches", 0.5, ValueError, "1 or more; got 0.5"),
        ("batches", 1.5, ValueError, "1 or more; got 1.5"),
        ("batches", 2**31, ValueError, "1 or more; got 2147483648"),
        ("batches", True, TypeError, "must be a dense tensor of real numbers, got torch.bool"),
        ("batches", 1j, TypeError, "must be a dense tensor of real numbers, got torch.complex64"),
        ("grad_mean", math.nan, ValueError, "grad_mean of parameter 0 must be finite; got nan"),
        ("grad_mean", 1e300, ValueError, "grad_mean of parameter 0 must be finite; got 1e+300"),
        ("momentum_buffer", -math.inf, ValueError, "must be finite; got -inf"),
        ("step", -1, ValueError, "step of parameter 0 must be whole numbers (torch.int64), 0 or m"),
        ("step", 1, ValueError, "step must be the same for all parameters, got 1 and 2"),
        ("skipped_steps", 3, ValueError, "skipped_steps must be the same for all parameters, got"),
        ("wrapper", range(3), TypeError, "generator"),  # torch's own loading fails midway
    ],
)
def test_a_bad_value_is_refused_and_nothing_is_changed(
    state: str, value: Any, error: type, message: str
) -> None:
    saved = copy.deepcopy(begun(CAST["SBS"], 2)[1].state_dict())
    first = saved["state"][0]
    kind = torch.float64 if type(value) is float else None
    first[state] = torch.full(first[state].shape, value, dtype=kind) if state in first else value
    _, optimizer = begun(CAST["SBS"], 1)
    before = photograph(optimizer)
    with pytest.raises(error, match=re.escape(message)):
        optimizer.load_state_dict(saved)
    assert photograph(optimizer) == before


@pytest.mark.parametrize(
    ("place", "value", "error", "message"),
    [
        (["param_groups", 1, "seed"], 9, ValueError, "seed must be the same in all parameter gr"),
        (["param_groups", 1, "params", 0], 0, ValueError, "has parameter 0 in two places"),
        (["param_groups", 1, "params", 0], 0.5, TypeError, "must be int or str, got 0.5"),
        (["param_groups", 1, "param_names"], ["a"], ValueError, "group 1 needs 2 param_names"),
        (["param_groups", 1], None, TypeError, "must be dicts with lists of 'params'"),
        (["param_groups", 1, "kind"], 3, ValueError, "kind must be"),
        (["state"], [], TypeError, "state of a state_dict must be a dict, got list"),
        (["state", 1], 3, TypeError, "state of parameter 1 must be a dict, got int"),
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
    loaded = [*optimizer.state.values()][1]
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
