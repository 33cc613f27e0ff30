"""The learning curve of a run, or of several in one picture."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stochbatch.files import write_atomically
from stochbatch.optional import optional

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from stochbatch.training import RunFolder, Trial

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#C08000", "#2F93CF", "#000000")
"""Okabe and Ito's, which most colour-blind people can tell apart; orange and sky blue darkened, so
that all of them have a contrast of 3 to 1 with white."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
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
            batches_by_kind(run.metrics).items(), cycle(COLOURS), cycle(MARKERS), strict=False
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


def batches_by_kind(metrics: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """Return for each kind of layer its mean number of batches, an epoch after the other.

    Every weight counts alike, so a large layer counts more than a small one.

    Example:
        >>> from stochbatch.report.curve import batches_by_kind
        >>> layers = [
        ...     {"kind": "conv", "size": 3, "batches": 1.0},
        ...     {"kind": "conv", "size": 1, "batches": 5.0},
        ...     {"kind": "bias", "size": 7, "batches": 4.0},
        ... ]
        >>> batches_by_kind([{"epoch": 0, "layers": layers}])
        {'conv': [2.0], 'bias': [4.0]}
    """
    kinds = dict.fromkeys(layer["kind"] for line in metrics for layer in line.get("layers") or ())
    curves: dict[str, list[float]] = {kind: [] for kind in kinds}
    for line in metrics:
        total: dict[str, float] = defaultdict(float)
        size: dict[str, int] = defaultdict(int)
        for layer in line.get("layers") or ():
            if layer["batches"] is not None:
                total[layer["kind"]] += layer["size"] * layer["batches"]
                size[layer["kind"]] += layer["size"]
        for kind, curve in curves.items():
            curve.append(total[kind] / size[kind] if size[kind] else float("nan"))
    return curves


def batches_by_layer(metrics: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """Return for each layer its mean number of batches, an epoch after the other.

    Example:
        >>> from stochbatch.report.curve import batches_by_layer
        >>> layer = {"name": "features.0.weight", "kind": "conv", "size": 3}
        >>> epochs = [{"layers": [{**layer, "batches": number}]} for number in (1.5, None)]
        >>> batches_by_layer(epochs)
        {'features.0.weight (conv)': [1.5, nan]}
    """
    rows = [
        {f"{one['name']} ({one['kind']})": one["batches"] for one in line.get("layers") or ()}
        for line in metrics
    ]
    names = dict.fromkeys(name for row in rows for name in row)
    column = {name: [row.get(name) for row in rows] for name in names}
    return {
        name: [math.nan if value is None else float(value) for value in values]
        for name, values in column.items()
    }


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

    return METHODS[trial.method].title
