"""Invariant: wrong input is refused with what was given and what is allowed."""

import re

import pytest
import torch
from torch import nn

from stochbatch import SBS

NAN, INF = float("nan"), float("inf")

WRONG_OPTIONS = [
    ({"lr": -0.1}, ValueError, "lr must be 0 or more, got -0.1"),
    ({"lr": NAN}, ValueError, "lr must be finite, got nan"),
    ({"lr": "0.1"}, TypeError, "lr must be a number, got str: '0.1'"),
    ({"lr": True}, TypeError, "lr must be a number, got bool: True"),
    ({"lr": None}, TypeError, "lr must be a number, got NoneType: None"),
    (
        {"lr": torch.ones(2)},
        ValueError,
        "one floating-point number, got shape (2,) of torch.float32",
    ),
    ({"lr": torch.tensor(1)}, ValueError, "one floating-point number, got shape () of torch.int64"),
    ({"lr": torch.tensor(-1.0)}, ValueError, "lr must be 0 or more, got -1.0"),
    ({"alpha": INF}, ValueError, "alpha must be finite, got inf"),
    ({"alpha": "a"}, TypeError, "alpha must be a number, got str: 'a'"),
    ({"lambd": NAN}, ValueError, "lambd must be finite, got nan"),
    ({"lambd": [1]}, TypeError, "lambd must be a number, got list: [1]"),
    ({"probability": 0}, ValueError, "probability must be None or in (0, 1], got 0"),
    ({"probability": 1.01}, ValueError, "probability must be None or in (0, 1], got 1.01"),
    ({"probability": "half"}, TypeError, "probability must be a number, got str: 'half'"),
    ({"cross_layer": "sum"}, ValueError, "one of ('total', 'mean', 'weighted'), got 'sum'"),
    ({"lr_scaling": True}, ValueError, "lr_scaling must be one of ('none', 'linear'), got True"),
    ({"momentum": 1.5}, ValueError, "momentum must be in [0, 1), got 1.5"),
    ({"momentum": 1}, ValueError, "momentum must be in [0, 1), got 1"),
    ({"momentum": -0.1}, ValueError, "momentum must be in [0, 1), got -0.1"),
    ({"momentum": None}, TypeError, "momentum must be a number, got NoneType: None"),
    ({"momentum_mode": "eager"}, ValueError, "one of ('lazy', 'push'), got 'eager'"),
    ({"nesterov": True}, ValueError, "nesterov needs a momentum above 0, got momentum=0"),
    ({"nesterov": 1}, TypeError, "nesterov must be True or False, got int: 1"),
    ({"weight_decay": -1e-4}, ValueError, "weight_decay must be 0 or more, got -0.0001"),
    ({"weight_decay": INF}, ValueError, "weight_decay must be finite, got inf"),
    ({"maximize": "yes"}, TypeError, "maximize must be True or False, got str: 'yes'"),
    ({"steps_per_epoch": 0}, ValueError, "steps_per_epoch must be None or 1 or more, got 0"),
    ({"steps_per_epoch": 2.5}, TypeError, "steps_per_epoch must be None or an int, got float: 2.5"),
    ({"seed": -1}, ValueError, "seed must be in [0, 2**64), got -1"),
    ({"seed": 2**64}, ValueError, "seed must be in [0, 2**64), got 18446744073709551616"),
    ({"seed": 0.5}, TypeError, "seed must be an int, got float: 0.5"),
    ({"skip_nonfinite": None}, TypeError, "skip_nonfinite must be True or False, got NoneType"),
    ({"fused": 1}, TypeError, "fused must be None, True or False, got int: 1"),
]


def weight() -> nn.Parameter:
    return nn.Parameter(torch.ones(3))


@pytest.mark.parametrize(("options", "error", "message"), WRONG_OPTIONS, ids=str)
def test_options(options: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        SBS([weight()], **options)
    with pytest.raises(error, match=re.escape(message)):
        SBS([{"params": [weight()], **options}])


@pytest.mark.parametrize(("options", "error", "message"), WRONG_OPTIONS, ids=str)
def test_a_group_that_is_refused_leaves_the_optimizer_as_it_was(
    options: dict, error: type, message: str
) -> None:
    optimizer = SBS([weight()])
    with pytest.raises(error, match=re.escape(message)):
        optimizer.add_param_group({"params": [weight()], **options})
    assert len(optimizer.param_groups) == 1


def test_every_option_is_tested() -> None:
    tested = {name for options, _, _ in WRONG_OPTIONS for name in options}
    assert tested == SBS([weight()]).defaults.keys()


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
        ([TWICE, TWICE], ValueError, "a parameter is listed twice in one group"),
        ([("a", TWICE), ("b", TWICE)], ValueError, "a parameter is listed twice in one group"),
        ([{"params": TWICE}, {"params": TWICE}], ValueError, "more than one parameter group"),
        ([{"lr": 0.1}], TypeError, "a parameter group must be a dict with 'params', got {'lr'"),
        ([1.0, 2.0], TypeError, "optimizer can only optimize Tensors"),
        ([{"params": {TWICE}}], TypeError, "ordered collections"),
        ([torch.ones(2, requires_grad=True) * 2], ValueError, "non-leaf"),
        ([{"params": [weight()], "kind": "convolution"}], ValueError, "got 'convolution'"),
    ],
    ids=str,
)
def test_parameters(params: object, error: type, message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        SBS(params)


@pytest.mark.parametrize(
    "option",
    [{"seed": 1}, {"steps_per_epoch": 9}, {"skip_nonfinite": False}, {"fused": False}],
    ids=str,
)
def test_options_of_the_whole_step_must_agree(option: dict) -> None:
    (name,) = option
    with pytest.raises(ValueError, match=f"{name} must be the same in all parameter groups"):
        SBS([{"params": [weight()]}, {"params": [weight()], **option}])


def test_unknown_options_are_refused() -> None:
    with pytest.raises(TypeError, match="dampening"):
        SBS([weight()], dampening=0.1)


def test_options_are_keyword_only() -> None:
    with pytest.raises(TypeError, match="positional"):
        SBS([weight()], 0.1, 0.2)
