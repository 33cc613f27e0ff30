"""Invariant: the page about the command line speaks of options that are there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from stochbatch.training import Trial
from tests.cli.command import all_commands

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "cli.md").read_text(encoding="utf-8")


def options(command: Any) -> set[str]:
    return {name for one in command.params for name in [*one.opts, *one.secondary_opts]}


def test_every_option_on_the_page_exists() -> None:
    known = set().union(*map(options, all_commands().values())) | {"--help"}
    said = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", PAGE))
    assert len(said) > 8
    assert said <= known


def test_every_command_is_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its help is printed there when the pages are built."""
    pytest.importorskip("docutils")
    monkeypatch.syspath_prepend(DOCS)
    generated = importlib.import_module("generated")
    assert ".. command-help::" in PAGE
    assert {tuple(words) for words in generated.paths(all_commands()[()])} == set(all_commands())
    assert "--evaluate-every" in generated.help_of(("train",))
    assert generated.help_of(("data", "get")).startswith("Usage: stochbatch data get")


def test_the_folder_of_the_example_is_that_of_its_trial() -> None:
    trial = Trial(method="sbs", settings={"lambd": -2}, epochs=30)
    assert "$ stochbatch train --method sbs --set lambd=-2 --epochs 30\n" in PAGE
    assert f"folder: runs/{trial.folder} (new)" in PAGE
    for name in re.findall(r"stochbatch (?:show|predict) (?:runs/)?([0-9a-f]+)", PAGE):
        assert trial.folder.startswith(name)


def test_the_example_of_a_file_is_a_trial() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    assert Trial.from_text(text, "toml").settings["lambd"] == -2.0
