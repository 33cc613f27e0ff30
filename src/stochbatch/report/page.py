"""The report of a study: one page that needs nothing but itself, tables and figures."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

from stochbatch.optional import optional
from stochbatch.report import (
    answer,
    charts,
    formatting,
    heat_maps,
    provenance,
    tables,
    tried,
    writers,
)
from stochbatch.report.figures import Sketch, gallery
from stochbatch.report.layout import Layout, seconds_of
from stochbatch.report.palette import COLOURS
from stochbatch.studies.outcome import Outcome
from stochbatch.studies.results import StudyResults

PAGE = "index.html"
OURS = re.compile(
    rf"{PAGE}|claims\.csv|table\.(csv|md|tex)|figures(/[\w.-]+\.(pdf|png))?"
    r"|\.DS_Store"
)
"""What a report's folder may hold."""


class ReportError(ValueError):
    """A report that cannot be written where it was asked."""


def write_report(
    results: StudyResults, folder: str | os.PathLike[str], *, figures: bool = True
) -> Path:
    """Write the report of a study, as far as it has been run.

    The folder then has ``index.html``, which is self-contained and works offline,
    ``table.md``, ``table.tex``, ``table.csv``, ``claims.csv`` if the study claims something, and
    ``figures/`` with figures to print as PNG and PDF. The report is written beside the folder and
    takes its place when it is complete. The same results give the same bytes, but for the page's
    section with the id ``times``: times and machines may differ from run to run.

    Args:
        results: from `stochbatch.studies.collect`.
        folder: where to; made if it does not exist. An earlier report there is replaced.
        figures: whether to draw the figures to print, which takes most of the time.

    Returns:
        The page's path.

    Raises:
        ReportError: the folder cannot be written to, or holds files that are not a report's.
    """
    return written(Path(folder), partial(_files, results, Path(folder), figures))


def written(folder: Path, files: Callable[[], Mapping[str, bytes]]) -> Path:
    """Put files in the place of a folder, as :func:`write_report` does; return the page's path."""
    there = folder.resolve()  # a link to a folder stays a link
    new = there.with_name(f".{there.name}.new")
    try:
        there.mkdir(parents=True, exist_ok=True)
        _refuse_others(there)  # before anything is drawn
        shutil.rmtree(new, ignore_errors=True)  # of a report that was killed
        try:
            for name, content in files().items():
                (new / name).parent.mkdir(parents=True, exist_ok=True)
                (new / name).write_bytes(content)
            _refuse_others(there)
            shutil.rmtree(there)
            new.rename(there)
        finally:
            shutil.rmtree(new, ignore_errors=True)
    except OSError as error:
        raise ReportError(f"cannot write {folder}: {error.strerror or error}") from error
    return folder / PAGE


def _refuse_others(folder: Path) -> None:
    """Raise if a folder holds more than a report."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
    if foreign := [name for name in names if not OURS.fullmatch(name)]:
        raise ReportError(
            f"{folder} holds files that are not a report's ({foreign[0]}): move them away, "
            "or write to another folder with --to"
        )


def _files(results: StudyResults, folder: Path, figures: bool) -> dict[str, bytes]:
    """Return the content of every file of a report that is to lie in ``folder``."""
    layout = Layout.of(results)
    sketches = gallery(layout) if figures else []
    texts = {
        PAGE: page(layout, folder, sketches),
        "table.md": writers.markdown(layout),
        "table.csv": writers.comma_separated(tables.cells_in_full(layout)),
        "table.tex": writers.latex(layout),
    }
    if layout.claims:
        texts["claims.csv"] = writers.comma_separated(tables.claims_in_full(layout))
    pictures = {
        f"figures/{sketch.name}.{form}": content
        for sketch in sketches
        for form, content in sketch.saved().items()
    }
    return {name: text.encode() for name, text in texts.items()} | pictures


def page(layout: Layout, folder: Path, sketches: Sequence[Sketch]) -> str:
    """Return the page as it is to lie in ``folder``, with links to figures that lie beside it."""
    return rendered(
        "page.html.jinja",
        layout=layout,
        study=layout.results.study,
        scale=layout.results.scale,
        address_of=partial(_address_of, folder),
        downloads=sketches,
        time=timedelta(seconds=round(seconds_of(layout.trials))),
    )


def rendered(template: str, **context: Any) -> str:
    """Return a page that needs nothing but itself."""
    jinja2 = optional("jinja2")
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_read),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, script = _colours() + _read("page.css"), _read("page.js")
    return str(
        environment.get_template(template).render(
            **context,
            **{"answer": answer, "charts": charts, "provenance": provenance, "tables": tables},
            **{"heat_maps": heat_maps, "text": formatting, "tried": tried},
            style=style,
            script=script,
            style_hash=_hash(style),
            script_hash=_hash(script),
        )
    )


def _read(name: str) -> str:
    return (resources.files("stochbatch.report") / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return the hash that lets a browser run or apply this text and no other."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _colours() -> str:
    """Return the methods' colours as variables of a style sheet."""
    light, dark = (
        " ".join(f"--{name}: {both[place]};" for name, both in COLOURS.items()) for place in (0, 1)
    )
    classes = " ".join(f".m-{name} {{ --m: var(--{name}); }}" for name in COLOURS)
    return (
        f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"
        f"{classes}\n"
    )


def _address_of(folder: Path, outcome: Outcome) -> str:
    """Return the link to a run from a page in ``folder``."""
    way = Path(os.path.relpath(outcome.folder, folder)).as_posix()
    # A name with a colon would be taken for a scheme.
    return quote(way if way.startswith(".") else f"./{way}") + "/"
