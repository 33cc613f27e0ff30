"""Draw how the method works: twelve weights over twenty steps, with the coins that SBS draws.

``python docs/figures/method.py`` writes ``method-light.svg`` and ``method-dark.svg`` beside itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import stochbatch

STEPS, SEED, WEIGHTS = 20, 296, 4
GROUPS = [
    (0.9, "High probability, 0.9", "moves nearly every step,", "on one batch"),
    (0.35, "Middling, 0.35", "moves every third step,", "on the mean of about three"),
    (0.1, "Low, 0.1", "moves now and then,", "on the mean of about ten"),
]
LEFT, TOP, WIDE, HIGH, ACROSS, DOWN, APART = 205, 75, 27, 20, 29, 22, 110

NAMES = ("ground", "ink", "soft", "grid", "move", "bar", "number", "open")
LIGHT = ("#ffffff", "#1b2025", "#57606a", "#e6e9ec", "#2459d9", "#a9c5f1", "#ffffff", "#816000")
DARK = ("#14171a", "#e6e9ec", "#a7afb8", "#272d33", "#6f9dff", "#38598f", "#10151b", "#ffdb78")
COLOURS = {
    "light": dict(zip(NAMES, LIGHT, strict=True)),
    "dark": dict(zip(NAMES, DARK, strict=True)),
}
TEXT = """text{{font:13px system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue','Noto Sans',\
Arial,sans-serif;font-variant-numeric:tabular-nums;fill:{soft}}}
"""
STYLE = """\
.b{{font-weight:650;font-size:14px;fill:{ink}}}.t{{fill:{ink}}}
.n{{font-size:12px;font-weight:600;fill:{number};text-anchor:middle}}.m{{text-anchor:middle}}
.g{{fill:{ground}}}.cell{{fill:none;stroke:{grid}}}.move{{fill:{move}}}.bar{{fill:{bar}}}
.wait{{stroke:{bar};stroke-width:2;stroke-dasharray:2 4}}.call{{fill:none;stroke:{soft}}}"""


def picture(title: str, description: str, height: int, marks: Sequence[str], style: str) -> str:
    """Return marks as a whole picture."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 {height}" width="800" '
            f'height="{height}" role="img" aria-labelledby="t d">',
            f'<title id="t">{title}</title>',
            f'<desc id="d">{description}</desc>',
            f"<style>{style}</style>",
            f'<rect class="g" width="800" height="{height}" rx="4"/>',
            *marks,
            "</svg>\n",
        ]
    )


def write(folder: Path, name: str, drawing: Callable[[dict[str, str]], str]) -> None:
    """Write a picture for a light and for a dark ground."""
    for theme, colours in COLOURS.items():
        (folder / f"{name}-{theme}.svg").write_text(drawing(colours), encoding="utf-8")


def moves(probability: float, group: int) -> list[list[int]]:
    """Return the steps, counted from 1, in which each weight of a group moves."""
    coins = [
        stochbatch.uniform(SEED, step, group, (WEIGHTS,)) < probability for step in range(STEPS)
    ]
    return [[step + 1 for step in range(STEPS) if coins[step][i]] for i in range(WEIGHTS)]


def square(x: float, y: float, number: int) -> str:
    """Return the mark of a move, with the number of batches in its mean gradient."""
    box = f'<rect class="move" x="{x}" y="{y}" width="{WIDE}" height="{HIGH}" rx="2"/>'
    return f'{box}<text class="n" x="{x + WIDE / 2}" y="{y + 14.5}">{number}</text>'


def row(moved: list[int], y: int) -> list[str]:
    """Return the marks of one weight: its moves, and the batches it collects for them."""
    size = f'width="{WIDE}" height="{HIGH}" rx="2"'
    marks = [f'<rect class="cell" x="{LEFT + i * ACROSS}" y="{y}" {size}/>' for i in range(STEPS)]
    before = 0
    for step in moved:
        x, number = LEFT + (step - 1) * ACROSS, step - before
        if number > 1:
            long, start = (number - 1) * ACROSS, LEFT + before * ACROSS + 2
            marks.append(
                f'<rect class="bar" x="{start}" y="{y + 7}" width="{long}" height="6" rx="3"/>'
            )
        marks.append(square(x, y, number))
        before = step
    if before < STEPS:
        start, end = LEFT + before * ACROSS + 4, LEFT + STEPS * ACROSS - 4
        marks.append(f'<line class="wait" x1="{start}" x2="{end}" y1="{y + 10}" y2="{y + 10}"/>')
    return marks


def drawing(colours: dict[str, str]) -> str:
    """Return the whole picture as SVG."""
    marks = [square(LEFT, 18, 3)]
    marks += [
        f'<text x="{LEFT + 36}" y="32">moves, on the mean of 3 batches</text>',
        f'<rect class="bar" x="{LEFT + 268}" y="25" width="40" height="6" rx="3"/>',
        f'<text x="{LEFT + 318}" y="32">batches collected</text>',
        f'<line class="wait" x1="{LEFT + 450}" x2="{LEFT + 490}" y1="28" y2="28"/>',
        f'<text x="{LEFT + 498}" y="32">not used yet</text>',
        '<text x="192" y="64" text-anchor="end">step (one batch each)</text>',
    ]
    for step in (1, 5, 10, 15, 20):
        x = LEFT + (step - 1) * ACROSS + WIDE / 2
        marks.append(f'<text class="m" x="{x}" y="64">{step}</text>')
    longest = (0, 0)
    for group, (probability, title, *lines) in enumerate(GROUPS):
        y = TOP + group * APART
        marks.append(f'<text class="b" x="8" y="{y + 29}">{title}</text>')
        marks += [
            f'<text x="8" y="{y + 47 + 17 * i}">{line}</text>' for i, line in enumerate(lines)
        ]
        for weight, moved in enumerate(moves(probability, group)):
            marks += row(moved, y + weight * DOWN)
            if weight == WEIGHTS - 1:  # the last row has the words below it
                waits = [b - a for a, b in zip([0, *moved], moved, strict=False)]
                number = max(waits, default=0)
                longest = (moved[waits.index(number)], number)
    last, number = longest
    x, y = LEFT + (last - 1) * ACROSS + WIDE / 2, TOP + 2 * APART + WEIGHTS * DOWN
    marks += [
        f'<path class="call" d="M{x} {y + 1}V{y + 15}"/>',
        f'<text class="t" x="{x + 8}" y="{y + 32}" text-anchor="end">moves on the mean gradient of '
        f"batches {last - number + 1} to {last}: {number} times the batch size</text>",
    ]
    description = (
        "Twelve weights over twenty steps. Four with update probability 0.9 move nearly every "
        "step, on one batch; four with 0.35 move about every third step, on the mean gradient of "
        "about three batches; four with 0.1 move now and then, on the mean of about ten."
    )
    title = "Every weight has its own random batch size"
    return picture(title, description, y + 55, marks, (TEXT + STYLE).format(**colours))


def main(folder: Path) -> None:
    """Write both pictures."""
    write(folder, "method", drawing)


if __name__ == "__main__":
    main(Path(__file__).parent)
