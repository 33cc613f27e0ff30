"""Invariant: a method's name gives its optimizer, its settings and what it asks of a network."""

import re

import pytest
import torch
from torch import nn

from stochbatch.optim import METHODS, SBS, AccSGD, AlternatingSGD, EntropySGD

OPTIMIZERS = {
    "sgd": torch.optim.SGD,
    "sbs": SBS,
    "dropout": torch.optim.SGD,
    "adaptive-dropout": torch.optim.SGD,
    "entropy-sgd": EntropySGD,
    "acc-sgd": AccSGD,
    "alternating": AlternatingSGD,
    "rmsprop": torch.optim.RMSprop,
    "adam": torch.optim.Adam,
}


def test_every_method_is_tested() -> None:
    assert set(METHODS) == set(OPTIMIZERS)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_makes_its_optimizer_with_what_is_common_to_all(name: str) -> None:
    method = METHODS[name]
    optimizer = method.optimizer(nn.Linear(3, 2), lr=0.02, weight_decay=1e-4, seed=5)
    assert type(optimizer) is OPTIMIZERS[name]
    group = optimizer.param_groups[0]
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
    for setting, value in settings.items():
        reached = network if setting in method.network else optimizer.param_groups[0]
        assert reached[setting] == value


def test_the_article_s_settings() -> None:
    assert METHODS["rmsprop"].optimizer(nn.Linear(1, 1)).defaults["alpha"] == 0.95
    assert METHODS["adam"].settings["betas"] == (0.9, 0.999)
    assert METHODS["entropy-sgd"].settings["L"] == 5
    assert METHODS["sbs"].settings["alpha"] == 0.1
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
            assert name in ("acc-sgd", "alternating", "adam")
            with pytest.raises(ValueError, match="has no momentum, got momentum=0.9"):
                method.optimizer(nn.Linear(1, 1), momentum=0.9)


def test_sbs_gets_its_layers_by_kind_and_its_epochs_from_the_training() -> None:
    optimizer = METHODS["sbs"].optimizer(nn.Linear(2, 2), steps_per_epoch=7)
    assert {group["kind"] for group in optimizer.param_groups} == {"linear", "bias"}
    assert optimizer.param_groups[0]["steps_per_epoch"] == 7
    assert "steps_per_epoch" not in METHODS["sbs"].settings


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("sbs", {"lamda": 1}, "SBS has no setting 'lamda', did you mean 'lambd'? It has: alpha,"),
        ("acc-sgd", {"zzz": 1}, "Accelerated-SGD has no setting 'zzz'. It has: kappa, xi,"),
        ("alternating", {"alpha": 1}, "Alternating has no setting 'alpha'. It has: none"),
        ("dropout", {"dropout_rat": 1}, "did you mean 'dropout_rate'?"),
    ],
)
def test_an_unknown_setting_gets_the_nearest_and_all(name, settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        METHODS[name].optimizer(nn.Linear(1, 1), **settings)
