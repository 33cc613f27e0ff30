"""The tables of a report as Markdown and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import get_args

from stochbatch.report import verdicts
from stochbatch.report.layout import NONE, Layout, number, ours, share, verdict
from stochbatch.studies.results import Status
from stochbatch.studies.statistics import CellStatistics, ClaimStatistics, Interval

STATUSES = get_args(Status)


def markdown(layout: Layout) -> str:
    """Return the tables in Markdown."""
    study, scale = layout.results.study, layout.results.scale
    counted = ", ".join(f"{count} {what}" for what, count in layout.counts.items())
    cells = [
        [*row, *(_words(layout, layout.cell(row, name)) for name in layout.columns)]
        for row in layout.rows
    ]
    parts = [
        f"# {study.title}",
        layout.caption,
        f"Scale `{scale.name}`: {scale.summary} {layout.trained} {layout.comparable}",
        f"Trials: {counted}.",
        *(f"Note: {caution}" for caution in layout.cautions),
        "Each cell: mean ± half of the 95 % interval (trials)"
        f"{'; published mean; verdict' if study.published else ''}.",
        _markdown_table([*layout.axes[:-1], *layout.columns], cells),
        f"{SPREAD} {BEST_EPOCHS}{PUBLISHED_MAX if maxima(layout) else ''}",
        _markdown_table(*spreads(layout)),
    ]
    if layout.moving:
        parts += [
            UPDATE_PROBABILITY,
            _markdown_table(*update_probabilities(layout)),
        ]
    if layout.claims:
        parts += [
            "Claims:",
            "\n".join(f"{number}. {claim}" for number, claim in enumerate(study.claims, 1)),
            " ".join(verdicts.notes(layout)),
            _markdown_table(
                verdicts.head(layout), [verdicts.row(layout, found) for found in layout.claims]
            ),
        ]
    return "\n\n".join(part for part in parts if part) + "\n"


SPREAD = "Standard deviation over the trials."
BEST_EPOCHS = (
    "Three readings of a maximum, in percent: the best epoch of any trial; the mean over the "
    "trials of each one's best epoch; the best epoch of the mean curve."
)
PUBLISHED_MAX = " In brackets the published maximum."


def best_epochs(found: CellStatistics) -> str:
    """Return the three readings of a maximum."""
    return "; ".join(map(number, (found.best, found.mean_best, found.curve_best)))


def maxima(layout: Layout) -> bool:
    """Return whether the article has a maximum for any of the cells."""
    return any(
        found.cell.published and found.cell.published.max for found in layout.by_key.values()
    )


def spreads(layout: Layout) -> tuple[list[str], list[list[str]]]:
    """Return head and rows of the table of standard deviations and best epochs."""
    rows = [
        [*row, *(_spread(layout, layout.cell(row, name)) for name in layout.columns)]
        for row in layout.rows
    ]
    return [*layout.axes[:-1], *layout.columns], rows


def _spread(layout: Layout, found: CellStatistics | None) -> str:
    if found is None or found.mean is None:
        return NONE
    published = found.cell.published
    bracket = f" ({number(published.max if published else None)})" if maxima(layout) else ""
    return f"{number(found.std)}; {best_epochs(found)}{bracket}"


UPDATE_PROBABILITY = (
    "Mean update probability: with which a weight moves in a step, over weights, epochs and trials."
)


def update_probabilities(layout: Layout) -> tuple[list[str], list[list[str]]]:
    """Return head and rows of the table of the cells whose weights move at random."""
    keys = {found.cell.key for found in layout.moving}
    columns = [name for name in layout.columns if any(key[-1] == name for key in keys)]
    rows = [
        [*row, *(_update_probability(layout.cell(row, name)) for name in columns)]
        for row in layout.rows
        if any(key[:-1] == row for key in keys)
    ]
    # A single column's label says what the study's cells are, not these.
    head = columns if len(layout.columns) > 1 else ["update probability"]
    return [*layout.axes[:-1], *head], rows


def _update_probability(found: CellStatistics | None) -> str:
    return share(found.update_probability if found else None)


def cells_csv(layout: Layout) -> str:
    """Return one line a cell with all its numbers in full."""
    head = [
        *("n", *STATUSES),
        *("mean", "std", "low", "high", "best", "mean_best", "curve_best", "update_probability"),
        *("published_mean", "published_max", "verdict"),
    ]
    rows = [[*found.cell.key, *_cell_numbers(layout, found)] for found in layout.statistics.cells]
    return _comma_separated([*layout.axes, *head], rows)


def claims_csv(layout: Layout) -> str:
    """Return one line for each claim in each place, with all its numbers in full."""
    head = [
        *("claim", "axis", *layout.place_axes),
        *("better", "better_among", "than", "than_among"),
        *("pairs", "difference", "difference_low", "difference_high"),
        *("bootstrap_low", "bootstrap_high", "p", "corrected_p", "verdict"),
    ]
    return _comma_separated(head, (_claim_numbers(layout, found) for found in layout.claims))


def published_mean(found: CellStatistics) -> str:
    """Return the article's mean."""
    return number(found.cell.published.mean) if found.cell.published else NONE


def _words(layout: Layout, found: CellStatistics | None) -> str:
    if found is None:
        return NONE
    if not layout.results.study.published:
        return ours(found)
    return f"{ours(found)}; {published_mean(found)}; {verdict(found)}"


def _markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(" ".join(text.split()).replace("|", "\\|") for text in line) + " |"
        for line in lines
    )


def _comma_separated(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return text.getvalue()


def _cell_numbers(layout: Layout, found: CellStatistics) -> list[object]:
    outcomes = layout.outcomes_by_key[found.cell.key].outcomes
    counts = [sum(outcome.status == status for outcome in outcomes) for status in STATUSES]
    published = found.cell.published
    return [
        found.n,
        *counts,
        *map(_full, (found.mean, found.std, *_ends(found.interval))),
        *map(_full, (found.best, found.mean_best, found.curve_best, found.update_probability)),
        *map(_full, (published.mean, published.max) if published else (None, None)),
        verdict(found),
    ]


def _claim_numbers(layout: Layout, found: ClaimStatistics) -> list[object]:
    axis = found.claim.axis
    numbers = (
        found.difference,
        *_ends(found.interval),
        *_ends(found.bootstrap),
        found.p,
        found.corrected_p,
    )
    return [
        verdicts.title(layout, found.claim),
        axis,
        *(found.place.get(name, "") for name in layout.place_axes),
        found.cell.coordinates[axis],
        found.among,
        "" if found.baseline is None else found.baseline.coordinates[axis],
        found.baseline_among,
        found.pairs,
        *map(_full, numbers),
        found.verdict,
    ]


def _ends(interval: Interval | None) -> tuple[float | None, float | None]:
    return (None, None) if interval is None else (interval.low, interval.high)


def _full(value: float | None) -> str:
    return "" if value is None else f"{value:.10g}"
