"""The article's numbers, ``published.csv``: 608 accuracies of five tables, and 24 differences."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from stochbatch.registry import METHODS
from stochbatch.training import Trial

DATASETS = {"cifar10": "CIFAR10", "svhn": "SVHN", "stl10": "STL10"}
NETWORKS = {"vgg11": "VGG11", "resnet18": "ResNet18", "resnet50": "ResNet50"}
TITLES = {
    "sgd": "SGD",
    "sbs": "Ours",
    "dropout": "Drop",
    "adaptive-dropout": "aDrop",
    "entropy-sgd": "eSGD",
    "acc-sgd": "aSGD",
    "rmsprop": "RMSProp",
    "adam": "Adam",
}


class Published(NamedTuple):
    """What the article prints in a cell, in percent; it has no maximum in one table."""

    mean: float
    max: float | None


Key = tuple[object, ...]


@cache
def _tables() -> dict[Key, dict[str, float]]:
    text = (resources.files("stochbatch.studies") / "published.csv").read_text(encoding="utf-8")
    tables: dict[Key, dict[str, float]] = {}
    for row in csv.DictReader(text.splitlines()):
        place = (row[name] for name in ("table", "dataset", "model", "batch_size", "method"))
        varied = row["table"] in ("lr_schedules", "batch_momentum", "alpha_lambda")
        key = (*place, float(Fraction(row["train_ratio"])), row["param"] if varied else "")
        tables.setdefault(key, {})[row["stat"]] = float(row["value"])
    return tables


MOMENTA = {16: 0.0, 32: 0.3, 64: 0.6, 128: 0.9}
"""The momentum that goes with a batch size."""
IN_KEY = ("dataset", "network", "batch_size", "share", "method", "momentum")
"""Fields by which a printed number is found."""
FREE = ("seed", "evaluate_every", "sync_bn", "norm_init", "compile")
"""Fields that the article says nothing of."""
SIGMOID = {"lr": 0.1, "schedule": "sigmoid", "schedule_settings": {}}
RATES: dict[str, dict[str, Any]] = {
    **{f"constant {lr:g}": {"schedule": "constant", "lr": lr} for lr in (0.1, 0.01, 0.001)},
    "Exponential": {"schedule": "exponential", "lr": 0.1},
    "RMSProp": {"method": "rmsprop", "schedule": "constant", "lr": 0.0001},
    "Adam": {"method": "adam", "schedule": "constant", "lr": 0.0001},
    "Staircase": {"schedule": "staircase", "lr": 0.1},
    "Sigmoid": {"schedule": "sigmoid", "lr": 0.1},
}
"""The schedules of the article's table, by their labels."""


def published_value(
    table: str | None, coordinates: Mapping[str, str], fields: Mapping[str, Any]
) -> Published | None:
    """Return the article's numbers for a cell, or None if the article does not have it.

    They belong to a training that is the article's in all that the article states. A maximum is
    over all epochs: there is none to compare with where only some were evaluated.
    """
    if table is None:
        return None
    try:
        if not _as_in_the_article(table, coordinates, fields):
            return None
        found = _tables().get(_key(table, coordinates, fields))
    except (TypeError, ValueError, AttributeError):  # no trial can be made of such fields
        return None
    if found is None:
        return None
    every = fields.get("evaluate_every", 1) == 1
    return Published(found["mean"], found.get("max") if every else None)


def check_table(name: str) -> None:
    """Raise a `ValueError` if the article has no such table."""
    there = dict.fromkeys(str(key[0]) for key in _tables())
    if name not in there:
        raise ValueError(f"the article has no table {name!r}. There are: {', '.join(there)}")


def _key(table: str, coordinates: Mapping[str, str], fields: Mapping[str, Any]) -> Key:
    params = {
        "lr_schedules": f"schedule={coordinates.get('schedule')}",
        "batch_momentum": f"momentum={fields.get('momentum', 0.0):g}",
        "alpha_lambda": _scheme(coordinates.get("scheme", ""), fields),
    }
    return (
        table,
        DATASETS.get(fields.get("dataset", ""), ""),
        NETWORKS.get(fields.get("network", ""), ""),
        str(fields.get("batch_size", "")),
        TITLES.get(fields.get("method", "sgd"), ""),
        fields.get("share", 1.0),
        params.get(table, ""),
    )


def _as_in_the_article(
    table: str, coordinates: Mapping[str, str], fields: Mapping[str, Any]
) -> bool:
    method = METHODS[fields.get("method", "sgd")]
    usual = {name: field.default for name, field in Trial.model_fields.items()}
    usual |= {"settings": {}, "schedule_settings": {}}
    if method.usual_lr is not None:
        usual["lr"] = method.usual_lr
    given = {**usual, **fields}
    stated = {name: usual[name] for name in usual if name not in (*IN_KEY, *FREE, "settings")}
    if table != "lr_schedules":
        stated |= SIGMOID
    elif rate := RATES.get(coordinates.get("schedule", "")):
        stated |= {"method": "sgd", "schedule_settings": {}, **rate}
    else:
        return False
    if table != "batch_momentum" and given["method"] != "acc-sgd":  # which has no momentum
        stated["momentum"] = MOMENTA.get(given["batch_size"])
    varied = ("alpha", "lambd") if table == "alpha_lambda" else ()
    settings = {name: one for name, one in given["settings"].items() if name not in varied}
    return all(given[name] == value for name, value in stated.items()) and all(
        method.settings.get(name) == value for name, value in settings.items()
    )


def _scheme(label: str, fields: Mapping[str, Any]) -> str:
    settings = fields.get("settings", {})
    alpha, lambd = settings.get("alpha", 0.1), settings.get("lambd", -4.0)
    return f"alpha={alpha:g};lambda={lambd:g};part={label.split(' ')[0]}"
