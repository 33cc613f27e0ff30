"""Invariant: a method's name gives its optimizer, its settings and what it asks of a network."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from stochbatch.optim import SBS, AccSGD, AlternatingSGD, EntropySGD, Masked
from stochbatch.studies import SCALES, Study
from stochbatch.training import METHODS, Method, Trial, TrialError
from stochbatch.training.builders import build_optimizer

OPTIMIZERS = {
    "sgd": torch.optim.SGD,
    "sbs": SBS,
    "sbs-mean-field": SBS,
    "sbs-fixed-half": SBS,
    "dropout": torch.optim.SGD,
    "adaptive-dropout": torch.optim.SGD,
    "entropy-sgd": EntropySGD,
    "acc-sgd": AccSGD,
    "alternating": AlternatingSGD,
    "rmsprop": torch.optim.RMSprop,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "masked-adamw": Masked,
}


def held_by(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the options of the first group; `Masked` keeps those of its coin itself."""
    return {**optimizer.param_groups[0], **getattr(optimizer, "_options", {})}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_makes_its_optimizer_with_what_is_common_to_all(name: str) -> None:
    method = METHODS[name]
    optimizer = method.optimizer(nn.Linear(3, 2), lr=0.02, weight_decay=1e-4, seed=5)
    assert type(optimizer) is OPTIMIZERS[name]
    group = held_by(optimizer)
    assert group["lr"] == 0.02
    assert group["weight_decay"] == 1e-4
    if "seed" in method.common:
        assert group["seed"] == 5
    assert all("param_names" in group for group in optimizer.param_groups)


@pytest.mark.parametrize("name", METHODS)
def test_every_setting_reaches_the_optimizer_or_the_network(name: str) -> None:
    method = METHODS[name]
    settings = method.settings
    optimizer = method.optimizer(nn.Linear(3, 2), **settings)
    network = method.network_options(settings)
    for setting in settings.keys() - method.retired.keys():
        value = settings[setting]
        reached = network if setting in method.network else held_by(optimizer)
        assert reached[setting] == value


def test_the_article_s_settings() -> None:
    assert METHODS["rmsprop"].optimizer(nn.Linear(1, 1)).defaults["alpha"] == 0.95
    assert METHODS["adam"].settings["betas"] == (0.9, 0.999)
    assert METHODS["entropy-sgd"].settings["L"] == 5
    assert (METHODS["sbs"].settings["alpha"], METHODS["sbs"].settings["lambd"]) == (0.1, -4.0)
    assert METHODS["dropout"].network_options({}) == {"dropout": "block", "dropout_rate": 0.5}
    adaptive = METHODS["adaptive-dropout"].network_options({"dropout_rate": 0.3})
    assert adaptive == {"dropout": "adaptive", "dropout_rate": 0.3}
    assert METHODS["sgd"].network_options({}) == {}


def test_momentum_reaches_those_that_have_it_and_is_refused_by_the_others() -> None:
    for name, method in METHODS.items():
        if "momentum" in method.common:
            optimizer = method.optimizer(nn.Linear(1, 1), momentum=0.9)
            assert optimizer.param_groups[0]["momentum"] == 0.9
        else:
            assert name in ("acc-sgd", "alternating", "adam", "adamw", "masked-adamw")
            with pytest.raises(ValueError, match="has no momentum, got momentum=0.9"):
                method.optimizer(nn.Linear(1, 1), momentum=0.9)


class Plain(torch.optim.SGD):
    """Somebody else's optimizer: a setting without default, and any others."""

    def __init__(self, params, lr, power, **others):
        super().__init__(params, lr)


def test_weight_decay_is_refused_by_those_that_have_none() -> None:
    method, model = Method("Plain", Plain), torch.nn.Linear(1, 1)
    assert method.common == ("lr",)
    assert method.settings == {"power": inspect.Parameter.empty}
    with pytest.raises(ValueError, match="Plain has no weight decay, got weight_decay=0.1"):
        method.optimizer(model, weight_decay=0.1, power=2)
    assert isinstance(method.optimizer(model, power=2), Plain)


def test_a_method_with_a_closure_says_how_often_it_is_called() -> None:
    with pytest.raises(ValueError, match="Plain takes a closure: its setting L must say how"):
        Method("Plain", Plain, closure=True)


@pytest.fixture
def plain() -> Iterator[None]:
    METHODS.add("plain", "For a while.", Method("Plain", Plain))
    yield
    del METHODS._entries["plain"]


def test_in_a_trial_what_has_no_default_must_be_set(plain: None) -> None:
    with pytest.raises(TrialError, match="power has no default: set it"):
        Trial(method="plain", weight_decay=0)
    with pytest.raises(TrialError, match="Plain has no weight decay, got weight_decay=0.0005"):
        Trial(method="plain", settings={"power": 2})
    assert Trial(method="plain", weight_decay=0, settings={"power": 2}).settings == {"power": 2}
    study = Study.from_text(
        """
        title = "Plain"
        [base]
        momentum = 0.9
        [[axes]]
        name = "method"
        points = [
            { label = "SGD", method = "sgd" },
            { label = "Plain", method = "plain", settings = { power = 2 } },
        ]
        """,
        "plain",
    )
    trials = [cell.trial(0) for cell in study.cells(SCALES["paper"])]
    assert [(trial.momentum, trial.weight_decay) for trial in trials] == [(0.9, 5e-4), (0.0, 0.0)]


def test_sbs_gets_its_layers_by_kind() -> None:
    optimizer = METHODS["sbs"].optimizer(nn.Linear(2, 2))
    assert {group["kind"] for group in optimizer.param_groups} == {"linear", "bias"}


def test_a_retired_setting_stays_in_the_trial_and_is_not_passed_on() -> None:
    trial = Trial(method="sbs", settings={"momentum_mode": "lazy"})
    assert trial == Trial(method="sbs")
    assert '"momentum_mode":"lazy"' in trial.to_json()
    optimizer = build_optimizer(trial, nn.Linear(1, 1))
    assert "momentum_mode" not in optimizer.param_groups[0]
    with pytest.raises(TrialError, match="SBS has only momentum_mode='lazy', got 'push'"):
        Trial(method="sbs", settings={"momentum_mode": "push"})


def test_a_setting_that_came_later_is_in_the_text_only_where_it_differs() -> None:
    trial = Trial(method="sbs", settings={"compare": "kind"})
    assert trial == Trial(method="sbs")
    assert "compare" not in trial.to_json()
    other = Trial(method="sbs", settings={"compare": "all"})
    assert '"compare":"all"' in other.to_json()
    assert build_optimizer(other, nn.Linear(1, 1)).param_groups[0]["compare"] == "all"
    with pytest.raises(TrialError, match="compare must be one of"):
        Trial(method="sbs", settings={"compare": "layer"})


def test_variants_are_methods_and_not_settings() -> None:
    for name, option, value in (
        ("sbs", "coin", "scalar"),
        ("sbs-mean-field", "coin", "none"),
        ("sbs-fixed-half", "probability", 0.5),
    ):
        trial = Trial(method=name)
        assert build_optimizer(trial, nn.Linear(1, 1)).param_groups[0][option] == value
        assert "coin" not in trial.settings
        with pytest.raises(TrialError, match="has no setting 'coin'"):
            Trial(method=name, settings={"coin": "none"})


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("sbs", {"lamda": 1}, "SBS has no setting 'lamda', did you mean 'lambd'? It has: alpha,"),
        (  # one that it had once is accepted, and not offered
            "sbs",
            {"momentun": 1},
            "SBS has no setting 'momentun'. It has: alpha, lambd, probability, cross_layer, "
            "compare, lr_scaling, nesterov, skip_nonfinite",
        ),
        ("acc-sgd", {"zzz": 1}, "Accelerated-SGD has no setting 'zzz'. It has: kappa, xi,"),
        ("alternating", {"alpha": 1}, "Alternating has no setting 'alpha'. It has: none"),
        ("dropout", {"dropout_rat": 1}, "did you mean 'dropout_rate'?"),
    ],
)
def test_an_unknown_setting_gets_the_nearest_and_all(name, settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        METHODS[name].optimizer(nn.Linear(1, 1), **settings)
