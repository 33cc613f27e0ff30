"""The tables of a report in LaTeX, with the rules of the package booktabs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stochbatch.report import claims
from stochbatch.report.layout import NONE, Layout, number
from stochbatch.report.tables import UPDATE_PROBABILITY, probability_rows, published_mean
from stochbatch.studies.statistics import CellStatistics

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


def latex(layout: Layout) -> str:
    """Return the tables in LaTeX."""
    study = layout.results.study
    parts = ["% needs \\usepackage{booktabs}", _cells(layout)]
    if layout.moving:
        rows = [list(map(escaped, row)) for row in probability_rows(layout)]
        caption = f"{study.title}. {UPDATE_PROBABILITY}"
        parts.append(_table(caption, [*layout.axes, "update probability"], rows, len(layout.axes)))
    if layout.claims:
        sentences = " ".join(f"({place}) {claim}" for place, claim in enumerate(study.claims, 1))
        head = claims.head(layout)
        rows = [list(map(escaped, claims.row(layout, found))) for found in layout.claims]
        caption = f"{study.title}. {sentences} {' '.join(claims.notes(layout))}"
        parts.append(_table(caption, head, rows, len(head) - len(claims.NUMBERS) + 2))
    return "\n".join(parts)


def escaped(text: str) -> str:
    r"""Return a text as LaTeX prints it.

    Example:
        >>> from stochbatch.report.latex import escaped
        >>> print(escaped("50 % of a_b"))
        50 \% of a\_b
    """
    return "".join(SPECIAL.get(letter, letter) for letter in " ".join(text.split()))


def _cells(layout: Layout) -> str:
    study, scale = layout.results.study, layout.results.scale
    rows = [
        [*map(escaped, row), *(_cell(layout.cell(row, name)) for name in layout.columns)]
        for row in layout.rows
    ]
    brackets = ", in brackets the published mean" if study.published else ""
    caption = (
        f"{study.title}. {study.caption} Mean ± half of the 95 % interval over the "
        f"trials{brackets}. {scale.summary} {layout.comparable}"
    )
    if study.published and scale.comparable:
        caption += " Equal sign: it agrees with the article; arrows: ours is higher, or lower."
    return _table(caption, [*layout.axes[:-1], *layout.columns], rows, len(layout.axes) - 1)


def _cell(found: CellStatistics | None) -> str:
    if found is None or found.mean is None:
        return "--"
    half = rf" \pm {number(found.interval.half_width)}" if found.interval else ""
    published = f" ({published_mean(found)})" if found.cell.published else ""
    return f"${number(found.mean)}{half}${MARKS.get(found.verdict or '', '')}{published}"


def _table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], left: int) -> str:
    columns = "l" * left + "r" * (len(head) - left)
    lines = [
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{escaped(caption)}}}",
        rf"  \begin{{tabular}}{{{columns}}}",
        r"    \toprule",
        rf"    {' & '.join(map(escaped, head))} \\",
        r"    \midrule",
        *(rf"    {' & '.join(row)} \\" for row in rows),
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
        "",
    ]
    return "\n".join(lines)
