"""``stochbatch report``: the page, tables and figures of a study."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from stochbatch.cli.errors import UsageError
from stochbatch.cli.options import with_options
from stochbatch.cli.printing import examples, say
from stochbatch.cli.study import Which

EPILOG = examples(
    "stochbatch report comparison --scale demo",
    "stochbatch report my-study.toml --scale small --to pages/mine",
    "stochbatch report article --scale small",
    after="A report only reads results: it never trains.",
)

ARTICLE = "article"
"""In the place of a study: all five tables of the article, published and ours."""


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
    """Write the page, tables and figures of a study, or of the article's tables together."""
    if which.name == ARTICLE and (which.only or which.trials):
        raise UsageError("report article shows whole tables: leave out --only and --trials")
    from stochbatch.report import write_article, write_report
    from stochbatch.studies import SCALES, StudyError

    if which.name == ARTICLE:
        scale = SCALES[which.scale or "demo"]
        folder = to or Path("reports") / f"{ARTICLE}-{scale.name}"
        say(f"report: {write_article(which.root, scale, folder)}")
        return
    found = which.results("stochbatch report")
    at = found.scale.name
    if not any(cell.done for cell in found.cells):
        words = ["study", "run", which.name, "--scale", at, "--root", str(which.root)]
        raise StudyError(
            f"nothing of {found.study.name} at the scale {at} has been run in {which.root}; run: "
            f"stochbatch {shlex.join(words)}"
        )
    part = "-part" if found.narrowed else ""  # which must not take the place of the whole
    folder = to or Path("reports") / f"{found.study.name}-{at}{part}"
    page = write_report(found, folder, figures=figures)
    say(f"report: {page}")
