"""SGD against SBS on a few hundred digits: three seeds each, a table and a picture.

Run it twice: the second time it only reads what the first one left in ``runs/``. Stop it in
the middle: it goes on there.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from rich.console import Console
from rich.table import Table

from stochbatch.report import learning_curve
from stochbatch.training import Result, Trial, read_run, run

METHODS = ("sgd", "sbs")


def trials(method: str, epochs: int, seeds: int, share: float) -> list[Trial]:
    """Return the trials of one method; the same seeds for all make differences paired."""
    return [
        Trial(
            dataset="digits",
            share=share,
            method=method,
            batch_size=16,
            lr=0.1,
            epochs=epochs,
            seed=seed,
        )
        for seed in range(seeds)
    ]


def table(results: dict[str, list[Result]]) -> Table:
    """Return one row per method."""
    rows = Table("method", "seeds", "test accuracy", "standard deviation", "best epoch")
    for method, found in results.items():
        means = [result.accuracy.mean for result in found if result.accuracy is not None]
        best = max(result.accuracy.max for result in found if result.accuracy is not None)
        spread = statistics.stdev(means) if len(means) > 1 else 0.0
        rows.add_row(
            method.upper(),
            str(len(means)),
            f"{statistics.mean(means):.2f} %",
            f"{spread:.2f}",
            f"{best:.2f} %",
        )
    return rows


def main() -> None:
    """Train, compare, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--share", type=float, default=0.25, help="of the 1,352 training images")
    parser.add_argument("--root", type=Path, default=Path("runs"))
    arguments = parser.parse_args()
    console = Console()
    results: dict[str, list[Result]] = {}
    for method in METHODS:
        for trial in trials(method, arguments.epochs, arguments.seeds, arguments.share):
            result = run(trial, arguments.root)
            results.setdefault(method, []).append(result)
            if result.accuracy is not None:
                console.print(
                    f"{method.upper()}  seed {trial.seed}  {result.accuracy.mean:.2f} %  "
                    f"{result.folder}"
                )
    console.print(table(results))
    picture = arguments.root / "digits.png"
    learning_curve([read_run(found[0].folder) for found in results.values()], picture)
    console.print(f"learning curves of seed 0: {picture}")


if __name__ == "__main__":
    main()
