"""Draw the article's five tables: what it prints, and what was found here so far.

``python docs/figures/published.py`` writes ``published-light.svg`` and ``published-dark.svg``
beside itself, from the results in ``docs/reports`` and ``docs/evidence``.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).parent))
from method import TEXT, picture, write

from stochbatch.report.formatting import minus
from stochbatch.report.formatting import signed as with_sign
from stochbatch.studies import SCALES, STUDIES, collect
from stochbatch.studies.published import NETWORKS
from stochbatch.studies.statistics import statistics

TITLE = "The article's five tables: published, and ours so far"
HERE = Path(__file__).parent
COLUMNS, MIDDLE, POINT = (20, 272, 618), 492, 14
"""Where text begins, where a difference of 0 lies, and the width of a percentage point."""

STYLE = """\
.h{{font-size:17px;font-weight:650;fill:{ink}}}.b{{font-size:14px;font-weight:650;fill:{ink}}}
.m{{text-anchor:middle}}.g{{fill:{ground}}}.line{{stroke:{grid}}}.zero{{stroke:{soft}}}
.said{{fill:{ground};stroke:{ink};stroke-width:1.5}}
.v{{fill:{open};font-weight:600}}.ours{{fill:{ground};stroke:{open};stroke-width:2.5}}
.bar{{stroke:{open};stroke-width:2}}.wait{{fill:none;stroke:{soft};stroke-dasharray:2 2}}"""


def signed(number: float) -> str:
    """Return a difference with its sign, a true minus."""
    return minus(with_sign(number))


def ranks(study: str, axis: str, chosen: str, among: str = "") -> list[tuple[str, int, int]]:
    """Return by network the place of the article's choice by its printed means, of how many."""
    found = []
    cells = STUDIES[study].cells(SCALES["paper"])
    for network in dict.fromkeys(cell.coordinates["network"] for cell in cells):
        means = {
            cell.coordinates[axis]: cell.published.mean
            for cell in cells
            if cell.coordinates["network"] == network and among in cell.coordinates[axis]
        }
        place = 1 + sum(mean > means[chosen] for mean in means.values())
        found.append((network, place, len(means)))
    return found


def gains(study: str, better: tuple[str, str], than: str, place: Mapping[str, str]) -> list[float]:
    """Return the printed gains of a label over another in all cells of a place."""
    axis, label = better
    cells = STUDIES[study].cells(SCALES["paper"])
    means = {cell.key: cell.published.mean for cell in cells if cell.published}
    found = []
    for cell in cells:
        there = cell.coordinates
        if cell.key in means and there[axis] == label and place.items() <= there.items():
            found.append(means[cell.key] - means[(*(there | {axis: than}).values(),)])
    return found


def diamond(x: float, y: float, size: float, kind: str) -> str:
    """Return the mark of a printed number."""
    corners = f"M{x:.1f} {y - size}l{size} {size}l-{size} {size}l-{size} -{size}z"
    return f'<path class="{kind}" d="{corners}"/>'


def compared(
    printed: Sequence[float],
    ours: float,
    interval: tuple[float, float] | None,
    seeds: Sequence[float] = (),
) -> list[str]:
    """Return a plot: the mean printed gain above; below it ours, with its interval if it has one."""

    def at(gain: float) -> float:
        return MIDDLE + POINT * gain

    low, high = map(at, interval or (ours, ours))
    ticks = [
        f'<line class="bar" x1="{at(s):.1f}" x2="{at(s):.1f}" y1="54" y2="60"/>' for s in seeds
    ]
    return [
        f'<line class="zero" x1="{MIDDLE}" x2="{MIDDLE}" y1="4" y2="64"/>',
        diamond(at(fmean(printed)), 17, 6, "said"),
        f'<line class="bar" x1="{low:.1f}" x2="{high:.1f}" y1="43" y2="43"/>',
        f'<circle class="ours" cx="{at(ours):.1f}" cy="43" r="{5 if interval else 4}"/>',
        *ticks,
    ]


def texts(x: int, y: int, lines: Sequence[str], kind: str = "b") -> list[str]:
    """Return lines of text below each other, the first of another kind."""
    return [
        f'<text{f" class={chr(34)}{kind}{chr(34)}" if not i else ""} x="{x}" y="{y + 19 * i}">'
        f"{line}</text>"
        for i, line in enumerate(lines)
    ]


def results() -> list[tuple[Sequence[str], Sequence[str], Sequence[str], list[str]]]:
    """Return the rows: the claim, what is printed, what was found, and marks at y = 0."""
    printed_cell = collect(STUDIES["printed-cell"], SCALES["paper"], HERE.parent / "evidence")
    (cell,) = [claim for claim in statistics(printed_cell).claims if claim.claim.primary]
    assert cell.difference is not None
    path = HERE.parent / "reports/comparison-demo/claims.csv"
    rows = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    (demo,) = [row for row in rows if row["family"] == "primary"]
    assert demo["verdict"] == "undecided"
    table = [float(demo[f"difference{end}"]) for end in ("", "_low", "_high")]
    places = [
        f"{NETWORKS[name]}: rank {place} of {of}"
        for study in (
            ("lr-schedules", "schedule", "Sigmoid"),
            ("local-global", "scheme", "lambda -4", "lambda"),
        )
        for name, place, of in ranks(*study)
    ]
    large, little = (
        fmean(gains("batch-momentum", ("momentum", "0.9"), "0.0", {"batch size": size}))
        for size in ("128", "16")
    )
    versus = ("method", "SBS"), "SGD"
    there = {"network": "vgg11", "batch size": "128", "share": "0.125"}
    fourth = gains("partial-data", *versus, there)
    fifth = gains("comparison", *versus, {"dataset": "cifar10", "network": "vgg11"})
    seeds = [cell.by_seed[seed] for seed in sorted(cell.by_seed)]
    between = (cell.interval.low, cell.interval.high) if cell.interval and cell.pairs > 2 else None

    return [
        (("1: Sigmoid is the best", "of eight schedules"), places[:2], (), []),
        (
            ("2: Momentum helps large", "batches more: 0.9 over 0, 16 to 128"),
            (signed(large - little), "points"),
            (),
            [],
        ),
        (("3: λ = \N{MINUS SIGN}4 is the best", "of four global strengths"), places[2:], (), []),
        (
            (
                "4: SBS beats SGD on few data",
                "VGG11, 1/8 of CIFAR-10, batch 128",
                "ours: as printed, at full size",
            ),
            (signed(fourth[0]), "points"),
            (cell.verdict, signed(cell.difference), f"seeds {', '.join(map(signed, seeds))}"),
            compared(fourth, cell.difference, between, seeds),
        ),
        (
            (
                "5: SBS beats SGD and others",
                "VGG11, CIFAR-10, batch 16 to 128",
                "ours: 338 digits, a tiny network",
            ),
            (signed(fmean(fifth)), f"{signed(min(fifth))} to {signed(max(fifth))}"),
            (
                "undecided",
                f"{signed(table[0])} ({signed(table[1])} to {signed(table[2])})",
                f"{demo['pairs']} seeds",
            ),
            compared(fifth, table[0], (table[1], table[2])),
        ),
    ]


def drawing(colours: dict[str, str]) -> str:
    """Return the whole picture as SVG."""
    marks = [
        f'<text class="h" x="20" y="30">{TITLE}</text>',
        *texts(
            20,
            52,
            [
                "Published: ten trials at full size. Ours: fewer or smaller, so compare only differences."
            ],
            "",
        ),
        *texts(COLUMNS[0], 84, ["table and claim"], ""),
        *texts(COLUMNS[1], 84, ["published"], ""),
        f'<text class="m" x="{MIDDLE}" y="84">points ahead</text>',
        *texts(COLUMNS[2], 84, ["ours"], ""),
    ]
    y = 94
    rows = results()
    for claim, printed, ours, plot in rows:
        marks.append(f'<line class="line" x1="20" x2="780" y1="{y}" y2="{y}"/>')
        marks += texts(COLUMNS[0], y + 24, claim)
        marks += texts(COLUMNS[1], y + 24, printed, "" if plot == [] else "b")
        if plot:
            marks.append(f'<g transform="translate(0 {y + 2})">{"".join(plot)}</g>')
            marks.append(f'<circle class="ours" cx="{COLUMNS[2] + 5}" cy="{y + 19.5}" r="4"/>')
            marks += texts(COLUMNS[2] + 18, y + 24, ours[:1], "v")
            marks += texts(COLUMNS[2], y + 43, ours[1:], "")
        else:
            marks.append(f'<circle class="wait" cx="{COLUMNS[2] + 5}" cy="{y + 19.5}" r="4.5"/>')
            marks += texts(COLUMNS[2] + 18, y + 24, ["not run"], "")
        y += 74 if plot else 54
    marks.append(f'<line class="line" x1="20" x2="780" y1="{y}" y2="{y}"/>')
    for gain in (-6, -3, 0, 3, 6):
        word = signed(gain).removesuffix(".00") if gain else "0"
        marks.append(f'<text class="m" x="{MIDDLE + POINT * gain}" y="{y + 18}">{word}</text>')
    marks += [
        diamond(28, y + 40, 6, "said"),
        f'<text x="42" y="{y + 44}">published</text>',
        f'<line class="bar" x1="132" x2="160" y1="{y + 40}" y2="{y + 40}"/>',
        f'<circle class="ours" cx="146" cy="{y + 40}" r="5"/>',
        f'<text x="170" y="{y + 44}">ours, with 95 % interval from 3 seeds on</text>',
        f'<line class="bar" x1="450" x2="450" y1="{y + 37}" y2="{y + 43}"/>',
        f'<text x="460" y="{y + 44}">one seed</text>',
    ]
    description = "; ".join(
        f"{claim[0]}: published {', '.join(printed)}; ours {' '.join(ours) or 'not run'}"
        for claim, printed, ours, _ in rows
    )
    style = (TEXT + STYLE).format(**colours)
    return picture(TITLE, f"{description}.", y + 60, marks, style)


def main(folder: Path) -> None:
    """Write both pictures."""
    write(folder, "published", drawing)


if __name__ == "__main__":
    main(HERE)
