"""The claims of a study in words: their sentences, and the rows of their tables."""

from __future__ import annotations

from collections.abc import Sequence

from stochbatch.report.layout import NONE, Layout, between, probability, signed
from stochbatch.studies.cell import Cell
from stochbatch.studies.claim import Claim
from stochbatch.studies.statistics import ClaimStatistics

NUMBERS = (
    "better",
    "than",
    "pairs",
    "difference",
    "95 % interval (t)",
    "95 % interval (bootstrap)",
    "p",
    "p corrected",
    "verdict",
)
METHOD = (
    "Differences in percentage points, paired by seed. p: paired t test, two-sided; corrected by "
    "Holm's method over all rows. Confirmed or contradicted: corrected p below 0.05."
)
CHOICE = (
    "Of a side with several labels the one with the highest mean accuracy over its trials so far "
    "stands for it. It was chosen on the same test images as are compared here, by the same rule "
    "for both sides; the p value does not know of the choice."
)
UNEQUAL = "Where one side has more labels to choose from than the other, that favours it."


def notes(layout: Layout) -> list[str]:
    """Return what a reader of the claims has to know, in sentences."""
    claims = layout.results.study.claims
    found = [METHOD]
    if any(claim.chooses for claim in claims):
        found.append(CHOICE)
    if any(row.among != row.baseline_among for row in layout.claims if row.claim.chooses):
        found.append(UNEQUAL)
    return found


def title(layout: Layout, claim: Claim) -> str:
    """Return a few words for a claim: its name, or its number."""
    return claim.name or f"claim {layout.results.study.claims.index(claim) + 1}"


def head(layout: Layout) -> list[str]:
    """Return the names of the columns; what is the same in all rows has none."""
    first = ["claim"] if len(layout.results.study.claims) > 1 else []
    return [*first, *_telling_axes(layout), *NUMBERS]


def row(layout: Layout, found: ClaimStatistics) -> list[str]:
    """Return what `head` names."""
    several = len(layout.results.study.claims) > 1
    return [
        *([title(layout, found.claim)] if several else []),
        *(found.place.get(axis, NONE) for axis in _telling_axes(layout)),
        side(found.claim.better, found.cell, found.claim.axis, found.among, found.present),
        side(
            found.claim.than,
            found.baseline,
            found.claim.axis,
            found.baseline_among,
            found.baseline_present,
        ),
        str(found.pairs),
        signed(found.difference),
        between(found.interval),
        between(found.bootstrap),
        probability(found.p),
        probability(found.corrected_p),
        found.verdict,
    ]


def _telling_axes(layout: Layout) -> list[str]:
    """Return the axes that tell one row from another."""
    return [axis for axis in layout.place_axes if len(layout.labels(axis)) > 1]


def words(found: ClaimStatistics) -> list[str]:
    """Return what a row is found by: labels and verdict, no numbers."""
    sides = [found.cell, *([found.baseline] if found.baseline else [])]
    return [found.claim.name or "", *map(str, sides), found.verdict]


def side(labels: Sequence[str], cell: Cell | None, axis: str, among: int, present: int) -> str:
    """Return which label stands for a side of a claim, and of how many it is the best.

    Example:
        >>> from stochbatch.report.verdicts import side
        >>> from stochbatch.studies import Cell
        >>> cell = Cell({"rate": "0.1"}, {})
        >>> side(["0.1"], cell, "rate", 1, 1), side(["0.2", "0.1"], cell, "rate", 2, 2)
        ('0.1', '0.1 (best of 2)')
        >>> side(["0.4", "0.3", "0.2", "0.1"], cell, "rate", 2, 3)
        '0.1 (best of 2, 1 with fewer trials, 1 left out)'
    """
    if cell is None:
        return f"{' or '.join(labels)} (left out)"
    if len(labels) == 1:
        return cell.coordinates[axis]
    if among == 0:
        return f"one of {len(labels)}, none run yet"
    fewer = f", {present - among} with fewer trials" if among < present else ""
    out = f", {len(labels) - present} left out" if present < len(labels) else ""
    return f"{cell.coordinates[axis]} (best of {among}{fewer}{out})"
