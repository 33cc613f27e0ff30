"""Invariant: everything in a registry is listed, with its line."""

from __future__ import annotations

from typing import Any

import pytest

from stochbatch.data import DATASETS
from stochbatch.nets import NETWORKS
from stochbatch.studies import STUDIES
from stochbatch.training import METHODS, SCHEDULES
from tests.cli.command import assert_one_clear_line, call


@pytest.mark.parametrize(
    ("what", "registry"),
    [
        ("methods", METHODS),
        ("networks", NETWORKS),
        ("datasets", DATASETS),
        ("schedules", SCHEDULES),
        ("studies", STUDIES),
    ],
)
def test_every_name_is_listed_with_its_line(what: str, registry: Any) -> None:
    lines = call("list", what).out.splitlines()
    assert [line.split(maxsplit=1) for line in lines] == [
        [name, registry.summary(name)] for name in registry
    ]


def test_settings_are_listed_with_their_defaults() -> None:
    rows = [line.split() for line in call("list", "methods", "--settings").out.splitlines()]
    for name, method in METHODS.items():
        for setting, default in method.settings.items():
            text = ", ".join(map(str, default)) if isinstance(default, tuple) else str(default)
            assert [name, setting, *text.split()] in rows
    rows = [line.split() for line in call("list", "schedules", "--settings").out.splitlines()]
    assert ["sigmoid", "end_lr", "0.001"] in rows
    assert ["staircase", "milestones", "0.5,", "0.75"] in rows


def test_what_has_no_settings_says_so() -> None:
    for what in ("networks", "datasets", "studies"):
        outcome = call("list", what, "--settings")
        assert_one_clear_line(outcome, 2, "--settings is for methods and schedules")
