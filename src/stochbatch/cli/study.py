"""``stochbatch study``: plan and run the article's tables, or studies of one's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stochbatch.cli.errors import ERROR, INTERRUPTED, UsageError
from stochbatch.cli.options import (
    AcceptHash,
    DataRoot,
    Device,
    Quiet,
    Root,
    name_and_value,
    with_options,
)
from stochbatch.cli.printing import examples, say, table
from stochbatch.cores import usable_cores

if TYPE_CHECKING:
    from stochbatch.studies import StudyResults
    from stochbatch.studies.engine import Ended
    from stochbatch.training import Trial

app = typer.Typer(
    invoke_without_command=True,
    help="Plan and run the article's tables, or studies of your own.",
    epilog=examples(
        "stochbatch study plan comparison", "stochbatch study run comparison --scale demo"
    ),
)

Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=1,
        metavar="N",
        help="Trials to run in parallel (one thread each).",
        show_default=f"{usable_cores()}, or one per GPU; ray: as many as there is room for",
    ),
]


@dataclass(frozen=True)
class How:
    """Options of the commands that run trials."""

    engine: Annotated[
        str, typer.Option(help="local: processes of this machine; ray: a cluster, or this machine.")
    ] = "local"
    workers: Workers = None
    address: Annotated[
        str | None,
        typer.Option(
            help="ray: auto or HOST:PORT of a cluster.",
            show_default="RAY_ADDRESS, or else Ray is started on this machine",
        ),
    ] = None
    cpus_per_trial: Annotated[
        float | None, typer.Option(help="ray: CPUs that a trial reserves.", show_default="1")
    ] = None
    gpus_per_trial: Annotated[
        float | None,
        typer.Option(help="ray: part of a GPU that a trial reserves.", show_default="0"),
    ] = None
    data_root: DataRoot = None
    accept_hash: AcceptHash = False
    device: Device = "auto"
    quiet: Quiet = False

    def run_trials(self) -> Callable[..., list[Ended]]:
        """Return the engine's function that runs trials."""
        from stochbatch.training.distributed import launched

        if launched()[1] > 1:
            raise typer.BadParameter(
                "under torchrun each process would run the whole study; use --workers or "
                "--engine ray instead"
            )
        if self.engine == "local":
            from stochbatch.studies import local_engine

            for name in ("address", "cpus_per_trial", "gpus_per_trial"):
                if getattr(self, name) is not None:
                    option = name.replace("_", "-")
                    raise typer.BadParameter(f"--{option} is an option of --engine ray")
            at_once = self.workers or local_engine.default_workers(self.device)
            return partial(local_engine.run_trials, workers=at_once, device=self.device)
        if self.engine != "ray":
            raise typer.BadParameter(f"unknown engine {self.engine!r}; choose local or ray")
        from stochbatch.studies import ray_engine

        return partial(
            ray_engine.run_trials,
            workers=self.workers,
            device=self.device,
            address=self.address,
            cpus=1.0 if self.cpus_per_trial is None else self.cpus_per_trial,
            gpus=self.gpus_per_trial or 0.0,
        )

    def run(
        self, look: Callable[[], StudyResults], run_trials: Callable[..., list[Ended]], root: Path
    ) -> StudyResults:
        """Run the missing trials, or exit with the code that says why some are still missing."""
        from stochbatch.studies.comparing import run_stages
        from stochbatch.studies.engine import StudyStopped

        options = {"root": root, "data_root": self.data_root, "accept_hash": self.accept_hash}
        try:
            found, ended = run_stages(look, self.quiet, run_trials, **options)
        except StudyStopped as stop:
            say("Stopped; everything is saved. Run the same command again to resume.")
            raise typer.Exit(INTERRUPTED + stop.signal_number) from None
        if ended:
            counts = Counter(one.status for one in ended)
            say(", ".join(f"{counts[one]} {one}" for one in ("finished", "diverged", "failed")))
        failed = [one for one in ended if one.status == "failed"]
        for trial, _, text in failed:
            say(f"error: {trial.folder}: {text}", err=True)
        if failed:
            raise typer.Exit(ERROR)
        return found


@app.callback()
def _study(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        raise UsageError(_what_to_type(f"{context.command_path} run"))


def _what_to_type(command: str) -> str:
    from stochbatch.registry import STUDIES

    return (
        f"no study given; for example: {command} comparison --scale demo. "
        f"There are: {', '.join(STUDIES)}, or a .toml file of your own"
    )


@dataclass(frozen=True)
class Which:
    """Options of the commands that look at a study: which one, and how much of it."""

    name: Annotated[
        str,
        typer.Argument(
            metavar="STUDY",
            help="A study: see `stochbatch list studies`; or a .toml file.",
            show_default=False,
        ),
    ] = ""
    scale: Annotated[
        str | None,
        typer.Option(
            help="paper, small or demo.",
            show_default="demo; paper for a .toml file",
        ),
    ] = None
    root: Root = Path("runs")
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AXIS=LABEL,...", help="Keep only these labels of an axis; may be repeated."
        ),
    ] = None
    trials: Annotated[int | None, typer.Option(min=1, metavar="N", help="Trials of each cell.")] = (
        None
    )

    def results(self, command: str = "stochbatch study run") -> StudyResults:
        """Return what the study has left so far; ``command`` is named if no study is given."""
        if not self.name:  # before anything slow is imported
            raise UsageError(_what_to_type(command))
        from stochbatch.studies import SCALES, STUDIES, Study, StudyError, collect

        own = self.name.endswith(".toml")
        study = Study.from_file(self.name) if own else STUDIES[self.name]
        if own and study.name in STUDIES:
            raise StudyError(
                f"{self.name}: a built-in study is called {study.name}; give this one another name "
                "(name = ... on its first line)"
            )
        if study.data:
            from stochbatch.data.own_data import bring

            bring(str(study.base.get("dataset")), study.data)
        scale = SCALES[self.scale or ("paper" if own else "demo")]
        kept = parse_only(self.only or [])
        return collect(study, scale, self.root, only=kept, repetitions=self.trials)


@app.command(
    "plan",
    epilog=examples(
        "stochbatch study plan comparison --scale small --only dataset=cifar10",
        "stochbatch study plan --scale small",
        "stochbatch study plan my-study.toml --scale demo",
        "stochbatch study plan comparison --list --only 'batch size=16'",
        after="Without a study: one row for each.",
    ),
)
@with_options()
def plan(
    which: Which,
    workers: Workers = None,
    list_cells: Annotated[
        bool, typer.Option("--list", help="Print the names of the cells instead.")
    ] = False,
) -> None:
    """Show how many trials are missing, and how long they will take."""
    if not which.name:
        _plan_all(which, workers)
        return
    found = which.results()
    if list_cells:
        rows = [(f"{len(cell.done)} of {len(cell.outcomes)}", cell.cell) for cell in found.cells]
        table(rows, head=("done", "cell"))
        return
    missing = found.missing
    counts = Counter(outcome.status for outcome in found.trials)
    table(
        [
            ("study", f"{found.study.name}: {found.study.title}"),
            ("scale", f"{found.scale.name}: {found.scale.summary}"),
            ("cells", len(found.cells)),
            ("trials", ", ".join(f"{number} {status}" for status, number in counts.items())),
            ("to run", len(missing)),
        ]
    )
    if missing:
        time = time_of(missing, which.root, workers, told=_tell_kind)
        say(f"time, from a measured sample: about {time}")


def _plan_all(which: Which, workers: int | None) -> None:
    """Print one row per study: its trials, and how long those take that are not done."""
    from stochbatch.studies import STUDIES
    from stochbatch.studies.comparing import planned_trials

    rows = []
    for name in STUDIES:
        found = Which(name, which.scale, which.root).results()
        # How a tuned study goes on depends on how it begins: all of it is counted, done or not.
        tuning = found.study.tuning is not None and found.missing
        missing = planned_trials(found.study, found.scale) if tuning else found.missing
        time = time_of(missing, which.root, workers) if missing else "-"
        rows.append((name, len(found.cells), len(missing), time))
    table(rows, head=("study", "cells", "trials to run", "time here, about"), right=(1, 2))


def time_of(
    trials: Sequence[Trial],
    root: Path,
    workers: int | None,
    device: str = "auto",
    told: Callable[[Any], None] = lambda kind: None,
) -> str:
    """Return in words how long trials take here; more workers than cores or GPUs do not help."""
    from stochbatch.studies.estimate import duration, estimate
    from stochbatch.studies.local_engine import default_workers
    from stochbatch.training.device import choose_device

    most = default_workers(device)
    each = estimate(trials, root, choose_device(device), told)
    return duration(max(max(each), sum(each) / min(workers or most, most)))


@app.command(
    "run",
    epilog=examples(
        "stochbatch study run comparison --scale demo --workers 2",
        "stochbatch study run comparison --scale small --only method=SGD,SBS",
        "stochbatch study run comparison --engine ray --gpus-per-trial 0.25",
        after="Run the same command again to resume a stopped study: only the missing trials are "
        "run.",
    ),
)
@with_options()
def run(which: Which, how: How) -> None:
    """Run the missing trials of a study."""
    found, run_trials = which.results(), how.run_trials()
    more = ", and more as tuning goes on" if any(not one.winner for one in found.tuned) else ""
    say(f"{found.study.name}, scale {found.scale.name}: {len(found.missing)} trials to run{more}")
    how.run(which.results, run_trials, which.root)


def parse_only(texts: list[str]) -> dict[str, list[str]]:
    """Return labels, or lists of them with commas, by axis from texts like ``batch size=16,32``.

    Example:
        >>> from stochbatch.cli.study import parse_only
        >>> parse_only(["batch size=16,32", "method=SGD", "method=SBS"])
        {'batch size': ['16,32'], 'method': ['SGD', 'SBS']}
    """
    kept: dict[str, list[str]] = {}
    for text in texts:
        axis, labels = name_and_value(text, "--only is AXIS=LABEL,LABEL")
        kept.setdefault(axis, []).append(labels)
    return kept


def _tell_kind(kind: Any) -> None:
    dataset, network, width, precision, _ = kind
    say(f"measuring {network} (width {width:g}, {precision}) on {dataset} ...", err=True)
