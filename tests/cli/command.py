"""The command, called in this process or in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

from stochbatch.cli.app import app
from tests.forked import forked

SCRIPT = Path(sys.executable).with_name("stochbatch")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}


def all_commands(command: Any = None, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Return every command by its words."""
    command = typer.main.get_command(app) if command is None else command
    found = {path: command}
    for name, one in getattr(command, "commands", {}).items():
        found |= all_commands(one, (*path, name))
    return found


class Outcome:
    """What a call left: its exit code and its texts."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


def call(*args: object) -> Outcome:
    """Call the command in this process."""
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Outcome(result.exit_code, result.stdout, result.stderr)


def spawn(*args: object) -> Outcome:
    """Call the installed command, in an interpreter of its own."""
    words = [str(SCRIPT), *(str(arg) for arg in args)]
    done = subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT, timeout=120)
    return Outcome(done.returncode, done.stdout, done.stderr)


def fork(*args: object) -> Outcome:
    """Call the command in a process of its own, forked from one that has torch loaded."""
    done = forked(["stochbatch", *args], env=ENVIRONMENT)
    return Outcome(done.returncode, done.stdout, done.stderr)


def assert_one_clear_line(outcome: Outcome, code: int, *parts: str) -> None:
    assert outcome.code == code, outcome.err
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1
    for part in parts:
        assert part in outcome.err
