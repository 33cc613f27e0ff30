"""``stochbatch train``: one trial, shown, trained, resumed."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stochbatch.cli.errors import CODES, DIVERGED, DONE, INTERRUPTED
from stochbatch.cli.options import (
    AcceptHash,
    DataRoot,
    Device,
    Quiet,
    Root,
    make_trial,
    with_options,
)
from stochbatch.cli.printing import examples, say, table
from stochbatch.cli.runs import state_of
from stochbatch.training.trial import Trial

if TYPE_CHECKING:
    from stochbatch.training import Result

EPILOG = examples(
    "stochbatch train --method sbs --set lambd=-2 --epochs 30",
    "stochbatch train --config trial.toml --seed 1",
    "stochbatch train --dataset cifar10 --precision bf16 --dry-run",
    "torchrun --nproc-per-node 2 -m stochbatch train --method sbs",
    after="Run the same command again to resume a stopped training (without --again, which always "
    "starts over). " + CODES,
)


@with_options(*Trial.model_fields)
def train(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            help="A trial in a .toml or .json file; command-line options override it.",
        ),
    ] = None,
    root: Root = Path("runs"),
    data_root: DataRoot = None,
    accept_hash: AcceptHash = False,
    device: Device = "auto",
    again: Annotated[
        bool, typer.Option("--again", help="Start over, even if the run has finished or diverged.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait if another process is running this trial.")
    ] = False,
    checkpoint_seconds: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="Seconds between checkpoints within an epoch."),
    ] = 300.0,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write TensorBoard's event files.")
    ] = False,
    quiet: Quiet = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the trial, and train nothing.")
    ] = False,
    **fields: Any,
) -> None:
    """Train a network, or resume training.

    Results go to a folder named after the trial, so the same options find it
    again: a stopped run is resumed, a finished one is not trained again.
    `torchrun --nproc-per-node 2 -m stochbatch train ...` trains it by two processes.
    """
    from stochbatch import training
    from stochbatch.training.distributed import launched
    from stochbatch.training.progress_bars import choose_progress

    trial = make_trial(fields, config, data_root)
    folder = root / trial.folder
    shows = launched()[0] == 0
    if shows:
        _announce(trial, folder, dry_run, quiet)
    if dry_run:
        return
    observers = [choose_progress(quiet or not shows)]
    if tensorboard and shows:
        from stochbatch.training.tensorboard import TensorBoard

        observers.append(TensorBoard())
    try:
        result = training.run(
            trial,
            root,
            data_root=data_root,
            accept_hash=accept_hash,
            device=device,
            observers=observers,
            again=again,
            wait=wait,
            checkpoint_seconds=checkpoint_seconds,
        )
    except training.Interrupted as stop:
        if shows:
            less = ", without --again," if again else ""
            say(f"Stopped; everything is saved. Run the same command again{less} to resume.")
        raise typer.Exit(INTERRUPTED + stop.signal_number) from None
    if shows:
        _show_result(result, quiet)
    raise typer.Exit(DIVERGED if result.status == "diverged" else DONE)


def _announce(trial: Trial, folder: Path, dry_run: bool, quiet: bool) -> None:
    if dry_run:
        say(trial.to_toml())
    elif quiet:
        return
    else:
        table(_overview(trial))
    # What a dry run prints is a configuration file, and nothing else.
    say(f"folder: {folder} ({_state(folder)})", err=dry_run)


def _overview(trial: Trial) -> list[tuple[str, str]]:
    schedule = _with_settings(trial.schedule, trial.schedule_settings)
    part = "" if trial.share == 1 else f", {trial.share:.3g} of the training set"
    return [
        ("network", f"{trial.network} on {trial.dataset}{part}"),
        ("method", _with_settings(trial.method, trial.settings)),
        ("training", f"batch size {trial.batch_size}, {trial.epochs} epochs"),
        ("learning rate", f"{trial.lr:g}, {schedule}"),
        (
            "other",
            f"momentum {trial.momentum:g}, weight decay {trial.weight_decay:g}, "
            f"{trial.precision}, "
            f"{'uniform batch-norm scales, ' if trial.norm_init == 'uniform' else ''}"
            f"seed {trial.seed}",
        ),
    ]


def _with_settings(name: str, settings: dict[str, Any]) -> str:
    shown = ", ".join(f"{key}={value}" for key, value in settings.items() if value is not None)
    return f"{name} ({shown})" if shown else name


def _state(folder: Path) -> str:
    """Return in words what is in the folder of a trial."""
    from stochbatch.training import RunError, read_run
    from stochbatch.training.run_folder import TRIAL

    if not (folder / TRIAL).exists():
        return "new"
    try:
        run = read_run(folder)
        return state_of(run) + ("; --again starts over" if run.result is not None else "")
    except RunError as error:
        return str(error)


def _show_result(result: Result, quiet: bool) -> None:
    if result.accuracy is not None:
        say(f"test accuracy {result.accuracy.in_words()}")
    if result.status == "diverged":
        say(f"The training diverged in epoch {result.epochs}: a smaller --lr may help.", err=True)
    if not quiet:
        say(f"folder: {result.folder}")
        say(f"To look at it: {shlex.join(['stochbatch', 'show', str(result.folder)])}")
