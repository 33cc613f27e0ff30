"""``stochbatch list``: what can be chosen by name."""

from __future__ import annotations

import inspect
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stochbatch.cli.texts import examples, table

if TYPE_CHECKING:
    from stochbatch.registry import Registry

EPILOG = examples(
    "stochbatch list methods",
    "stochbatch list methods --settings",
    "stochbatch list datasets",
)


class Listed(str, Enum):
    """What there are lists of."""

    methods = "methods"
    networks = "networks"
    datasets = "datasets"
    schedules = "schedules"
    studies = "studies"


def list_(
    what: Annotated[Listed, typer.Argument(help="What to list.")],
    settings: Annotated[
        bool,
        typer.Option("--settings", help="Also list the settings of methods and schedules."),
    ] = False,
) -> None:
    """List methods, networks, data sets, schedules or studies, with one line about each."""
    if settings and what not in (Listed.methods, Listed.schedules):
        raise typer.BadParameter("--settings is for methods and schedules")
    registry = _registry(what)
    table([(name, registry.summary(name)) for name in registry])
    if settings:
        rows = [
            (name, setting, _default(value))
            for name in registry
            for setting, value in _settings(what, name).items()
        ]
        typer.echo("")
        table(rows, (registry.noun, "setting", "default"))


def _registry(what: Listed) -> Registry[Any]:
    if what is Listed.datasets:
        from stochbatch.data import DATASETS

        return DATASETS
    if what is Listed.networks:
        from stochbatch.nets import NETWORKS

        return NETWORKS
    if what is Listed.studies:
        from stochbatch.studies import STUDIES

        return STUDIES
    from stochbatch.optim import METHODS, SCHEDULES

    return METHODS if what is Listed.methods else SCHEDULES


def _settings(what: Listed, name: str) -> dict[str, Any]:
    if what is Listed.methods:
        from stochbatch.optim import METHODS

        return METHODS[name].settings
    from stochbatch.training import Trial

    return dict(Trial(schedule=name).schedule_settings)  # a trial fills in what is not given


def _default(value: object) -> str:
    if value is inspect.Parameter.empty:
        return "none: must be set"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
