"""``stochbatch data``: get, add and list data sets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stochbatch.cli.options import DataRoot
from stochbatch.cli.printing import examples, say, table

if TYPE_CHECKING:
    from stochbatch.data import Dataset

app = typer.Typer(
    help="Get, add and list data sets.",
    epilog=examples("stochbatch data list", "stochbatch data get cifar10"),
)

Name = Annotated[str, typer.Argument(help="Name of a data set: stochbatch list datasets.")]


@app.command("get", epilog=examples("stochbatch data get svhn", "stochbatch data get svhn --quiet"))
def get(
    name: Name,
    data_root: DataRoot = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Download the missing files of a data set, and verify all of them."""
    from stochbatch import data

    paths = data.get(name, data_root, progress=not quiet)
    for path in paths:
        say(path)
    if not paths:
        say(f"{name} needs no download.")


@app.command(
    "add", epilog=examples("stochbatch data add my_photos/", "stochbatch data add my_images.npz")
)
def add(
    path: Annotated[Path, typer.Argument(help="A folder of class folders, or an .npz file.")],
    data_root: DataRoot = None,
) -> None:
    """Copy your own data into the data folder, and print their name for --dataset.

    `--dataset PATH` does this by itself.
    """
    from stochbatch import data

    entry = data.add(path, data_root)
    say(f"{entry.name}: {_contents(entry)}")


def _contents(entry: Dataset) -> str:
    shape = "x".join(map(str, entry.shape))
    return (
        f"{entry.train.count:,} training and {entry.test.count:,} test images of {shape}, "
        f"{len(entry.classes)} classes."
    )


@app.command("list", epilog=examples("stochbatch data list --data-root pictures"))
def list_(data_root: DataRoot = None) -> None:
    """List the data sets, and say which of their files exist."""
    from stochbatch import data
    from stochbatch.data.folder import find
    from stochbatch.data.own_data import names

    root = data.data_root(data_root)
    rows = []
    for name, entry in data.DATASETS.items():
        there = sum(find(entry, file, root) is not None for file in entry.files)
        state = f"{there} of {len(entry.files)} files" if entry.files else "no files needed"
        size = f"{sum(file.size for file in entry.files):,}" if entry.files else "-"
        rows.append((name, state, size, data.DATASETS.summary(name)))
    rows += [(name, "yours", "-", _contents(data.DATASETS[name])) for name in names(root)]
    table(rows, ("data set", "there", "bytes", "what it is"), right=(2,))
    say(f"The data folder is {root}")
