"""``stochbatch report``: the page, tables and figures of a study."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from stochbatch.cli.options import with_options
from stochbatch.cli.printing import examples, say
from stochbatch.cli.study import Which

EPILOG = examples(
    "stochbatch report comparison --scale demo",
    "stochbatch report my-study.toml --scale small --to pages/mine",
    after="A report reads what trainings left, and never trains.",
)


@with_options()
def report(
    which: Which,
    to: Annotated[
        Path | None,
        typer.Option(
            help="Folder to write.", show_default="reports/NAME-SCALE, with -part if narrowed"
        ),
    ] = None,
    figures: Annotated[
        bool, typer.Option(help="Draw figures, which takes most of the time.")
    ] = True,
) -> None:
    """Write the page, tables and figures of a study."""
    from stochbatch.report import write_report
    from stochbatch.studies import StudyError

    found = which.results("stochbatch report")
    at = found.scale.name
    if not any(cell.done for cell in found.cells):
        words = ["study", "run", which.name, "--scale", at, "--root", str(which.root)]
        raise StudyError(
            f"nothing of {found.study.name} at the scale {at} has been run in {which.root}: "
            f"stochbatch {shlex.join(words)}"
        )
    part = "-part" if found.narrowed else ""  # which must not take the place of the whole
    folder = to or Path("reports") / f"{found.study.name}-{at}{part}"
    page = write_report(found, folder, figures=figures)
    say(f"report: {page}")
