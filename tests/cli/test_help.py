"""Invariant: help comes at once, for every command, with examples; errors are one line."""

from __future__ import annotations

import subprocess
import sys

import pytest

import stochbatch
from stochbatch.cli import errors, train
from tests.cli.command import ENVIRONMENT, all_commands, assert_one_clear_line, call, fork, spawn


@pytest.mark.parametrize("command", all_commands(), ids=" ".join)
def test_every_command_has_help_with_an_example(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    outcome = call(*command, "--help")
    assert outcome.code == 0
    assert max(map(len, outcome.out.splitlines())) <= 80
    assert "bool" not in outcome.out
    assert "Example" in outcome.out
    assert f"stochbatch {' '.join(command)}".strip() in outcome.out.split("Example")[1]


def test_without_a_command_the_help_is_shown_with_all_exit_codes() -> None:
    assert call().code == 0
    text = " ".join(call().out.split())
    assert "Usage: " in text
    assert "0 done, 1 an error" in text
    assert "130 or 143" in text


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


def test_the_package_can_be_run_as_a_module() -> None:
    words = [sys.executable, "-m", "stochbatch", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
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
