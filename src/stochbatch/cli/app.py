"""The command and its subcommands, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from stochbatch import __version__
from stochbatch.cli import compare, data, listing, report, runs, study, train
from stochbatch.cli.errors import CODES, OneLineErrors
from stochbatch.cli.printing import examples

app = typer.Typer(
    cls=OneLineErrors,
    help="Train networks by stochastic batch size (SBS) and other optimizers, and compare them.",
    epilog=examples(
        "stochbatch train --method sbs --epochs 30",
        "stochbatch list methods",
        "stochbatch show 3f9a",
        "stochbatch predict 3f9a digit.png",
        after=CODES,
    ),
    rich_markup_mode=None,
    # Errors are shown by OneLineErrors.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"stochbatch {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def stochbatch(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", help="Show the traceback of an error; works anywhere on the line."),
    ] = False,
) -> None:
    """Show the help if no command is given."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command("train", epilog=train.EPILOG)(train.train)
app.command("compare", epilog=compare.EPILOG)(compare.compare)
app.command("show", epilog=runs.SHOW_EPILOG)(runs.show)
app.command("predict", epilog=runs.PREDICT_EPILOG)(runs.predict)
app.command("list", epilog=listing.EPILOG)(listing.list_)
app.command("report", epilog=report.EPILOG)(report.report)
app.add_typer(data.app, name="data")
app.add_typer(study.app, name="study")
