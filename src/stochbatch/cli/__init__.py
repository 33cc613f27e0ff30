"""The ``stochbatch`` command. Each module has the commands of one kind; none has logic."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, and exit."""
    try:
        from stochbatch.cli.app import app
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "stochbatch":
            raise
        print(
            f"error: the command line needs {error.name}; "
            "install it with: pip install 'stochbatch[lab]'",
            file=sys.stderr,
        )
        sys.exit(1)
    app(prog_name="stochbatch")
