"""The learning curve of a run, or of several in one picture."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stochbatch.files import write_atomically
from stochbatch.optional import optional
from stochbatch.report import palette
from stochbatch.report.plotting import MARKERS
from stochbatch.training.trial import differences

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from stochbatch.training import RunFolder, Trial

FORMATS = ("png", "svg", "pdf")
COLOURS = [light for light, _ in palette.COLOURS.values()]
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
    for panel, what in zip(axes, ("accuracy", "loss"), strict=False):
        for run, colour in zip(runs, cycle(COLOURS), strict=False):
            for part, line, alpha in (("test", "-", 1.0), ("train", "--", 0.7)):
                style = {"color": colour, "alpha": alpha, "label": _label(runs, run, part)}
                _plot(panel, _column(run, f"{part}_{what}"), line, ".", **style)
    axes[0].set_ylabel("accuracy (%)")
    axes[1].set_ylabel("loss")
    _draw_rates(axes[1], runs)
    for run, line in zip(layered, cycle(("-", "--", "-.", ":")), strict=False):
        kinds = batches(run.metrics).items()
        for (kind, values), colour, marker in zip(
            kinds, cycle(COLOURS), cycle(MARKERS), strict=False
        ):
            label = _label(layered, run, kind)
            _plot(axes[2], values, line, marker, color=colour, markersize=4, label=label)
        axes[2].set_ylabel("mean batches of a weight")
    axes[-1].set_xlabel("epoch")
    axes[-1].xaxis.set_major_locator(optional("matplotlib.ticker").MaxNLocator(integer=True))
    for panel in axes:
        panel.grid(alpha=0.25)
        if panel.get_legend_handles_labels()[0]:
            panel.legend(fontsize="small", frameon=False)
    return figure


def batches(metrics: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return by kind of layer the mean number of batches by epoch; NaN without a number.

    Every weight counts alike, so a large layer counts more than a small one.

    Example:
        >>> from stochbatch.report.curve import batches
        >>> layers = [
        ...     {"kind": "conv", "size": 3, "batches": 1.0},
        ...     {"kind": "conv", "size": 1, "batches": 5.0},
        ...     {"kind": "bias", "size": 7, "batches": None},
        ... ]
        >>> batches([{"epoch": 0, "layers": layers}])
        {'conv': [2.0], 'bias': [nan]}
    """
    found: dict[str, list[float]] = {}
    for epoch, line in enumerate(metrics):
        sums: dict[str, tuple[float, int]] = {}
        for layer in line.get("layers") or ():
            of = layer["kind"]
            curve = found.setdefault(of, [math.nan] * len(metrics))
            if layer["batches"] is not None:
                total, size = sums.get(of, (0.0, 0))
                total, size = total + layer["size"] * layer["batches"], size + layer["size"]
                sums[of], curve[epoch] = (total, size), total / size
    return found


def _plot(panel: Axes, values: Sequence[float], line: str, marker: str, **style: Any) -> None:
    """Draw a line over the epochs that have a number."""
    there = [(epoch, value) for epoch, value in enumerate(values, 1) if not math.isnan(value)]
    epochs, numbers = zip(*there, strict=True) if there else ((), ())
    panel.plot(epochs, numbers, line, marker=marker if len(numbers) <= FEW else None, **style)


def _draw_rates(panel: Axes, runs: Sequence[RunFolder]) -> None:
    rates = panel.twinx()
    for run, colour in zip(runs, cycle(COLOURS), strict=False):
        colour = "#666666" if len(runs) == 1 else colour
        rates.plot(range(1, len(run.metrics) + 1), _column(run, "lr"), ":", color=colour, lw=0.9)
    rates.set_ylabel("learning rate (dotted)", color="#666666")
    rates.set_ylim(bottom=0)


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


def _label(runs: Sequence[RunFolder], run: RunFolder, what: str) -> str:
    """Return the name of a line, which says of several runs which it is of."""
    if len(runs) == 1:
        return what
    differs = differences([one.trial for one in runs])[runs.index(run)]
    return ", ".join(filter(None, (_method(run.trial), differs, what)))


def _method(trial: Trial) -> str:
    from stochbatch.registry import METHODS

    method = METHODS.get(trial.method)
    return method.title if method else trial.method  # its plugin may be missing here
