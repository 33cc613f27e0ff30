"""The tables of a report as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import re
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
from stochbatch.studies.statistics import CellStatistics, Interval

CLAIM_COLUMNS = (
    "pairs",
    "difference",
    "95 % interval (t)",
    "95 % interval (bootstrap)",
    "p",
    "p corrected",
    "verdict",
)
MARKS = {"agrees": "=", "higher": r"\uparrow", "lower": r"\downarrow"}
"""How the verdicts of cells are set in LaTeX."""


def markdown(layout: Layout) -> str:
    """Return the tables in Markdown."""
    study, scale = layout.results.study, layout.results.scale
    parts = [
        f"# {_markdown_text(study.title)}",
        _markdown_text(study.caption),
        f"Scale `{scale.name}`: {_markdown_text(scale.summary)} {layout.comparable}",
        "Trials: " + ", ".join(f"{count} {what}" for what, count in layout.counts.items()) + ".",
        "Each cell: mean ± half of the 95 % interval (trials); published mean; verdict.",
        _markdown_table(
            [*layout.axes[:-1], *layout.columns],
            ([*row, *(_words(layout.cell(row, name)) for name in layout.columns)])
            for row in layout.rows
        )
        if False
        else _markdown_table([*layout.axes[:-1], *layout.columns], _rows(layout)),
    ]
    if layout.statistics.claims:
        parts += [
            f"Claim: {_markdown_text(claim_sentence(layout))}",
            _markdown_table([*layout.axes, *CLAIM_COLUMNS], claim_rows(layout)),
        ]
    return "\n\n".join(part for part in parts if part) + "\n"
