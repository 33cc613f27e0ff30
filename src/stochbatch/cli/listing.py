"""``stochbatch list``: what can be chosen by name."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from stochbatch import registry as registries
from stochbatch.cli.options import Root
from stochbatch.cli.printing import examples, say, table
from stochbatch.cli.runs import list_runs
from stochbatch.registry import Registry

EPILOG = examples(
    "stochbatch list methods --settings",
    "stochbatch list datasets",
    "stochbatch list runs --root runs",
)


Listed = Literal["methods", "networks", "datasets", "schedules", "studies", "runs"]


def list_(
    what: Annotated[Listed, typer.Argument(help="What to list.")],
    settings: Annotated[
        bool,
        typer.Option("--settings", help="Also list the settings of methods and schedules."),
    ] = False,
    root: Root = Path("runs"),
) -> None:
    """List methods, networks, data sets, schedules, studies or runs."""
    if settings and what not in ("methods", "schedules"):
        raise typer.BadParameter("--settings is for methods and schedules")
    if what == "runs":
        list_runs(root)
        return
    registry: Registry[Any] = getattr(registries, what.upper())
    table([(name, registry.summary(name)) for name in registry])
    if settings:
        rows = [
            (name, setting, _default(value))
            for name in registry
            for setting, value in _settings(what, name).items()
        ]
        say()
        table(rows, (registry.noun, "setting", "default"))


def _settings(what: Listed, name: str) -> dict[str, Any]:
    if what == "methods":
        return registries.METHODS[name].settings
    from stochbatch.training import Trial

    return dict(Trial(schedule=name).schedule_settings)  # a trial fills in what is not given


def _default(value: object) -> str:
    if value is inspect.Parameter.empty:
        return "none: must be set"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
