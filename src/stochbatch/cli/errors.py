"""How the command ends: its exit codes, and errors in one line."""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from stochbatch.cli.printing import say

DONE, ERROR, USAGE, DIVERGED = 0, 1, 2, 3
INTERRUPTED = 128
"""Plus the number of the signal: 130 after Ctrl-C, 143 after a SIGTERM."""

CODES = (
    "Exit codes: 0 done, 1 an error (one line on standard error), 2 wrong usage, 3 the training "
    "diverged, 130 or 143 stopped by Ctrl-C or SIGTERM (everything is saved)."
)

# Typer shows only some of the classes that it raises: these are the parents of one of them.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]
_CommandError: type[Exception] = typer.BadParameter.__mro__[2]

_DEBUG = "--debug"


class OneLineErrors(TyperGroup):
    """A command whose errors are one line, and with ``--debug``, anywhere, a traceback."""

    def main(self, args: Any = None, *rest: Any, **extra: Any) -> NoReturn:
        """Run the command and exit with its code."""
        given = list(sys.argv[1:] if args is None else args)
        debug = _DEBUG in _options(given)
        if debug:
            given.remove(_DEBUG)
            # The option belongs to the command itself, but is mostly thought of at the end.
            given.insert(0, _DEBUG)
        extra["standalone_mode"] = False
        try:
            code = super().main(given, *rest, **extra)
        except typer.Abort:
            code = INTERRUPTED + 2
        except Exception as error:
            if debug and not isinstance(error, _CommandError):
                raise
            _report(error)
            code = USAGE if isinstance(error, UsageError) else ERROR
        sys.exit(code if isinstance(code, int) else DONE)


def one_line(error: Exception) -> str:
    """Return what is wrong, in one line.

    Example:
        >>> from stochbatch.cli.errors import one_line
        >>> from stochbatch.registry import UnknownNameError
        >>> one_line(UnknownNameError("no shape is called 'sqare'"))
        "no shape is called 'sqare'"
        >>> one_line(IndexError("7"))
        'unexpected IndexError: 7 (--debug shows where)'
    """
    if isinstance(error, _CommandError):
        text = error.format_message()  # type: ignore[attr-defined]
        context = getattr(error, "ctx", None)
        hint = f" (see: {context.command_path} --help)" if context is not None else ""
        return " ".join(text.split()) + hint
    text = " ".join(str(error).split())
    # The package's own errors, and those of files, are written to be read.
    ours = type(error).__module__.split(".")[0] == "stochbatch"
    if text and (ours or isinstance(error, OSError | ModuleNotFoundError)):
        return text
    return f"unexpected {type(error).__name__}: {text or 'no message'} ({_DEBUG} shows where)"


def _report(error: Exception) -> None:
    """Print an error; of several ranks that torchrun started, the first one does."""
    where = ""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        from stochbatch.training.distributed import is_first_to_report, launched

        if not is_first_to_report():
            return
        rank, count = launched()
        where = f"rank {rank}: " if count > 1 else ""
    say(f"error: {where}{one_line(error)}", err=True)


def _options(args: list[str]) -> list[str]:
    """Return the arguments before a lone ``--``, after which nothing is an option."""
    return args[: args.index("--")] if "--" in args else args
