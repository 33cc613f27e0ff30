"""What tuning tried, for a report: every setting with its seeds, and what another budget gives."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from stochbatch.optional import optional
from stochbatch.report.formatting import NONE, number
from stochbatch.report.layout import Layout
from stochbatch.report.plotting import COUNT, Sketch, Style, file_name, in_brackets, panel_of, style
from stochbatch.report.tables import Table
from stochbatch.studies.outcome import Outcome
from stochbatch.studies.tuning import Range, Tuned, Tuning

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TRIED = (
    "Accuracy in percent on validation images, which are training images held out, drawn anew for "
    "each seed. The best by the first seed got the other seeds; the highest mean was chosen. A "
    "setting that diverged counts as the worst."
)


def tried(layout: Layout) -> Table:
    """Return a row per setting that was tried."""
    tuning = layout.results.study.tuning
    assert tuning is not None
    axes = [axis for axis in layout.axes if len(layout.labels(axis)) > 1] or layout.axes[-1:]
    rows = []
    for one in layout.results.tuned:
        if not tuning.spaces[one.label]:
            continue
        edges = one.at_edge(tuning)
        for place, setting in enumerate(one.tried):
            seeds = [_score(outcome) for outcome in setting.outcomes]
            notes = []
            if place == one.chosen:
                edge = f", at the edge of what was tried ({', '.join(edges)})" if edges else ""
                notes.append(f"chosen{edge}")
            notes += ["diverged"] * any(one.status == "diverged" for one in setting.outcomes)
            whole = setting.mean if len(setting.scores) == len(seeds) else None
            rows.append(
                [
                    *(one.cell.coordinates[axis] for axis in axes),
                    str(setting),
                    NONE if whole is None or math.isinf(whole) else number(whole),
                    ", ".join(seeds),
                    "; ".join(notes),
                ]
            )
    head = [*axes, "setting", "mean", "by seed", ""]
    return Table(TRIED, head, rows, labels=len(axes), texts=1)


def _score(outcome: Outcome) -> str:
    result = outcome.result
    if result is None:
        return outcome.status
    return "diverged" if result.status == "diverged" else number(_accuracy(outcome))


def _accuracy(outcome: Outcome) -> float | None:
    result = outcome.result
    return None if result is None or result.accuracy is None else result.accuracy.mean


def sketches(layout: Layout) -> list[Sketch]:
    """Return the figures of tuning that there are data for."""
    tuning = layout.results.study.tuning
    if tuning is None:
        return []
    found = []
    for group in layout.places(tuning.axis):
        there = [
            one
            for one in layout.results.tuned
            if tuning.spaces[one.label]
            and all(one.cell.coordinates[axis] == label for axis, label in group.items())
        ]
        where = in_brackets({k: v for k, v in group.items() if len(layout.labels(k)) > 1})
        names = {name for one in there for name in tuning.spaces[one.label]}
        for name in sorted(names, key=lambda name: (name != "lr", name)):
            drawn = _against(name, tuning, layout, there, where)
            found += [drawn] if drawn else []
        drawn = _by_budget(layout, tuning, there, where)
        found += [drawn] if drawn else []
    return found


def _styles(layout: Layout, tuning: Tuning) -> dict[str, Style]:
    return {label: style(label, place) for place, label in enumerate(layout.labels(tuning.axis))}


def _against(
    name: str, tuning: Tuning, layout: Layout, there: list[Tuned], where: str
) -> Sketch | None:
    """Draw accuracy against one tuned number, a dot per seed."""
    dots: dict[str, list[tuple[float, float]]] = {}
    chosen: dict[str, tuple[float, float]] = {}
    logarithmic = False
    for one in there:
        space = tuning.spaces[one.label].get(name)
        for place, setting in enumerate(one.tried):
            value = setting.settings.get(name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            logarithmic |= isinstance(space, Range) and space.log is not None
            values = [_accuracy(outcome) for outcome in setting.outcomes]
            known = [(float(value), score) for score in values if score is not None]
            dots.setdefault(one.label, []).extend(known)
            if place == one.chosen and known:
                chosen[one.label] = (float(value), sum(y for _, y in known) / len(known))
    dots = {label: points for label, points in dots.items() if points}
    if not dots:
        return None
    styles = _styles(layout, tuning)

    what = "learning rate" if name == "lr" else name
    every = [x for points in dots.values() for x, _ in points]

    def beside(x: float, position: int) -> float:
        """Return where a dot is drawn, so that methods with one value stand side by side."""
        step = position - (len(dots) - 1) / 2
        if logarithmic:
            return x * math.exp(0.012 * step * (1 + math.log(max(every) / min(every))))
        return x + 0.012 * step * (max(every) - min(every))

    def draw(panel: Axes) -> None:
        for position, (label, points) in enumerate(dots.items()):
            colour, _, marker = styles[label]
            x, y = [beside(one, position) for one, _ in points], [y for _, y in points]
            panel.plot(x, y, linestyle="", color=colour, marker=marker, markersize=4, label=label)
            if label in chosen:
                at, mean = chosen[label]
                (ring,) = panel.plot(beside(at, position), mean, color=colour, marker="o")
                ring.set(markersize=13, markerfacecolor="none")
        if logarithmic:
            ticker = optional("matplotlib.ticker")
            panel.set_xscale("log")
            digits = (1, 2, 5) if max(every) < 1000 * min(every) else (1,)
            panel.xaxis.set_major_locator(ticker.LogLocator(subs=digits))
            panel.xaxis.set_major_formatter(ticker.FuncFormatter(lambda x, _: f"{x:g}"))
            panel.xaxis.set_minor_formatter(ticker.NullFormatter())
            panel.set_xlim(min(every) / 1.5, max(every) * 1.5)
        panel.set(xlabel=what, ylabel="validation accuracy (%)")

    best = ", ".join(f"{label} {number(y)} at {x:g}" for label, (x, y) in chosen.items())
    title = f"Validation accuracy against {what}{where}"
    return Sketch(
        file_name(f"tuning-{name}", {"": where}).strip("-"),
        f"{title}. A dot per training; a ring around the mean of what was chosen.",
        f"Scatter chart. {title}. Chosen: {best or 'nothing yet'}.",
        [draw],
    )


def _by_budget(layout: Layout, tuning: Tuning, there: list[Tuned], where: str) -> Sketch | None:
    """Draw what smaller budgets give, if all settings have all seeds."""
    lines = {}
    styles = _styles(layout, tuning)
    for one in there:
        scores = [[_accuracy(outcome) for outcome in t.outcomes] for t in one.tried]
        if tuning.seeds < 2 or any(len(s) < tuning.seeds or None in s for s in scores):
            return None
        whole = [[value for value in row if value is not None] for row in scores]
        curves = [expected_best(whole, seed) for seed in range(tuning.seeds)]
        points = [
            (b, min(column), sum(column) / len(column), max(column))
            for b, column in enumerate(zip(*curves, strict=True), 1)
        ]
        lines[one.label] = (styles[one.label], points)
    if not lines or max(len(points) for _, points in lines.values()) < 2:
        return None
    ends = ", ".join(f"{label} {number(at[-1][2])}" for label, (_, at) in lines.items())
    title = f"Accuracy against the number of settings tried{where}"
    return Sketch(
        file_name("budget", {"": where}).strip("-"),
        f"{title}: expected over all choices of so many settings. The best was chosen by one seed "
        "and is scored by the others, all on validation images. Bands are over the choosing seed.",
        f"Line chart. {title}. With all of them, in percent: {ends}.",
        [panel_of(lines, "band", xlabel=COUNT, ylabel="accuracy, other seeds (%)")],
    )


def expected_best(scores: list[list[float]], seed: int) -> list[float]:
    """Return the expected score of the best of b settings, for b from 1 to all of them.

    Args:
        scores: by setting and seed. The best is the one that is highest with ``seed``; it counts
            with its mean over the other seeds.
        seed: the seed to choose by.

    Example:
        >>> from stochbatch.report.tried import expected_best
        >>> expected_best([[1.0, 10.0], [2.0, 20.0], [3.0, 60.0]], seed=0)
        [30.0, 46.66..., 60.0]
    """
    ordered = sorted(scores, key=lambda row: row[seed])
    others = [
        sum(value for place, value in enumerate(row) if place != seed) / (len(row) - 1)
        for row in ordered
    ]
    count = len(others)
    return [
        sum(y * math.comb(i, size - 1) for i, y in enumerate(others)) / math.comb(count, size)
        for size in range(1, count + 1)
    ]


def costs(layout: Layout) -> Table:
    """Return what each method cost: trainings, steps and time."""
    axes = [axis for axis in layout.axes if len(layout.labels(axis)) > 1] or layout.axes[-1:]
    rows = []
    for one, cell in zip(layout.results.tuned, layout.results.cells, strict=True):
        done = [outcome.result for outcome in (*one.trials, *cell.outcomes) if outcome.result]
        fresh = [outcome.result for outcome in cell.outcomes if outcome.result]
        steps = sum(
            math.ceil(r.data.train_images / o.trial.batch_size) * r.epochs
            for o in (*one.trials, *cell.outcomes)
            if (r := o.result)
        )
        seconds = math.fsum(result.times.get("seconds", 0.0) for result in done)
        each = math.fsum(result.times.get("seconds", 0.0) for result in fresh)
        rows.append(
            [
                *(one.cell.coordinates[axis] for axis in axes),
                f"{len(done)}",
                f"{steps:,}",
                f"{seconds:.0f}",
                number(each / len(fresh), 1) if fresh else NONE,
            ]
        )
    head = [*axes, "trainings", "batches", "seconds in all", "seconds of a training"]
    caption = "Tuning and verdict together; the last column is of the verdict's trainings."
    return Table(caption, head, rows, labels=len(axes))
