"""The tables of a report as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from stochbatch.report.layout import (
    NONE,
    Layout,
    between,
    number,
    ours,
    probability,
    signed,
    verdict,
)
from stochbatch.studies.statistics import CellStatistics, ClaimStatistics, Interval

CLAIM_COLUMNS = (
    "pairs",
    "difference",
    "95 % interval (t)",
    "95 % interval (bootstrap)",
    "p",
    "p corrected",
    "verdict",
)
LATEX_MARKS = {"agrees": "$^{=}$", "higher": r"$^{\uparrow}$", "lower": r"$^{\downarrow}$"}
LATEX_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    NONE: "--",
    "<": "$<$",
    ">": "$>$",
}


def claim_sentence(layout: Layout) -> str:
    """Return the study's claim in words."""
    claim = layout.results.study.claim
    assert claim is not None
    return f"{claim.better} is better than {claim.than} ({claim.axis}), all else being equal."


def claim_row(found: ClaimStatistics) -> list[str]:
    """Return what `CLAIM_COLUMNS` name."""
    return [
        str(found.pairs),
        signed(found.difference),
        between(found.interval),
        between(found.bootstrap),
        probability(found.p),
        probability(found.corrected_p),
        found.verdict,
    ]


def markdown(layout: Layout) -> str:
    """Return the tables in Markdown."""
    study, scale = layout.results.study, layout.results.scale
    counted = ", ".join(f"{count} {what}" for what, count in layout.counts.items())
    cells = [
        [*row, *(_words(layout.cell(row, name)) for name in layout.columns)] for row in layout.rows
    ]
    parts = [
        f"# {study.title}",
        study.caption,
        f"Scale `{scale.name}`: {scale.summary} {layout.comparable}",
        f"Trials: {counted}.",
        "Each cell: mean ± half of the 95 % interval (trials); published mean; verdict.",
        _markdown_table([*layout.axes[:-1], *layout.columns], cells),
    ]
    if layout.statistics.claims:
        claims = [[*found.cell.key, *claim_row(found)] for found in layout.statistics.claims]
        parts += [
            f"Claim: {claim_sentence(layout)}",
            _markdown_table([*layout.axes, *CLAIM_COLUMNS], claims),
        ]
    return "\n\n".join(part for part in parts if part) + "\n"


def comma_separated(layout: Layout) -> str:
    """Return one line a cell with all its numbers in full."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        [
            *layout.axes,
            *("n", "finished", "diverged", "failed", "missing"),
            *("mean", "std", "low", "high", "best", "mean_best"),
            *("published_mean", "published_max", "verdict"),
            *("pairs", "difference", "difference_low", "difference_high"),
            *("bootstrap_low", "bootstrap_high", "p", "corrected_p", "claim_verdict"),
        ]
    )
    for found in layout.statistics.cells:
        writer.writerow(
            [*found.cell.key, *_cell_numbers(layout, found), *_claim_numbers(layout, found)]
        )
    return text.getvalue()


def latex(layout: Layout) -> str:
    """Return the tables in LaTeX, with the rules of the package booktabs."""
    study = layout.results.study
    cells = [
        [*map(_latex_text, row), *(_latex_cell(layout.cell(row, name)) for name in layout.columns)]
        for row in layout.rows
    ]
    caption = (
        f"{study.title}. {study.caption} Mean ± half of the 95 % interval over the trials, in "
        f"brackets the published mean. {layout.results.scale.summary} {layout.comparable}"
    )
    parts = [
        "% needs \\usepackage{booktabs}",
        _latex_table(
            caption,
            [*layout.axes[:-1], *layout.columns],
            cells,
            len(layout.axes) - 1,
            marks=layout.results.scale.comparable,
        ),
    ]
    if layout.statistics.claims:
        rows = [[*found.cell.key, *claim_row(found)] for found in layout.statistics.claims]
        parts.append(
            _latex_table(
                f"{study.title}. Claim: {claim_sentence(layout)}",
                [*layout.axes, *CLAIM_COLUMNS],
                [[_latex_text(text) for text in row] for row in rows],
                len(layout.axes),
            )
        )
    return "\n".join(parts)


def published_mean(found: CellStatistics) -> str:
    """Return the article's mean."""
    return number(found.cell.published.mean) if found.cell.published else NONE


def _words(found: CellStatistics | None) -> str:
    if found is None:
        return NONE
    return f"{ours(found)}; {published_mean(found)}; {verdict(found)}"


def _markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(text.replace("|", "\\|") for text in line) + " |" for line in lines
    )


def _cell_numbers(layout: Layout, found: CellStatistics) -> list[object]:
    outcomes = layout.outcomes_by_key[found.cell.key].outcomes
    counts = [
        sum(outcome.status == status for outcome in outcomes)
        for status in ("finished", "diverged", "failed", "missing")
    ]
    published = found.cell.published
    return [
        found.n,
        *counts,
        *map(_full, (found.mean, found.std, *_ends(found.interval), found.best, found.mean_best)),
        *map(_full, (published.mean, published.max) if published else (None, None)),
        verdict(found),
    ]


def _claim_numbers(layout: Layout, found: CellStatistics) -> list[object]:
    claim = layout.claims_by_key.get(found.cell.key)
    if claim is None:
        return [""] * 9
    ends = (*_ends(claim.interval), *_ends(claim.bootstrap))
    return [
        claim.pairs,
        *map(_full, (claim.difference, *ends, claim.p, claim.corrected_p)),
        claim.verdict,
    ]


def _ends(interval: Interval | None) -> tuple[float | None, float | None]:
    return (None, None) if interval is None else (interval.low, interval.high)


def _full(value: float | None) -> str:
    return "" if value is None else f"{value:.10g}"


def _latex_cell(found: CellStatistics | None) -> str:
    if found is None or found.mean is None:
        return "--"
    half = rf" \pm {number(found.interval.half_width)}" if found.interval else ""
    published = f" ({published_mean(found)})" if found.cell.published else ""
    return f"${number(found.mean)}{half}${LATEX_MARKS.get(found.verdict or '', '')}{published}"


def _latex_table(
    caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], left: int, marks: bool = False
) -> str:
    if marks:
        caption += " Equal sign: it agrees with the article; arrows: ours is higher, or lower."
    columns = "l" * left + "r" * (len(head) - left)
    lines = [
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{_latex_text(caption)}}}",
        rf"  \begin{{tabular}}{{{columns}}}",
        r"    \toprule",
        rf"    {' & '.join(map(_latex_text, head))} \\",
        r"    \midrule",
        *(rf"    {' & '.join(row)} \\" for row in rows),
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
        "",
    ]
    return "\n".join(lines)


def _latex_text(text: str) -> str:
    return "".join(LATEX_SPECIAL.get(letter, letter) for letter in text)
