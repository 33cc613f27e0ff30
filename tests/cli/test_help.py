"""Invariant: help comes at once, for every command, with examples; errors are one line."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import typer

import stochbatch
from stochbatch.cli import data, errors, study, train
from stochbatch.cli.app import app
from tests.cli.command import ENVIRONMENT, assert_one_clear_line, call, fork, spawn

COMMANDS = [
    [],
    ["train"],
    ["compare"],
    ["show"],
    ["predict"],
    ["list"],
    ["data"],
    ["report"],
    ["study"],
    ["study", "plan"],
    ["study", "run"],
    ["data", "get"],
    ["data", "add"],
    ["data", "list"],
]


def test_the_list_of_commands_is_complete() -> None:
    command: Any = typer.main.get_command(app)
    nested = [
        [group, name]
        for group, its in (("data", data.app), ("study", study.app))
        for name in typer.main.get_command(its).commands
    ]
    assert sorted(COMMANDS) == sorted([[], *([name] for name in command.commands), *nested])


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    outcome = call(*command, "--help")
    assert outcome.code == 0
    assert max(map(len, outcome.out.splitlines())) <= 80
    assert "bool" not in outcome.out
    assert "Example" in outcome.out
    assert f"stochbatch {' '.join(command)}".strip() in outcome.out.split("Example")[1]


def test_exit_codes_are_in_the_help() -> None:
    text = " ".join(call("--help").out.split())
    assert "0 done, 1 an error" in text
    assert "130 or 143" in text


def test_no_command_at_all_shows_the_help() -> None:
    assert call().code == 0
    assert "Usage: " in call().out


SWIFT = """
--help
train --help
study run --help
study run
list methods
list networks
list datasets
list schedules
list studies
list runs
data list
"""


def test_help_and_lists_import_nothing_large() -> None:
    """To import torch takes longer than all else."""
    probe = f"""
import sys
from stochbatch.cli import main
for command in {SWIFT.strip().splitlines()}:
    sys.argv = ["stochbatch", *command.split()]
    try:
        main()
    except SystemExit:
        large = {{"torch", "matplotlib", "ray"}} & set(sys.modules)
        print(command, large or "nothing", sep=": ", file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, env=ENVIRONMENT
    )
    said = [line for line in done.stderr.splitlines() if not line.startswith("error: no study")]
    assert said == [f"{command}: nothing" for command in SWIFT.strip().splitlines()]


def test_the_version_is_shown() -> None:
    assert call("--version").out == f"stochbatch {stochbatch.__version__}\n"


def test_the_package_can_be_run_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stochbatch", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"stochbatch {stochbatch.__version__}\n"


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["train", "--epoch", "3"], "--epochs"),
        (["train", "--epochs", "many"], "'--epochs'"),
        (["train", "--set", "lambd"], "a setting is NAME=VALUE, got 'lambd'"),
        (["train", "--precision", "fp8"], "'fp8'"),
        (["trian"], "'trian'"),
        (["list", "metods"], "'metods'"),
        (["data"], "Missing command"),
        (["show"], "Missing argument"),
    ],
    ids=str,
)
def test_wrong_usage_is_one_line_and_exit_code_2(args: list[str], part: str) -> None:
    assert_one_clear_line(call(*args), errors.USAGE, part, "--help)")


@pytest.mark.parametrize("command", ["study", "study run", "report"])
def test_without_a_study_the_answer_is_what_to_type(command: str) -> None:
    example = f"stochbatch {command if command != 'study' else 'study run'} comparison --scale demo"
    outcome = fork(*command.split())
    assert_one_clear_line(outcome, errors.USAGE, example, "lr-schedules, batch-momentum,", ".toml")


def test_wrong_usage_of_the_installed_command() -> None:
    assert_one_clear_line(spawn("train", "--nonsense"), 2, "--nonsense")


def test_an_error_is_one_line_without_a_traceback() -> None:
    outcome = fork("train", "--method", "sbss")
    assert_one_clear_line(outcome, 1, "no method is called 'sbss', did you mean 'sbs'?")


@pytest.mark.parametrize("args", [["--debug", "show", "none"], ["show", "none", "--debug"]])
def test_debug_shows_the_traceback_wherever_it_stands(args: list[str]) -> None:
    outcome = fork(*args)
    assert outcome.code == 1
    assert "Traceback" in outcome.err
    assert "RunError: there is no run 'none'" in outcome.err


def test_after_two_dashes_debug_is_no_option() -> None:
    assert_one_clear_line(call("show", "--", "--debug"), 1, "there is no run '--debug'")


def test_an_error_that_nobody_foresaw_is_one_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*options: object) -> None:
        raise IndexError("out of\nrange")

    monkeypatch.setattr(train, "make_trial", fails)
    outcome = call("train")
    assert_one_clear_line(outcome, 1, "unexpected IndexError: out of range (--debug shows where)")
    with pytest.raises(IndexError):
        call("train", "--debug")


def test_ctrl_c_outside_of_a_training_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def stops(*options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "make_trial", stops)
    assert call("train").code == 130


def test_without_the_lab_the_command_says_what_to_install() -> None:
    probe = "import sys; sys.modules['typer'] = None; import stochbatch.cli; stochbatch.cli.main()"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == (
        "error: the command line needs typer; install it with: pip install 'stochbatch[lab]'\n"
    )
