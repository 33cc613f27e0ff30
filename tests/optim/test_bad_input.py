"""Invariant: wrong input is refused with what was given and what is allowed.

For every optimizer of the table in ``cast.py``.
"""

import copy
import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.optim import _apply_optimizer_in_backward as apply_optimizer_in_backward

from stochbatch import Masked
from stochbatch.optim import SBS, AccSGD, AlternatingSGD, EntropySGD, ExactSBS
from tests.optim.cast import CAST, Bowl, finite
from tests.optim.test_contract import prepared


def weight() -> nn.Parameter:
    return nn.Parameter(torch.ones(3))


ROWS = {name: row for name, row in CAST.items() if not row.native}
WRONG = [(name, *wrong) for name, row in ROWS.items() for wrong in row.wrong]


@pytest.mark.parametrize(("name", "options", "error", "message"), WRONG, ids=str)
def test_options(name: str, options: dict, error: type, message: str) -> None:
    make = CAST[name].make
    with pytest.raises(error, match=re.escape(message)):
        make(None, [weight()], **options)
    with pytest.raises(error, match=re.escape(message)):
        make(None, [{"params": [weight()], **options}])


@pytest.mark.parametrize(("name", "options", "error", "message"), WRONG, ids=str)
def test_a_group_that_is_refused_leaves_the_optimizer_as_it_was(
    name: str, options: dict, error: type, message: str
) -> None:
    optimizer = CAST[name].make(None, [weight()])
    with pytest.raises(error, match=re.escape(message)):
        optimizer.add_param_group({"params": [weight()], **options})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("name", ROWS)
def test_every_option_is_tested(name: str) -> None:
    tested = {option for options, _, _ in CAST[name].wrong for option in options}
    assert tested == CAST[name].make(None, [weight()]).defaults.keys()


@pytest.mark.parametrize("name", ROWS)
def test_options_of_the_whole_step_must_agree(name: str) -> None:
    row = CAST[name]
    assert row.whole.keys() == set(row.kind.whole)
    for option, value in row.whole.items():
        groups = [{"params": [weight()]}, {"params": [weight()], option: value}]
        with pytest.raises(ValueError, match=f"{option} must be the same in all parameter groups"):
            row.make(None, groups)


@pytest.mark.parametrize("name", ROWS)
def test_unknown_options_are_refused(name: str) -> None:
    with pytest.raises(TypeError, match="dampening"):
        CAST[name].make(None, [weight()], dampening=0.1)


@pytest.mark.parametrize("kind", [SBS, AccSGD, AlternatingSGD, EntropySGD])
def test_options_are_keyword_only(kind: type) -> None:
    with pytest.raises(TypeError, match="positional"):
        kind([weight()], 0.1, 0.2)


TWICE = weight()
LINEAR = nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        (LINEAR, TypeError, "got the module Linear: use model.parameters() or stochbatch.param"),
        (nn.Sequential(LINEAR), TypeError, "params must be parameters, got the module Sequential"),
        ([{"params": LINEAR}], TypeError, "params must be parameters, got the module Linear"),
        ([], ValueError, "empty parameter list"),
        (weight(), TypeError, "params argument given to the optimizer should be an iterable"),
        ([{"params": TWICE}, {"params": TWICE}], ValueError, "more than one parameter group"),
        ([{"lr": 0.1}], TypeError, "a parameter group must be a dict with 'params', got {'lr'"),
        ([1.0, 2.0], TypeError, "optimizer can only optimize Tensors"),
        ([{"params": {TWICE}}], TypeError, "ordered collections"),
        ([torch.ones(2, requires_grad=True) * 2], ValueError, "non-leaf"),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ROWS)
def test_parameters(name: str, params: object, error: type, message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        CAST[name].make(None, params)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("name", CAST)
def test_a_parameter_twice_in_a_group_warns_as_torch_does(
    name: str, named: bool, monkeypatch
) -> None:
    row, problem = prepared(name, monkeypatch), Bowl(torch.ones(5))
    twice = problem.network[0]
    params = [("a", twice), ("b", twice)] if named else [twice, twice]
    with pytest.warns(UserWarning, match="a parameter group with duplicate parameters"):
        optimizer = row.make(problem, params)
    row.train(problem, optimizer, range(3))
    assert optimizer.steps == 3
    optimizer.load_state_dict(optimizer.state_dict())
    row.train(problem, optimizer, range(3, 5))
    assert finite(problem)


@pytest.mark.parametrize("name", ROWS)
def test_parameters_with_optimizers_of_their_own_are_refused(name: str) -> None:
    """Their steps would come one by one, while the backward pass is still under way."""
    parameter = weight()
    apply_optimizer_in_backward(torch.optim.SGD, [parameter], {"lr": 0.1})
    optimizer = CAST[name].make(None, [weight()])
    with pytest.raises(TypeError, match="apply_optimizer_in_backward gives each an optimizer"):
        optimizer.add_param_group({"params": [parameter]})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize(
    "kind",
    [
        SBS,
        AccSGD,
        AlternatingSGD,
    ],
)
def test_one_optimizer_per_parameter_is_refused(kind: type) -> None:
    """Torch marks a parameter only after it has made the optimizer."""
    layer = nn.Linear(2, 2)
    apply_optimizer_in_backward(kind, layer.parameters(), {"lr": 0.1})
    before = copy.deepcopy(layer.state_dict())
    with pytest.raises(TypeError, match="apply_optimizer_in_backward gives each an optimizer"):
        layer(torch.ones(1, 2)).sum().backward()
    assert all(torch.equal(before[name], value) for name, value in layer.state_dict().items())


@pytest.mark.parametrize("name", ["SBS", "ExactSBS"])
def test_kinds(name: str) -> None:
    for wrong in ("", 3, None):
        with pytest.raises(ValueError, match=f"kind must be a string.*, got {wrong!r}"):
            CAST[name].make(None, [{"params": [weight()], "kind": wrong}])


@pytest.mark.parametrize("given", [None, 3])
def test_entropy_sgd_needs_a_closure(given: object) -> None:
    parameter = weight()
    optimizer = EntropySGD([parameter])
    parameter.grad = torch.ones(3)
    kind = type(given).__name__
    message = f"EntropySGD.step needs a closure that clears the gradients.*got {kind}"
    with pytest.raises(RuntimeError, match=message):
        optimizer.step(given)
    assert torch.equal(parameter, torch.ones(3))
    assert optimizer.steps == 0


def test_exact_sbs_needs_samples_and_a_gradient_that_fits() -> None:
    parameter = weight()
    for given, samples, error, message in (
        ([torch.ones(3)], [], TypeError, "step takes the sample indices of a batch, got []"),
        ([torch.ones(3)], [0.5], TypeError, "sample indices of a batch, got [0.5]"),
        ([torch.ones(3)], [True, False], TypeError, "of a batch, got [True, False]"),
        ([torch.ones(3)], lambda: 1.0, TypeError, "'function' object is not iterable"),
        ([torch.ones(1)], [1], ValueError, "one tensor per parameter, of [torch.Size([3])]"),
        ([], [1], ValueError, "one tensor per parameter, of [torch.Size([3])]"),
    ):
        optimizer = ExactSBS([parameter], lambda samples, given=given: given)
        with pytest.raises(error, match=re.escape(message)):
            optimizer.step(samples)
        assert optimizer.steps == 0
        assert torch.equal(parameter, torch.ones(3))


def test_exact_sbs_takes_any_whole_numbers() -> None:
    seen = []
    optimizer = ExactSBS([weight()], lambda samples: seen.append(samples) or [torch.ones(3)])
    for samples in ([0, 2], torch.tensor([0, 2]), np.array([0, 2]), range(0, 4, 2)):
        optimizer.new_epoch()
        optimizer.step(samples)
    assert len(seen) >= 4
    assert all(set(map(type, one)) == {int} and one == [0, 2] for one in seen)


def test_a_parameter_that_the_coins_cannot_number_is_refused() -> None:
    huge = nn.Parameter(torch.empty(65537, 65536, device="meta"))
    message = r"cannot move a parameter of more than 2\*\*32 numbers: split .* \(65537, 65536\)$"
    with pytest.raises(ValueError, match=message):
        SBS([huge])
    with pytest.raises(ValueError, match=message):
        Masked(torch.optim.SGD([huge], 0.1))
