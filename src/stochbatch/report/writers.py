"""The tables of a report as Markdown, LaTeX and CSV; the page's template writes HTML."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace

from stochbatch.report import tables
from stochbatch.report.formatting import NONE
from stochbatch.report.layout import Layout
from stochbatch.report.tables import Table
from stochbatch.report.tried import tried
from stochbatch.studies.conclusions import conclusions

ESCAPES = str.maketrans(
    {
        **{letter: f"\\{letter}" for letter in "{}&%$#_"},
        **{letter: f"{{{letter}}}" for letter in "[]*"},  # after \\ they would be its options
        **{letter: f"${letter}$" for letter in "<>"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        NONE: "--",
    }
)
"""Letters that are not Latin are for LuaLaTeX."""
# A table that is wider than the text is shrunk; the short caption is for a list of tables.
TABLE = r"""
\begin{table}
  \centering
  \caption[%(title)s]{%(title)s. %(caption)s}
  \label{tab:%(label)s}
  \smallskip
  \resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%%
  \begin{tabular}{%(columns)s}
    \toprule
%(head)s
    \midrule
%(rows)s
    \bottomrule
  \end{tabular}}
\end{table}
"""


def markdown(layout: Layout) -> str:
    """Return the tables in Markdown."""
    study, scale = layout.results.study, layout.results.scale
    counted = ", ".join(f"{count} {what}" for what, count in layout.counts.items())
    parts = [
        f"# {study.title}",
        layout.caption,
        *(conclusions(layout.results) if layout.results.tuned else []),
        f"Scale `{scale.name}`: {scale.summary} {layout.trained} {layout.comparable}",
        f"Trials: {counted}.",
        *(f"Note: {caution}" for caution in layout.cautions),
        *_with_caption(tables.cells(layout)),
    ]
    if layout.claims:
        claims = "\n".join(f"{number}. {claim}" for number, claim in enumerate(study.claims, 1))
        parts += ["Claims:", claims, *_with_caption(tables.claims(layout))]
    if layout.results.tuned:
        parts += _with_caption(tried(layout))
    return "\n\n".join(part for part in parts if part) + "\n"


def _with_caption(table: Table) -> tuple[str, str]:
    return table.caption, in_markdown(table)


def in_markdown(table: Table) -> str:
    """Return a table without its caption in Markdown."""
    lines = (table.head, ["---"] * len(table.head), *table.rows)
    texts = ([" ".join(str(one).split()).replace("|", "\\|") for one in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in texts)


def latex(layout: Layout) -> str:
    """Return the tables in LaTeX, with the rules of the package booktabs."""
    study = layout.results.study
    cells = tables.cells(layout)
    about = [layout.results.scale.summary, layout.trained, layout.comparable, *layout.cautions]
    found = {"cells": replace(cells, caption=" ".join([layout.caption, cells.caption, *about]))}
    if layout.claims:
        # A printed page has no room for all columns.
        claims = tables.claims(layout).without("detectable", "p", "family")
        found["claims"] = replace(claims, caption=f"Claims. {claims.caption}")
    name = re.sub("[^a-z0-9]+", "-", study.name.lower()).strip("-")
    text = "% needs \\usepackage{booktabs,graphicx}\n"
    for part, table in found.items():
        lines = [
            rf"    {' & '.join(map(escaped, map(str, r)))} \\" for r in (table.head, *table.rows)
        ]
        left = table.labels + table.texts
        text += TABLE % {
            "title": escaped(study.title),
            "caption": escaped(table.caption),
            "label": f"{name}-{part}",
            "columns": "l" * left + "r" * (len(table.head) - left),
            "head": lines[0],
            "rows": "\n".join(lines[1:]),
        }
    return text


def escaped(text: str) -> str:
    r"""Return a text as LaTeX prints it.

    Example:
        >>> from stochbatch.report.writers import escaped
        >>> print(escaped("50 % of a_b"))
        50 \% of a\_b
    """
    return " ".join(text.split()).translate(ESCAPES)


def comma_separated(table: Table) -> str:
    """Return a table as CSV, with numbers in full."""
    text = io.StringIO()
    rows = ([f"{one:.10g}" if isinstance(one, float) else one for one in row] for row in table.rows)
    csv.writer(text, lineterminator="\n").writerows([table.head, *rows])
    return text.getvalue()
