"""``stochbatch show`` and ``predict``: what to do with a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stochbatch.cli.options import Root
from stochbatch.cli.printing import examples, table

if TYPE_CHECKING:
    from stochbatch.training import RunFolder

SHOW_EPILOG = examples(
    "stochbatch show 3f9a",
    "stochbatch show runs/3f9a1c2b4d5e6f70 --last 30",
    "stochbatch show 3f9a --curve curve.svg",
)
PREDICT_EPILOG = examples(
    "stochbatch predict 3f9a digit.png",
    "stochbatch predict 3f9a *.png --top 1",
)

CURVE = "curve.png"

Run = Annotated[str, typer.Argument(help="A run's folder, or how its name begins.")]


def show(
    run: Run,
    root: Root = Path("runs"),
    last: Annotated[int, typer.Option(min=1, help="How many of the last epochs to show.")] = 10,
    curve: Annotated[
        Path | None,
        typer.Option(
            help="Where to draw the learning curve: .png, .svg or .pdf.",
            show_default=f"{CURVE} in the run's folder",
        ),
    ] = None,
) -> None:
    """Show a run: its trial, last epochs and learning curve."""
    from stochbatch.report import learning_curve
    from stochbatch.report.curve import CurveError

    read = find_run(run, root)
    table(_facts(read))
    if not read.metrics:
        typer.echo("No epoch is done yet.")
        return
    typer.echo("")
    table(
        [_epoch(line) for line in read.metrics[-last:]],
        ("epoch", "lr", "train loss", "train %", "test loss", "test %", "seconds"),
        right=range(7),
    )
    layers = read.metrics[-1].get("layers")
    if layers:
        table(
            [_layer(row) for row in layers],
            ("layer", "kind", "size", "probability", "batches"),
            right=range(2, 5),
            title="Layers in the last epoch",
        )
    try:
        picture = learning_curve([read], curve or read.folder / CURVE)
    except CurveError as error:
        if curve is not None:
            raise
        typer.echo(f"no learning curve: {error}; --curve draws it elsewhere", err=True)
    else:
        typer.echo(f"learning curve: {picture}")


def predict(
    run: Run,
    images: Annotated[list[Path], typer.Argument(help="Pictures, in any format Pillow reads.")],
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
    found = sorted(
        folder
        for folder in (root.iterdir() if root.is_dir() else ())
        if run and folder.is_dir() and folder.name.startswith(run)
    )
    if not found:
        raise RunError(
            f"there is no run {run!r}: neither a folder, nor the beginning of one in {root}"
        )
    if len(found) > 1:
        names = ", ".join(folder.name for folder in found)
        raise RunError(f"{run!r} is the beginning of several runs in {root}: {names}")
    return read_run(found[0])


def _facts(read: RunFolder) -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = [("folder", read.folder)]
    for name, value in read.trial.model_dump().items():
        if isinstance(value, dict):
            value = ", ".join(f"{key}={one}" for key, one in value.items()) or "-"
        rows.append((name.replace("_", " "), value))
    rows.append(("state", _state(read)))
    if read.result is not None and read.result.accuracy is not None:
        rows.append(("test accuracy", read.result.accuracy.in_words()))
    return rows


def _state(read: RunFolder) -> str:
    if read.result is not None:
        return read.result.status
    return f"{len(read.metrics)} of {read.trial.epochs} epochs are done"


def _epoch(line: dict[str, Any]) -> list[str]:
    from stochbatch.training.progress_bars import figure

    forms = {
        "lr": ".4g",
        "train_loss": ".4f",
        "train_accuracy": ".2f",
        "test_loss": ".4f",
        "test_accuracy": ".2f",
        "seconds": ".1f",
    }
    return [str(line["epoch"] + 1), *(figure(line.get(key), form) for key, form in forms.items())]


def _layer(row: dict[str, Any]) -> list[str]:
    from stochbatch.training.progress_bars import figure

    return [
        row["name"],
        row["kind"],
        f"{row['size']:,}",
        figure(row["probability"], ".4g"),
        figure(row["batches"], ".2f"),
    ]
