"""Draw the article's claims: what it prints, and what was found here so far.

``python docs/figures/published.py`` writes ``published-light.svg`` and ``published-dark.svg``
beside itself, from the runs in ``docs/evidence``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))
from method import TEXT, picture, write

from stochbatch.report import charts
from stochbatch.report.article import CELL, TABLES, Rerun
from stochbatch.report.formatting import between, minus, signed
from stochbatch.report.layout import Layout
from stochbatch.studies import SCALES, STUDIES, collect
from stochbatch.studies.published import NETWORKS

TITLE = "The article's claims: published, and ours so far"
HERE = Path(__file__).parent
RUNS = HERE.parent / "evidence"
LEFT, MIDDLE, RIGHT, POINT, HIGH = 20, 470, 620, 14, 48
"""Where claims, the difference of 0 and words begin; the width of a point; the height of a row."""
ENDS = (-6.0, 9.0)
"""Percentage points that are drawn; an interval that goes on ends in an arrow."""
CLAIMS = {
    "lr-schedules": "the sigmoid schedule is the best of 8",
    "batch-momentum": "momentum helps large batches more",
    "local-global": "{label} is the best of 4",
    "partial-data": "SBS beats SGD on few data",
    "comparison": "SBS beats SGD",
    CELL: "SBS beats SGD, as printed",
}

STYLE = """\
.h{{font-size:17px;font-weight:650;fill:{ink}}}.b{{font-weight:650;fill:{ink}}}
.m{{text-anchor:middle}}.e{{text-anchor:end}}.g{{fill:{ground}}}
.line{{stroke:{grid}}}.zero{{stroke:{soft}}}
.said{{fill:{ground};stroke:{ink};stroke-width:1.5}}.v{{fill:{open};font-weight:600}}
.ours{{fill:{ground};stroke:{open};stroke-width:2.5}}.bar{{stroke:{open};stroke-width:2}}
.tip{{fill:{open}}}.wait{{fill:none;stroke:{soft};stroke-dasharray:2 2}}"""


class Row(NamedTuple):
    """A claim in one place, or over a table."""

    claim: str
    place: str
    published: float | None
    found: charts.Comparison
    so_far: str
    """What there is of a table that is not whole yet."""


def rows() -> list[Row]:
    """Return the main claims of all tables at the scale small, and of the printed cell."""
    found = []
    for study, scale in [*((name, "small") for name in TABLES), (CELL, "paper")]:
        layout = Layout.of(collect(STUDIES[study], SCALES[scale], RUNS))
        number = TABLES.index(study) + 1 if study in TABLES else 4
        for _, comparisons in Rerun(number, layout).main:
            for one in comparisons:
                label = one.row.claim.better.replace("lambda", "λ")
                claim = f"Table {number}: {CLAIMS[study].format(label=label)}"
                place = ", ".join(
                    NETWORKS.get(label, f"{axis} {label}") for axis, label in one.row.place.items()
                )
                if one.row.ahead:
                    place = f"all {one.row.ahead[1]} places"
                elif study == CELL:
                    place = "VGG11, 1/8 of CIFAR-10, batch size 128: at full size"
                found.append(Row(minus(claim), place, one.published, one, so_far(layout, one)))
    return found


def so_far(layout: Layout, one: charts.Comparison) -> str:
    """Return what is known of the places of a table, if not all of them have been run."""
    if one.row.pairs or not one.row.ahead:
        return ""
    there = [place for place in layout.under(one.row) if place.difference is not None]
    sizes = [place.difference for place in there if place.difference is not None]
    if not sizes:
        return ""
    ends = dict.fromkeys(map(signed, (min(sizes), max(sizes))))
    return minus(f"{len(sizes)} of {one.row.ahead[1]}: {' to '.join(ends)}")


def at(gain: float) -> float:
    """Return where a gain is drawn."""
    return MIDDLE + POINT * min(max(gain, ENDS[0]), ENDS[1])


def plot(row: Row) -> list[str]:
    """Return the marks of a row at y = 0: the printed gain above, ours with its interval below."""
    ours, marks = row.found.row, []
    if row.published is not None:
        corners = f"M{at(row.published):.1f} 8l5 5l-5 5l-5 -5z"
        marks.append(f'<path class="said" d="{corners}"/>')
    if ours.interval and ours.pairs > 2:
        low, high = ours.interval.low, ours.interval.high
        marks.append(f'<line class="bar" x1="{at(low):.1f}" x2="{at(high):.1f}" y1="33" y2="33"/>')
        marks += [
            f'<path class="tip" d="M{at(end):.1f} 28l{5 * way} 5l{-5 * way} 5z"/>'
            for end, way in ((low, -1), (high, 1))
            if not ENDS[0] <= end <= ENDS[1]
        ]
    if ours.difference is not None:
        marks += [
            f'<line class="bar" x1="{at(one):.1f}" x2="{at(one):.1f}" y1="40" y2="45"/>'
            for one in ours.by_seed.values()
        ]
        marks.append(f'<circle class="ours" cx="{at(ours.difference):.1f}" cy="33" r="4.5"/>')
    return marks


def words(row: Row) -> list[str]:
    """Return the verdict, or how far it is, and the numbers behind it."""
    ours = row.found.row
    if ours.difference is None:
        return ["not run" if not row.so_far else "in part", row.so_far]
    interval = f" ({between(ours.interval)})" if ours.interval and ours.pairs > 2 else ""
    return [ours.verdict, minus(f"{signed(ours.difference)}{interval}")]


def texts(x: int, y: int, lines: Sequence[str], kind: str) -> list[str]:
    """Return two lines of text below each other, the first of another kind."""
    first, second = lines
    more = [f'<text x="{x}" y="{y + 19}">{second}</text>'] if second else []
    return [f'<text class="{kind}" x="{x}" y="{y}">{first}</text>', *more]


def drawing(colours: dict[str, str]) -> str:
    """Return the whole picture as SVG."""
    found, top = rows(), 78
    bottom = top + HIGH * len(found)
    marks = [
        f'<text class="h" x="{LEFT}" y="28">{TITLE}</text>',
        '<text x="20" y="48">Points of test accuracy. Published: ten trials at full size. Ours: a '
        "quarter of the width, an eighth of the data.</text>",
        f'<text x="{LEFT}" y="70">claim and place</text>',
        f'<text class="e" x="{MIDDLE - 6}" y="70">behind</text>',
        f'<text x="{MIDDLE + 6}" y="70">ahead</text>',
        f'<text x="{RIGHT}" y="70">ours</text>',
        f'<line class="zero" x1="{MIDDLE}" x2="{MIDDLE}" y1="{top}" y2="{bottom}"/>',
    ]
    for number, row in enumerate(found):
        y = top + HIGH * number
        marks.append(f'<line class="line" x1="20" x2="780" y1="{y}" y2="{y}"/>')
        marks += texts(LEFT, y + 20, (row.claim, row.place), "b")
        marks.append(f'<g transform="translate(0 {y})">{"".join(plot(row))}</g>')
        known = row.found.row.difference is not None
        marks += texts(RIGHT, y + 20, words(row), "v" if known else "")
    marks.append(f'<line class="line" x1="20" x2="780" y1="{bottom}" y2="{bottom}"/>')
    for gain in (-6, -3, 0, 3, 6, 9):
        word = minus(f"{gain:+}") if gain else "0"
        marks.append(f'<text class="m" x="{at(gain)}" y="{bottom + 18}">{word}</text>')
    y = bottom + 40
    marks += [
        f'<path class="said" d="M25 {y - 9}l5 5l-5 5l-5 -5z"/>',
        f'<text x="38" y="{y}">published</text>',
        f'<line class="bar" x1="128" x2="156" y1="{y - 4}" y2="{y - 4}"/>',
        f'<circle class="ours" cx="142" cy="{y - 4}" r="4.5"/>',
        f'<text x="166" y="{y}">ours, with 95 % interval from 3 seeds on</text>',
        f'<line class="bar" x1="470" x2="470" y1="{y - 7}" y2="{y - 2}"/>',
        f'<text x="480" y="{y}">one seed</text>',
    ]
    description = "; ".join(
        f"{row.claim}, {row.place}: published {minus(signed(row.published))}; "
        f"ours {' '.join(filter(None, words(row)))}"
        for row in found
    )
    return picture(TITLE, f"{description}.", y + 16, marks, (TEXT + STYLE).format(**colours))


def main(folder: Path) -> None:
    """Write both pictures."""
    write(folder, "published", drawing)


if __name__ == "__main__":
    main(HERE)
