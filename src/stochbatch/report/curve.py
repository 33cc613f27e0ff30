"""The learning curve of a run, or of several in one picture."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stochbatch.files import write_atomically
from stochbatch.report import palette
from stochbatch.report.figures import MARKERS, STROKES, new_figure, whole_epochs
from stochbatch.training.trial import differences

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from stochbatch.training import RunFolder, Trial

FORMATS = ("png", "svg", "pdf")
COLOURS = [light for light, _ in palette.COLOURS.values()]
SOFT = palette.COLOURS["other"][0]
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
        raise CurveError(f"{path}: a curve must end in .png, .svg or .pdf")
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
    figure = new_figure()
    layered = [run for run in runs if run.metrics[-1].get("layers")]
    count = 3 if layered else 2
    figure.set_size_inches(8, 1 + 2.6 * count)
    panels: list[Axes] = list(figure.subplots(count, 1, sharex=True))
    figure.suptitle(_title(runs))
    rates = panels[1].twinx()
    rates.set_ylabel("learning rate (dotted)", color=SOFT)
    for number, run in enumerate(runs):
        colour = COLOURS[number % len(COLOURS)]
        for panel, what in zip(panels, ("accuracy", "loss"), strict=False):
            for part, line, alpha in (("test", "-", 1.0), ("train", "--", 0.7)):
                values = [epoch.get(f"{part}_{what}") for epoch in run.metrics]
                style = {"color": colour, "alpha": alpha, "label": _label(runs, run, part)}
                _plot(panel, values, line, ".", **style)
        lr = [epoch["lr"] for epoch in run.metrics]
        colour = SOFT if len(runs) == 1 else colour
        rates.plot(range(1, len(lr) + 1), lr, ":", color=colour, lw=0.9)
    rates.set_ylim(bottom=0)
    for number, run in enumerate(layered):
        for place, (kind, values) in enumerate(batches(run.metrics).items()):
            style = {"color": COLOURS[place % len(COLOURS)], "label": _label(layered, run, kind)}
            marker = MARKERS[place % len(MARKERS)]
            _plot(panels[2], values, STROKES[number % 4], marker, markersize=4, **style)
    names = ("accuracy (%)", "loss", "mean batches of a weight")
    for panel, name in zip(panels, names, strict=False):
        panel.set_ylabel(name)
        panel.grid(alpha=0.25)
        if panel.get_legend_handles_labels()[0]:
            panel.legend(fontsize="small", frameon=False)
    panels[-1].set_xlabel("epoch")
    whole_epochs(panels[-1])
    return figure


def batches(metrics: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """Return by kind of layer the mean number of batches by epoch; None without a number.

    Every weight counts alike, so a large layer counts more than a small one.

    Example:
        >>> from stochbatch.report.curve import batches
        >>> layers = [
        ...     {"kind": "conv", "size": 3, "batches": 1.0},
        ...     {"kind": "conv", "size": 1, "batches": 5.0},
        ...     {"kind": "conv", "size": 9, "batches": None},
        ...     {"kind": "bias", "size": 7, "batches": None},
        ... ]
        >>> batches([{"epoch": 0, "layers": layers}])
        {'conv': [2.0], 'bias': [None]}
    """
    epochs = [line.get("layers") or [] for line in metrics]
    kinds = dict.fromkeys(layer["kind"] for layers in epochs for layer in layers)
    return {
        kind: [_mean([layer for layer in layers if layer["kind"] == kind]) for layers in epochs]
        for kind in kinds
    }


def _mean(layers: Sequence[Mapping[str, Any]]) -> float | None:
    known = [(one["size"], one["batches"]) for one in layers if one["batches"] is not None]
    total = sum(size for size, _ in known)
    return sum(size * value for size, value in known) / total if total else None


def _plot(panel: Axes, values: Sequence[Any], line: Any, marker: str, **style: Any) -> None:
    """Draw a line over the epochs that have a number."""
    there = [(epoch, value) for epoch, value in enumerate(values, 1) if value is not None]
    marker = marker if len(there) <= FEW else ""
    epochs, numbers = zip(*there, strict=True) if there else ((), ())
    panel.plot(epochs, numbers, linestyle=line, marker=marker, **style)


def _title(runs: Sequence[RunFolder]) -> str:
    trials = [run.trial for run in runs]
    names = ", ".join(dict.fromkeys(f"{one.network} on {one.dataset}" for one in trials))
    return names if len(runs) > 1 else f"{_method(trials[0])}: {names}, seed {trials[0].seed}"


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
