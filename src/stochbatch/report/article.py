"""The article's five tables on one page: what it prints, and what came out here so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from stochbatch.report import answer, charts
from stochbatch.report.formatting import between, minus, signed
from stochbatch.report.layout import Layout
from stochbatch.report.page import PAGE, rendered, written
from stochbatch.report.tables import Table
from stochbatch.report.writers import in_markdown
from stochbatch.studies import SCALES, STUDIES, Claim, Scale, collect

TABLES = ("lr-schedules", "batch-momentum", "local-global", "partial-data", "comparison")
"""The studies of Tables 1 to 5."""
CELL = "printed-cell"
"""The study of one cell, always at the article's scale."""


@dataclass(frozen=True)
class Rerun:
    """A table of the article, as far as it has been run here."""

    number: int
    layout: Layout

    @cached_property
    def over(self) -> int:
        """How many trials are over."""
        return sum(1 for one in self.layout.trials if one.result)

    @property
    def title(self) -> str:
        """What was found, or that nothing was run."""
        return minus(answer.headline(self.layout)) if self.over else "not run"

    @cached_property
    def main(self) -> list[tuple[str, list[charts.Comparison]]]:
        """By claim, the comparisons that the table is about."""
        groups: dict[str, list[charts.Comparison]] = {}
        for row in answer.main_rows(self.layout):
            title = f"Table {self.number}: {minus(_claimed(row.claim))}"
            groups.setdefault(title, []).append(charts.comparison(self.layout, row))
        return list(groups.items())

    @property
    def run(self) -> list[tuple[str, list[charts.Comparison]]]:
        """All comparisons of which some pair has been run."""
        groups = charts.forest(self.layout).groups
        groups = [(title, [one for one in rows if one.row.pairs]) for title, rows in groups]
        return [(title, rows) for title, rows in groups if rows]


def _claimed(claim: Claim) -> str:
    ours, theirs = claim.sides
    if claim.best:
        return f"{ours} is the best of {len(claim.than) + 1}"
    return f"{ours} is {'larger' if claim.grows else 'better'} than {theirs}"


def write_article(root: str | Path, scale: Scale, folder: str | Path) -> Path:
    """Write a page of the article's tables, and ``table.md`` with what it begins with.

    Args:
        root: the folder of all runs.
        scale: at which scale; its one printed cell is always at the scale ``paper``.
        folder: where to; made if it does not exist. An earlier report there is replaced.

    Returns:
        The page's path.

    Raises:
        ReportError: the folder cannot be written to, or holds files that are not a report's.
    """

    def files() -> dict[str, bytes]:
        every = [
            Rerun(number, Layout.of(collect(STUDIES[name], scale, root)))
            for number, name in enumerate(TABLES, 1)
        ]
        cell = Layout.of(collect(STUDIES[CELL], SCALES["paper"], root))
        return {PAGE: page(every, cell).encode(), "table.md": summary(every).encode()}

    return written(Path(folder), files)


def headline(every: Sequence[Rerun]) -> str:
    """Return what came of the article's claims, in a sentence."""
    rows = [one.row for table in every for _, group in table.main for one in group]
    if not any(table.over for table in every):
        return "None of the article's five tables has been run"
    begun = [str(table.number) for table in every if table.over]
    which = f"{'Tables' if len(begun) > 1 else 'Table'} {' and '.join(begun)}"
    text = answer.counted(rows)
    return f"{which} rerun, at least in part: {text[:1].lower()}{text[1:]}"


def page(every: Sequence[Rerun], cell: Layout) -> str:
    """Return the page."""
    layouts = [*(table.layout for table in every), cell]
    trials = {one.trial.hash: one for layout in layouts for one in layout.trials}.values()
    return rendered(
        "article.html.jinja",
        headline=headline(every),
        scale=every[0].layout.results.scale,
        every=every,
        counts=Counter(one.status for one in trials),
        forest=charts.drawn([group for table in every for group in table.main]),
        cell=cell,
        trials=trials,
    )


def summary(every: Sequence[Rerun]) -> str:
    """Return a row per main comparison, in Markdown."""
    rows = [
        [
            title,
            one.name,
            *map(minus, (signed(one.published), signed(one.row.difference))),
            minus(between(one.row.interval)),
            f"{one.row.pairs} of {one.row.planned}",
            one.row.verdict,
        ]
        for table in every
        for title, group in table.main
        for one in group
    ]
    head = ["claim", "where", "published", "ours", "95 % interval", "pairs", "verdict"]
    return in_markdown(Table("", head, rows, labels=2)) + "\n"
