"""The article's numbers: 632 accuracies of its five tables (``published.csv``)."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from stochbatch.training import Trial

DATASETS = {"cifar10": "CIFAR10", "svhn": "SVHN", "stl10": "STL10"}
NETWORKS = {"vgg11": "VGG11", "resnet18": "ResNet18", "resnet50": "ResNet50"}
METHODS = {
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


Key = tuple[str, ...]


@cache
def _tables() -> dict[Key, dict[str, float]]:
    text = (resources.files("stochbatch.studies") / "published.csv").read_text(encoding="utf-8")
    tables: dict[Key, dict[str, float]] = {}
    for row in csv.DictReader(text.splitlines()):
        names = ("table", "dataset", "model", "batch_size", "train_ratio", "method")
        key = (*(row[name] for name in names), _param(row["table"], row["param"]))
        tables.setdefault(key, {})[row["stat"]] = float(row["value"])
    return tables


def _param(table: str, param: str) -> str:
    """Return what of the last column tells the cells of a table apart."""
    return param if table in ("lr_schedules", "batch_momentum", "alpha_lambda") else ""


MOMENTA = {16: 0.0, 32: 0.3, 64: 0.6, 128: 0.9}
"""The momentum that goes with a batch size."""
FIXED = ("width", "epochs", "augment", "weight_decay")
"""What is the same in all trials of the article's studies: the defaults of :class:`Trial`."""


def published_value(
    table: str | None, coordinates: Mapping[str, str], fields: Mapping[str, Any]
) -> Published | None:
    """Return the article's numbers for a cell, or None if the article does not have it.

    A narrower network, a shorter training, another rate or momentum is not the article's, whatever
    its method; settings of a method may be others, as another reading of it.
    """
    if table is None or not _as_in_the_article(table, fields):
        return None
    try:
        key = _key(table, coordinates, fields)
    except (TypeError, ValueError, AttributeError):  # of which no trial can be made
        return None
    found = _tables().get(key)
    return None if found is None else Published(found["mean"], found.get("max"))


def check_table(name: str) -> None:
    """Raise a `ValueError` if the article has no such table."""
    there = dict.fromkeys(key[0] for key in _tables())
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
        str(Fraction(fields.get("share", 1.0)).limit_denominator(1000)),
        METHODS.get(fields.get("method", "sgd"), ""),
        params.get(table, ""),
    )


def _as_in_the_article(table: str, fields: Mapping[str, Any]) -> bool:
    method = fields.get("method", "sgd")
    usual = {name: Trial.model_fields[name].default for name in FIXED}
    if table != "lr_schedules" and method != "entropy-sgd":  # whose rates are others
        usual |= {name: Trial.model_fields[name].default for name in ("lr", "schedule")}
    if table != "batch_momentum" and method != "acc-sgd":  # which has none
        usual["momentum"] = MOMENTA.get(fields.get("batch_size", 0), 0.0)
    defaults = {**{name: Trial.model_fields[name].default for name in usual}, "momentum": 0.0}
    return all(fields.get(name, defaults[name]) == value for name, value in usual.items())


def _scheme(label: str, fields: Mapping[str, Any]) -> str:
    settings = fields.get("settings", {})
    alpha, lambd = settings.get("alpha", 0.1), settings.get("lambd", -4.0)
    return f"alpha={alpha:g};lambda={lambd:g};part={label.split(' ')[0]}"
