"""The tables of a report in LaTeX, with the rules of the package booktabs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from stochbatch.report import claims
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

DIVERGED = r"$^{\dagger}$"
MARKS = {"agrees": "$^{=}$", "higher": r"$^{\uparrow}$", "lower": r"$^{\downarrow}$"}
SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    # At the beginning of a line these would be taken for options of the one before.
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "|": r"\textbar{}",
    '"': r"\textquotedblright{}",
    "<": "$<$",
    ">": "$>$",
    "±": r"$\pm$",
    "\N{MULTIPLICATION SIGN}": r"$\times$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "\N{MINUS SIGN}": "$-$",
    "\N{LEFT DOUBLE QUOTATION MARK}": "``",
    "\N{RIGHT DOUBLE QUOTATION MARK}": "''",
    NONE: "--",
    "\N{ZERO WIDTH SPACE}": "{}",
}
"""What LaTeX would not print as it stands; letters that are not Latin are for LuaLaTeX."""
GREEK = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi - "  # no \omicron
    "pi rho varsigma sigma tau upsilon phi chi psi omega"
)
SPECIAL |= {
    chr(ord("\N{GREEK SMALL LETTER ALPHA}") + place): rf"$\{name}$"
    for place, name in enumerate(GREEK.split())
    if name != "-"
}


LEFT_OUT = ("95 % interval (bootstrap)", "p")
"""Of the claims, what a printed page has no room for; the other tables have it."""
FITTED = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}"
"""Around a table: smaller if it is wider than the text, else as it is."""


def latex(layout: Layout) -> str:
    """Return the tables in LaTeX."""
    parts = ["% needs \\usepackage{booktabs,graphicx}", _cells(layout), _spreads(layout)]
    if layout.moving:
        head, rows = update_probabilities(layout)
        body = [list(map(escaped, row)) for row in rows]
        parts.append(_table(layout, "moves", UPDATE_PROBABILITY, head, body, len(layout.axes) - 1))
    if layout.claims:
        parts.append(_claims(layout))
    return "\n".join(parts)


def escaped(text: str) -> str:
    r"""Return a text as LaTeX prints it.

    Example:
        >>> from stochbatch.report.latex import escaped
        >>> print(escaped("50 % of a_b"))
        50 \% of a\_b
    """
    plain = " ".join(text.split())
    # Two of these in a row would be one: a dash, a quotation mark.
    apart = re.sub(r"([-'`,<>])(?=\1)", "\\1\N{ZERO WIDTH SPACE}", plain)
    return "".join(SPECIAL.get(letter, letter) for letter in apart)


def _cells(layout: Layout) -> str:
    study, scale = layout.results.study, layout.results.scale
    rows = [
        [*map(escaped, row), *(_cell(layout.cell(row, name)) for name in layout.columns)]
        for row in layout.rows
    ]
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
    head = [*layout.axes[:-1], *layout.columns]
    return _table(layout, "cells", caption, head, rows, len(layout.axes) - 1)


def _spreads(layout: Layout) -> str:
    head, rows = spreads(layout)
    body = [list(map(escaped, row)) for row in rows]
    caption = f"{SPREAD} {BEST_EPOCHS}{PUBLISHED_MAX if maxima(layout) else ''}"
    return _table(layout, "spread", caption, head, body, len(layout.axes) - 1)


def _claims(layout: Layout) -> str:
    head = claims.head(layout)
    numbers = len(head) - len(claims.NUMBERS)  # where they begin: an axis may have such a name
    kept = [place for place, name in enumerate(head) if place < numbers or name not in LEFT_OUT]
    rows = [claims.row(layout, found) for found in layout.claims]
    body = [[escaped(row[place]) for place in kept] for row in rows]
    left = numbers + 2
    caption = f"Claims. {' '.join(claims.notes(layout))}"
    return _table(layout, "claims", caption, [head[place] for place in kept], body, left)


def _cell(found: CellStatistics | None) -> str:
    if found is None or found.mean is None:
        return "--"
    half = rf" \pm {number(found.interval.half_width)}" if found.interval else ""
    published = f" ({published_mean(found)})" if found.cell.published else ""
    mark = MARKS.get(found.verdict or "", "") + (DIVERGED if found.diverged else "")
    return f"${number(found.mean)}{half}${mark}{published}"


def _table(
    layout: Layout,
    part: str,
    caption: str,
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    left: int,
) -> str:
    """Return one table; its first columns, ``left`` in number, are flush left."""
    columns = "l" * left + "r" * (len(head) - left)
    title = layout.results.study.title
    name = re.sub("[^a-z0-9]+", "-", layout.results.study.name.lower()).strip("-")
    lines = [
        r"\begin{table}",
        r"  \centering",
        # The short one is for a list of tables.
        rf"  \caption[{escaped(title)}]{{{escaped(f'{title}. {caption}')}}}",
        rf"  \label{{tab:{name}-{part}}}",
        r"  \smallskip",
        rf"  {FITTED}{{%",
        rf"  \begin{{tabular}}{{{columns}}}",
        r"    \toprule",
        rf"    {' & '.join(map(escaped, head))} \\",
        r"    \midrule",
        *(rf"    {' & '.join(row)} \\" for row in rows),
        r"    \bottomrule",
        r"  \end{tabular}}",
        r"\end{table}",
        "",
    ]
    return "\n".join(lines)
