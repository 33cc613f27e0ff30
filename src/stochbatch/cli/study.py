"""``stochbatch study``: plan and run the article's tables, or studies of one's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stochbatch.cli.errors import DONE, ERROR, INTERRUPTED, UsageError
from stochbatch.cli.options import AcceptHash, DataRoot, Device, Quiet, Root
from stochbatch.cli.printing import examples, say, table
from stochbatch.cores import usable_cores

if TYPE_CHECKING:
    from stochbatch.studies import StudyResults
    from stochbatch.studies.engine import Count

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
Engine = Annotated[
    str, typer.Option(help="local: processes of this machine; ray: a cluster, or this machine.")
]
Address = Annotated[
    str | None,
    typer.Option(
        help="ray: auto or HOST:PORT of a cluster.",
        show_default="RAY_ADDRESS, or else Ray is started on this machine",
    ),
]
CpusPerTrial = Annotated[
    float | None, typer.Option(help="ray: CPUs that a trial reserves.", show_default="1")
]
GpusPerTrial = Annotated[
    float | None, typer.Option(help="ray: part of a GPU that a trial reserves.", show_default="0")
]


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


def _require(context: typer.Context, name: str) -> str:
    if not name:
        raise UsageError(_what_to_type(context.command_path))
    return name


Name = Annotated[
    str,
    typer.Argument(
        metavar="STUDY",
        help="A study: see `stochbatch list studies`; or a .toml file.",
        callback=_require,
        show_default=False,
    ),
]
ScaleName = Annotated[
    str | None,
    typer.Option(
        "--scale",
        help="paper, small or demo.",
        show_default="demo; of a .toml file paper: as it says",
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only", metavar="AXIS=LABEL,...", help="Keep only these labels; may be repeated."
    ),
]
Cells = Annotated[
    list[str] | None,
    typer.Option(
        "--cells",
        metavar="PATTERN",
        help="Keep only cells with this in their names, * is anything; may be repeated.",
    ),
]
Trials = Annotated[
    int | None, typer.Option("--trials", min=1, metavar="N", help="Trials of each cell.")
]


@app.command(
    "plan",
    epilog=examples(
        "stochbatch study plan comparison --scale small --only dataset=cifar10",
        "stochbatch study plan --scale small",
        "stochbatch study plan my-study.toml --scale demo",
        "stochbatch study plan comparison --list --cells 'batch size 16'",
    ),
)
def plan(
    name: Annotated[
        str,
        typer.Argument(
            metavar="STUDY",
            help="A study, or a .toml file; without it: all studies, a row each.",
            show_default=False,
        ),
    ] = "",
    scale: ScaleName = None,
    root: Root = Path("runs"),
    only: Only = None,
    cells: Cells = None,
    trials: Trials = None,
    workers: Workers = None,
    list_cells: Annotated[
        bool, typer.Option("--list", help="Print the names of the cells instead.")
    ] = False,
) -> None:
    """Show how many trials are missing, and how long they will take."""
    from stochbatch.studies.estimate import duration, estimate, until_all_are_done
    from stochbatch.studies.local_engine import default_workers
    from stochbatch.training.device import choose_device

    if not name:
        _plan_all(scale or "demo", root, workers)
        raise typer.Exit(DONE)
    found = results(name, scale, root, only, cells, trials)
    if list_cells:
        rows = [(f"{len(cell.done)} of {len(cell.outcomes)}", cell.cell) for cell in found.cells]
        table(rows, head=("done", "cell"))
        raise typer.Exit(DONE)
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
        most = default_workers()  # more than these do not make it faster
        at_once = min(workers or most, most, len(missing))
        each = estimate(missing, root, choose_device("auto"), _tell_kind)
        seconds = until_all_are_done(each, at_once)
        say(f"time, from a measured sample: about {duration(seconds)}")


def _plan_all(scale: str, root: Path, workers: int | None) -> None:
    """Print one row per study: its trials, and how long those take that are not done."""
    from stochbatch.studies import STUDIES
    from stochbatch.studies.comparing import planned_trials
    from stochbatch.studies.estimate import duration, estimate, until_all_are_done
    from stochbatch.studies.local_engine import default_workers
    from stochbatch.training.device import choose_device

    rows, device = [], choose_device("auto")
    for name in STUDIES:
        found = results(name, scale, root, None, None, None)
        # How a tuned study goes on depends on how it begins: all of it is counted, done or not.
        tuning = found.study.tuning is not None and found.missing
        missing = planned_trials(found.study, found.scale) if tuning else found.missing
        at_once = min(workers or default_workers(), max(1, len(missing)))
        seconds = until_all_are_done(estimate(missing, root, device), at_once) if missing else 0
        rows.append((name, len(found.cells), len(missing), duration(seconds) if missing else "-"))
    table(rows, head=("study", "cells", "trials to run", "time here, about"), right=(1, 2))


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
def run(
    name: Name = "",
    scale: ScaleName = None,
    root: Root = Path("runs"),
    only: Only = None,
    cells: Cells = None,
    trials: Trials = None,
    engine: Engine = "local",
    workers: Workers = None,
    address: Address = None,
    cpus_per_trial: CpusPerTrial = None,
    gpus_per_trial: GpusPerTrial = None,
    data_root: DataRoot = None,
    accept_hash: AcceptHash = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Run the missing trials of a study."""
    run_trials = engine_of(engine, workers, device, address, cpus_per_trial, gpus_per_trial)
    look = partial(results, name, scale, root, only, cells, trials)
    found = look()
    more = ", and more as tuning goes on" if any(not one.winner for one in found.tuned) else ""
    say(f"{found.study.name}, scale {found.scale.name}: {len(found.missing)} trials to run{more}")
    run_all(look, run_trials, quiet, root, data_root, accept_hash)


def run_all(
    look: Callable[[], StudyResults],
    run_trials: Callable[..., Count],
    quiet: bool,
    root: Path,
    data_root: Path | None,
    accept_hash: bool,
) -> StudyResults:
    """Run what is missing of a study, or exit with the code that says why it is not complete."""
    from stochbatch.studies.comparing import run_stages
    from stochbatch.studies.engine import StudyStopped

    options = {"root": root, "data_root": data_root, "accept_hash": accept_hash}
    try:
        found, count = run_stages(look, quiet, run_trials, **options)
    except StudyStopped as stop:
        say("Stopped; everything is saved. Run the same command again to resume.")
        raise typer.Exit(INTERRUPTED + stop.signal_number) from None
    if count.finished or count.diverged or count.failed:
        say(f"{count.finished} finished, {count.diverged} diverged, {count.failed} failed")
    for error in count.errors:
        say(f"error: {error}", err=True)
    if count.failed:
        raise typer.Exit(ERROR)
    return found


def engine_of(
    name: str,
    workers: int | None,
    device: str,
    address: str | None,
    cpus: float | None,
    gpus: float | None,
) -> Callable[..., Count]:
    """Return what runs trials, as the options say."""
    from stochbatch.training.distributed import launched

    if launched()[1] > 1:
        raise typer.BadParameter(
            "under torchrun each process would run the whole study; use --workers or --engine ray "
            "instead"
        )
    if name == "local":
        from stochbatch.studies import local_engine

        for option, value in (
            ("address", address),
            ("cpus-per-trial", cpus),
            ("gpus-per-trial", gpus),
        ):
            if value is not None:
                raise typer.BadParameter(f"--{option} is an option of --engine ray")
        at_once = workers or local_engine.default_workers(device)
        return partial(local_engine.run_trials, workers=at_once, device=device)
    if name != "ray":
        raise typer.BadParameter(f"unknown engine {name!r}; choose local or ray")
    from stochbatch.studies import ray_engine

    return partial(
        ray_engine.run_trials,
        workers=workers,
        device=device,
        address=address,
        cpus=1.0 if cpus is None else cpus,
        gpus=gpus or 0.0,
    )


def results(
    name: str,
    scale: str | None,
    root: Path,
    only: list[str] | None,
    cells: list[str] | None,
    trials: int | None,
) -> StudyResults:
    """Return what a study has left, narrowed as the options say."""
    from stochbatch.studies import SCALES, STUDIES, Study, StudyError, collect

    own = name.endswith(".toml")
    study = Study.from_file(name) if own else STUDIES[name]
    if own and study.name in STUDIES:
        raise StudyError(
            f"{name}: a built-in study is called {study.name}; give this one another name "
            "(name = ... on its first line)"
        )
    if study.data:
        from stochbatch.data.own_data import bring

        bring(str(study.base.get("dataset")), study.data)
    scale = scale or ("paper" if own else "demo")
    kept = parse_only(only or [])
    return collect(study, SCALES[scale], root, only=kept, named=cells or (), repetitions=trials)


def parse_only(texts: list[str]) -> dict[str, list[str]]:
    """Return labels by axis from texts like ``batch size=16,32``.

    Example:
        >>> from stochbatch.cli.study import parse_only
        >>> parse_only(["batch size=16,32", "method=SBS"])
        {'batch size': ['16', '32'], 'method': ['SBS']}
        >>> parse_only(["method=SGD", "method=SBS"])
        {'method': ['SGD', 'SBS']}
    """
    kept: dict[str, list[str]] = {}
    for text in texts:
        axis, equals, labels = text.partition("=")
        if not equals or not axis or not labels:
            raise typer.BadParameter(f"--only is AXIS=LABEL,LABEL, got {text!r}")
        kept.setdefault(axis.strip(), []).extend(label.strip() for label in labels.split(","))
    return kept


def _tell_kind(kind: Any) -> None:
    dataset, network, width, precision, _ = kind
    say(f"measuring {network} (width {width:g}, {precision}) on {dataset} ...", err=True)
