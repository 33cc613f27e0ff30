"""The tables of a report in LaTeX, with the rules of the package booktabs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from stochbatch.report import verdicts
from stochbatch.report.layout import NONE, Layout, number
from stochbatch.report.tables import (
    BEST_EPOCHS,
    PUBLISHED_MAX,
    SPREAD,
    UPDATE_PROBABILITY,
    maxima,
    published_mean,
    spreads,
    update_probabilities,
)
from stochbatch.studies.statistics import CellStatistics

MARKS = {"agrees": "\N{SUPERSCRIPT EQUALS SIGN}", "higher": "↑", "lower": "↓"}
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
        "†": r"$^{\dagger}$",
        "↑": r"$^{\uparrow}$",
        "↓": r"$^{\downarrow}$",
        "\N{SUPERSCRIPT EQUALS SIGN}": "$^{=}$",
    }
)
"""Letters that are not Latin are for LuaLaTeX."""
LEFT_OUT = ("95 % interval (bootstrap)", "p")
"""Of the claims, what a printed page has no room for; the other tables have it."""
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


def latex(layout: Layout) -> str:
    """Return the tables in LaTeX."""
    left = len(layout.axes) - 1
    cells = [
        [*row, *(_cell(layout.cell(row, name)) for name in layout.columns)] for row in layout.rows
    ]
    head, rows = spreads(layout)
    spread = f"{SPREAD} {BEST_EPOCHS}{PUBLISHED_MAX if maxima(layout) else ''}"
    text = "% needs \\usepackage{booktabs,graphicx}\n"
    text += _table(layout, "cells", _caption(layout), head, cells, left)
    text += _table(layout, "spread", spread, head, rows, left)
    if layout.moving:
        head, rows = update_probabilities(layout)
        text += _table(layout, "moves", UPDATE_PROBABILITY, head, rows, left)
    if layout.claims:
        head = verdicts.head(layout)
        numbers = len(head) - len(verdicts.NUMBERS)  # an axis may have such a name
        kept = [place for place, name in enumerate(head) if place < numbers or name not in LEFT_OUT]
        lines = [head, *(verdicts.row(layout, found) for found in layout.claims)]
        head, *rows = [[line[place] for place in kept] for line in lines]
        notes = " ".join(["Claims.", *verdicts.notes(layout)])
        text += _table(layout, "claims", notes, head, rows, numbers + 2)
    return text


def _table(
    layout: Layout,
    part: str,
    caption: str,
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    left: int,
) -> str:
    """Return one table; its first columns, ``left`` in number, are flush left."""
    study = layout.results.study
    name = re.sub("[^a-z0-9]+", "-", study.name.lower()).strip("-")
    lines = [rf"    {' & '.join(map(escaped, row))} \\" for row in (head, *rows)]
    return TABLE % {
        "title": escaped(study.title),
        "caption": escaped(caption),
        "label": f"{name}-{part}",
        "columns": "l" * left + "r" * (len(head) - left),
        "head": lines[0],
        "rows": "\n".join(lines[1:]),
    }


def escaped(text: str) -> str:
    r"""Return a text as LaTeX prints it.

    Example:
        >>> from stochbatch.report.latex import escaped
        >>> print(escaped("50 % of a_b"))
        50 \% of a\_b
    """
    return " ".join(text.split()).translate(ESCAPES)


def _caption(layout: Layout) -> str:
    study, scale = layout.results.study, layout.results.scale
    brackets = ", in brackets the published mean" if study.published else ""
    caption = (
        f"{layout.caption} Mean ± half of the 95 % interval over the "
        f"trials{brackets}. Trials a cell: {layout.trials_a_cell}. {scale.summary} "
        f"{' '.join([layout.trained, layout.comparable, *layout.cautions])}"
    )
    if any(found.diverged for found in layout.statistics.cells):
        caption += " Dagger: some of its trials diverged, and count as they ended."
    if study.published and scale.comparable:
        caption += " Equal sign: it agrees with the article; arrows: ours is higher, or lower."
    return caption


def _cell(found: CellStatistics | None) -> str:
    if found is None or found.mean is None:
        return NONE
    half = f" ± {number(found.interval.half_width)}" if found.interval else ""
    mark = MARKS.get(found.verdict or "", "") + ("†" if found.diverged else "")
    published = f" ({published_mean(found)})" if found.cell.published else ""
    return f"{number(found.mean)}{half}{mark}{published}"
