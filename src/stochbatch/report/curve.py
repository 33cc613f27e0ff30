"""The learning curve of a run, or of several in one picture."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from stochbatch.files import write_atomically
from stochbatch.optional import optional
from stochbatch.report.batch_sizes import batches, kind_of
from stochbatch.report.plotting import COLOURS, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from stochbatch.training import RunFolder, Trial

FORMATS = ("png", "svg", "pdf")
FEW = 25
"""Up to so many epochs each has a marker, so that a single one is seen."""


class CurveError(ValueError):
    """A curve that cannot be drawn as it was asked."""


def learning_curve(runs: Iterable[RunFolder], path: str | os.PathLike[str]) -> Path:
    """Draw accuracy and loss over the epochs, and for SBS the batches of the layers.

    Test curves are drawn in full, training curves dashed, the learning rate as a thin dotted
    line with an axis of its own. The last panel has, for each kind of layer, the mean number
    of batches in a weight's average gradient.

    Args:
        runs: the runs, from `read_run`; those without a finished epoch are left out.
        path: the picture, ``.png``, ``.svg`` or ``.pdf``; replaced if it is there.

    Returns:
        The picture's path.

    Raises:
        CurveError: no run has a finished epoch, the path has another ending, or it cannot be
            written to.
    """
    path = Path(path)
    form = path.suffix.lower().removeprefix(".")
    if form not in FORMATS:
        raise CurveError(f"{path}: a curve is one of {', '.join('.' + name for name in FORMATS)}")
    drawn = [run for run in runs if run.metrics]
    if not drawn:
        raise CurveError("there is no curve to draw before the first epoch is done")
    figure = draw(drawn)
    try:
        write_atomically(path, lambda file: figure.savefig(file, format=form, dpi=120))
    except OSError as error:
        raise CurveError(f"cannot write {path}: {error.strerror or error}") from error
    return path


def draw(runs: Sequence[RunFolder]) -> Figure:
    """Return the figure of runs that each have at least one epoch."""
    # The Figure itself, without pyplot: no window, no display, nothing global.
    optional("matplotlib.backends.backend_agg")
    figure: Figure = optional("matplotlib.figure").Figure(layout="constrained")
    layered = [run for run in runs if run.metrics[-1].get("layers")]
    panels = 3 if layered else 2
    figure.set_size_inches(8, 1 + 2.6 * panels)
    axes: list[Axes] = list(figure.subplots(panels, 1, sharex=True))
    figure.suptitle(_title(runs))
    _draw_pair(axes[0], runs, "accuracy", "accuracy (%)")
    _draw_pair(axes[1], runs, "loss", "loss")
    _draw_rates(axes[1], runs)
    if layered:
        _draw_batches(axes[2], layered)
    axes[-1].set_xlabel("epoch")
    axes[-1].xaxis.set_major_locator(optional("matplotlib.ticker").MaxNLocator(integer=True))
    for panel in axes:
        panel.grid(alpha=0.25)
        if panel.get_legend_handles_labels()[0]:
            panel.legend(fontsize="small", frameon=False)
    return figure


def _draw_pair(panel: Axes, runs: Sequence[RunFolder], what: str, label: str) -> None:
    for run, colour in zip(runs, cycle(COLOURS), strict=False):
        for part, line in (("test", "-"), ("train", "--")):
            name = part if len(runs) == 1 else f"{_label(run)}, {part}"
            column = zip(_epochs(run), _column(run, f"{part}_{what}"), strict=True)
            there = [(epoch, value) for epoch, value in column if not math.isnan(value)]
            epochs, values = zip(*there, strict=True) if there else ((), ())
            panel.plot(
                epochs,
                values,
                line,
                color=colour,
                alpha=1 if part == "test" else 0.7,
                marker="." if len(values) <= FEW else None,
                label=name,
            )
    panel.set_ylabel(label)


def _draw_rates(panel: Axes, runs: Sequence[RunFolder]) -> None:
    rates = panel.twinx()
    for run, colour in zip(runs, cycle(COLOURS), strict=False):
        rates.plot(
            _epochs(run),
            _column(run, "lr"),
            ":",
            color="#666666" if len(runs) == 1 else colour,
            linewidth=0.9,
        )
    rates.set_ylabel("learning rate (dotted)", color="#666666")
    rates.set_ylim(bottom=0)


def _draw_batches(panel: Axes, runs: Sequence[RunFolder]) -> None:
    for run, line in zip(runs, cycle(("-", "--", "-.", ":")), strict=False):
        for (kind, values), colour, marker in zip(
            batches(run.metrics, kind_of).items(), cycle(COLOURS), cycle(MARKERS), strict=False
        ):
            panel.plot(
                _epochs(run),
                values,
                line,
                color=colour,
                marker=marker if len(values) <= FEW else None,
                markersize=4,
                label=kind if len(runs) == 1 else f"{_label(run)}, {kind}",
            )
    panel.set_ylabel("mean batches of a weight")


def _epochs(run: RunFolder) -> list[int]:
    return [line["epoch"] + 1 for line in run.metrics]


def _column(run: RunFolder, name: str) -> list[float]:
    values = (line.get(name) for line in run.metrics)
    return [float("nan") if value is None else float(value) for value in values]


def _title(runs: Sequence[RunFolder]) -> str:
    if len(runs) > 1:
        return ", ".join(
            dict.fromkeys(f"{run.trial.network} on {run.trial.dataset}" for run in runs)
        )
    trial = runs[0].trial
    return f"{_method(trial)}: {trial.network} on {trial.dataset}, seed {trial.seed}"


def _label(run: RunFolder) -> str:
    return f"{_method(run.trial)}, seed {run.trial.seed} ({run.trial.folder[:6]})"


def _method(trial: Trial) -> str:
    from stochbatch.registry import METHODS

    # The plugin that had the method may be missing here.
    return METHODS[trial.method].title if trial.method in METHODS else trial.method
