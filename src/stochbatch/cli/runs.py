"""``stochbatch show`` and ``predict``: what to do with a run."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stochbatch.cli.errors import ERROR
from stochbatch.cli.options import Root
from stochbatch.cli.printing import examples, say, table
from stochbatch.training.trial import differences

if TYPE_CHECKING:
    from stochbatch.training import RunFolder

SHOW_EPILOG = examples(
    "stochbatch show 3f9a",
    "stochbatch show runs/3f9a1c2b4d5e6f70 --last 30",
    "stochbatch show 3f9a 07c1 --curve both.svg",
)
PREDICT_EPILOG = examples(
    "stochbatch predict 3f9a digit.png",
    "stochbatch predict 3f9a *.png --top 1",
)

CURVE, CURVES = "curve.png", "curves.png"
SHORTEST = 4
"""Letters of a run's name that are shown at least."""

Run = Annotated[str, typer.Argument(help="A run's folder, or how its name begins.")]


def show(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Folders, or how their names begin.")
    ],
    root: Root = Path("runs"),
    last: Annotated[int, typer.Option(min=1, help="How many of the last epochs to show.")] = 10,
    curve: Annotated[
        Path | None,
        typer.Option(
            help="Where to draw the learning curves: .png, .svg or .pdf.",
            show_default=f"{CURVE} in the run's folder; of several runs {CURVES}",
        ),
    ] = None,
) -> None:
    """Show a run: its trial, last epochs and learning curve; or compare several."""
    found = [find_run(run, root) for run in runs]
    if len(found) == 1:
        _show_one(found[0], last)
    else:
        found = _readable([run.folder for run in found], lambda run: run.metrics)
        if not found:  # which has been said of each
            raise typer.Exit(ERROR)
        compare(found)
    if any(run.metrics for run in found):
        _draw(found, curve)


def _show_one(run: RunFolder, last: int) -> None:
    table(_facts(run))
    if not run.metrics:
        say("No epoch is done yet.")
        return
    say()
    table(
        [_epoch(line) for line in run.metrics[-last:]],
        ("epoch", "lr", "train loss", "train %", "test loss", "test %", "seconds"),
        right=range(7),
    )
    layers = run.metrics[-1].get("layers")
    if layers:
        table(
            [_layer(row) for row in layers],
            ("layer", "kind", "size", "probability", "batches"),
            right=range(2, 5),
            title="Layers in the last epoch",
        )


def _draw(runs: list[RunFolder], curve: Path | None) -> None:
    from stochbatch.report import learning_curve
    from stochbatch.report.curve import CurveError

    several = len(runs) > 1
    try:
        picture = learning_curve(
            runs, curve or (Path(CURVES) if several else runs[0].folder / CURVE)
        )
    except CurveError as error:
        if curve is not None:
            raise
        say(f"no learning curve: {error}; --curve draws it elsewhere", err=True)
    else:
        say(f"learning curve{'s' if several else ''}: {picture}")


def list_runs(root: Path) -> None:
    """Print a row per run."""
    found = _readable(_folders(root), state_of)
    if found:
        compare(found)
    else:
        say(f"There are no runs in {root}.")


def _readable(folders: list[Path], look: Callable[[RunFolder], object]) -> list[RunFolder]:
    """Return the runs in these folders that can be looked at, and name the others."""
    from stochbatch.training import RunError, read_run

    found = []
    for folder in folders:
        try:
            run = read_run(folder)
            look(run)
        except RunError as error:
            say(f"left out: {error}", err=True)
        else:
            found.append(run)
    return found


def compare(runs: list[RunFolder]) -> None:
    """Print a row per run: method, data, what differs from the others, state and result."""
    names = {run.folder.name for run in runs}
    length = next(n for n in count(SHORTEST) if len({name[:n] for name in names}) == len(names))
    rows = []
    for run, differs in zip(runs, differences([run.trial for run in runs]), strict=True):
        accuracy = run.result.accuracy if run.result is not None else None
        percent = "-" if accuracy is None else f"{accuracy.mean:.2f}"
        facts = (run.trial.method, run.trial.dataset, state_of(run), percent, differs)
        rows.append((run.folder.name[:length], *facts))
    head = ("run", "method", "data", "state", "test %", "differs in")
    table(sorted(rows, key=lambda row: (row[2], row[1], row[5])), head, right=(4,))


def predict(
    run: Run,
    images: Annotated[
        list[Path], typer.Argument(help="Pictures: PNG, JPEG, WebP, GIF, TIFF, BMP or PPM.")
    ],
    root: Root = Path("runs"),
    top: Annotated[int, typer.Option(min=1, help="How many classes to show.")] = 3,
) -> None:
    """Classify pictures with the network of a run."""
    from stochbatch.training.predict import classify

    rows = []
    for found in classify(find_run(run, root), images, top):
        classes = ", ".join(f"{name} {chance:.1%}" for name, chance in found.classes)
        exchanged = "  (light and dark exchanged)" if found.inverted else ""
        rows.append((found.path, classes + exchanged))
    table(rows)


def find_run(run: str, root: Path) -> RunFolder:
    """Return the run in the folder ``run``, or the one in ``root`` whose name begins so."""
    from stochbatch.training import RunError, read_run

    if run and Path(run).is_dir():
        return read_run(run)
    found = [folder for folder in _folders(root) if run and folder.name.startswith(run)]
    if not found:
        raise RunError(
            f"there is no run {run!r}: neither a folder, nor the beginning of one in {root}; "
            "`stochbatch list runs` lists them"
        )
    if len(found) > 1:
        names = ", ".join(folder.name for folder in found)
        raise RunError(f"{run!r} is the beginning of several runs in {root}: {names}")
    return read_run(found[0])


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []


def _facts(run: RunFolder) -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = [("folder", run.folder)]
    for name, value in run.trial.model_dump().items():
        if isinstance(value, dict):
            value = ", ".join(f"{key}={one}" for key, one in value.items()) or "-"
        rows.append((name.replace("_", " "), value))
    rows.append(("state", state_of(run)))
    if run.result is not None and run.result.accuracy is not None:
        rows.append(("test accuracy", run.result.accuracy.in_words()))
    return rows


def state_of(run: RunFolder) -> str:
    """Return in words how far a run is."""
    if run.result is not None:
        return "diverged" if run.result.status == "diverged" else "done"
    if (run.folder / "error.json").exists():
        return "failed"
    return f"{len(run.metrics)} of {run.trial.epochs} epochs"


def _epoch(line: dict[str, Any]) -> list[str]:
    from stochbatch.training.progress_bars import figure

    keys = ("lr", "train_loss", "train_accuracy", "test_loss", "test_accuracy", "seconds")
    forms = (".4g", ".4f", ".2f", ".4f", ".2f", ".1f")
    figures = [figure(line.get(key), form) for key, form in zip(keys, forms, strict=True)]
    return [str(line["epoch"] + 1), *figures]


def _layer(row: dict[str, Any]) -> list[str]:
    from stochbatch.training.progress_bars import figure

    return [
        row["name"],
        row["kind"],
        f"{row['size']:,}",
        figure(row["probability"], ".4g"),
        figure(row["batches"], ".2f"),
    ]
