"""Options that several commands have, and those of a trial."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from stochbatch.training.trial import Trial

Root = Annotated[Path, typer.Option(help="Folder of all runs.")]


def _remembered(root: Path | None) -> Path | None:
    """Let data sets of your own in this folder be found by name."""
    if root is not None:
        from stochbatch.data.own_data import remember

        remember(root)
    return root


DataRoot = Annotated[
    Path | None,
    typer.Option(
        callback=_remembered,
        is_eager=True,
        help="Folder of all data.",
        show_default="STOCHBATCH_DATA, else stochbatch/data in the cache folder",
    ),
]
AcceptHash = Annotated[
    bool, typer.Option("--accept-hash", help="Accept data files whose hash differs.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result.")]

SETTINGS = {"settings": "--set", "schedule_settings": "--schedule-set"}
"""The options of fields that are tables."""

Command = Callable[..., None]


def first_try(dataset: str) -> dict[str, Any]:
    """Return what is trained without options: this package's method, for half a minute on digits.

    The defaults of `Trial` are part of every hash and stay what they are.
    """
    return {"method": "sbs", **({"epochs": 30} if dataset == "digits" else {})}


def with_options(*fields: str, **usual: Any) -> Callable[[Command], Command]:
    """Return a decorator that gives a command options beyond its own.

    A parameter whose type is a dataclass becomes one option per field of the dataclass. The
    command's ``**fields`` become the named fields of a trial; what is not given is None, or empty.
    Help shows the defaults in ``usual`` in the place of a trial's own.
    """

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        groups: dict[str, tuple[type, list[str]]] = {}
        options = [_option(name, usual.get(name)) for name in fields]
        for one in signature.parameters.values():
            if isinstance(one.annotation, type) and is_dataclass(one.annotation):
                its = inspect.signature(one.annotation, eval_str=True).parameters
                groups[one.name] = one.annotation, list(its)
                options += its.values()
            elif one.kind is not one.VAR_KEYWORD:
                options.append(one)

        @wraps(command)
        def decorated(**given: Any) -> None:
            for name, (group, its) in groups.items():
                given[name] = group(**{one: given.pop(one) for one in its})
            command(**given)

        keywords = [one.replace(kind=one.KEYWORD_ONLY) for one in options]
        decorated.__signature__ = signature.replace(parameters=keywords)  # type: ignore[attr-defined]
        return decorated

    return decorate


def _option(name: str, usual: Any) -> inspect.Parameter:
    field = Trial.model_fields[name]
    kind: Any = field.annotation
    names, metavar, said = [], None, f"{field.description}"
    if name in SETTINGS:
        kind, names, metavar = list[str], [SETTINGS[name]], "NAME=VALUE"
        said += " May be repeated."
    elif kind is bool:
        word = name.replace("_", "-")
        names = [f"--{word}/--no-{word}"]
        said += f"  [default: {word if field.default else f'no-{word}'}]"
    elif usual is not None:
        said = f"{said.removesuffix('.').split('; by default')[0]}.  [default: {usual}]"
    elif "by default" not in said:
        on_digits, elsewhere = (first_try(data).get(name, field.default) for data in ("digits", ""))
        less = "" if on_digits == elsewhere else f" on digits, else {elsewhere}"
        said += f"  [default: {on_digits}{less}]"
    option = typer.Option(*names, help=said, show_default=False, metavar=metavar)
    annotation = Annotated[kind | None, option]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def make_trial(
    options: Mapping[str, Any], config: Path | None, data_root: Path | None = None
) -> Trial:
    """Return the trial of the file, if there is one; options override it."""
    from stochbatch.data.own_data import taken_in
    from stochbatch.training.trial import check_falling

    given = {name: value for name, value in options.items() if value not in (None, [])}
    if "dataset" in given:
        given["dataset"], _ = taken_in(given["dataset"], data_root)
    fields: dict[str, Any] = {}
    if config is not None:
        fields = Trial.from_file(config).model_dump(exclude_unset=True)
    for owner, its in (("method", "settings"), ("schedule", "schedule_settings")):
        default = Trial.model_fields[owner].default
        if owner in given and given[owner] != fields.get(owner, default):
            fields.pop(its, None)  # they are another method's
        if its in given:
            given[its] = {**fields.get(its, {}), **parse_settings(given[its])}
    if "lr" in given and "schedule_settings" not in given:
        check_falling(given["lr"], fields.get("schedule_settings", {}))  # of the file's rate
    if config is None:
        fields = first_try(given.get("dataset", "digits"))
    return Trial(**{**fields, **given})


def parse_settings(texts: list[str]) -> dict[str, Any]:
    """Return settings from texts like ``lambd=-2``.

    Example:
        >>> from stochbatch.cli.options import parse_settings
        >>> parse_settings(["lambd=-2", "guard=true", "dropout=block", "milestones=[3, 5]"])
        {'lambd': -2, 'guard': True, 'dropout': 'block', 'milestones': [3, 5]}
    """
    pairs = (name_and_value(text, "a setting is NAME=VALUE") for text in texts)
    return {name.replace("-", "_"): parse_value(value) for name, value in pairs}


def name_and_value(text: str, form: str) -> tuple[str, str]:
    """Return what stands on both sides of the first equals sign; ``form`` says what is expected."""
    name, _, value = map(str.strip, text.partition("="))
    if not name or not value:
        raise typer.BadParameter(f"{form}, got {text!r}")
    return name, value


def parse_value(text: str) -> Any:
    """Return a number, truth value, list or null as JSON has it, anything else as text."""
    words = {"True": True, "False": False, "None": None}  # as Python has them
    if text in words:
        return words[text]
    for read in (json.loads, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text
