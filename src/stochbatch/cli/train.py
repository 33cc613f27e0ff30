"""``stochbatch train``: one trial, shown, trained, resumed."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from stochbatch.cli.errors import CODES, DIVERGED, DONE, INTERRUPTED
from stochbatch.cli.printing import examples, table

if TYPE_CHECKING:
    from stochbatch.training import Result, Trial

EPILOG = examples(
    "stochbatch train --method sbs --set lambd=-2 --epochs 30",
    "stochbatch train --config trial.toml --seed 1",
    "stochbatch train --dataset cifar10 --precision bf16 --dry-run",
    "torchrun --nproc-per-node 2 -m stochbatch train --method sbs",
    after="Run the same command again to resume a stopped training (without --again, which always "
    "starts over). " + CODES,
)


def _field(*names: str, default: str, **extra: Any) -> Any:
    """Return the option of a trial's field; the default is the trial's, or the file's."""
    return typer.Option(*names, show_default=default, **extra)


def train(
    dataset: Annotated[
        str | None, _field(default="digits", help="Data set: see `stochbatch list datasets`.")
    ] = None,
    share: Annotated[
        float | None, _field(default="1.0", help="Share of the training set, drawn by the seed.")
    ] = None,
    network: Annotated[
        str | None,
        _field(
            default="vgg_tiny below 32x32, else vgg11",
            help="Network: see `stochbatch list networks`.",
        ),
    ] = None,
    width: Annotated[
        float | None, _field(default="1.0", help="Factor on the network's widths.")
    ] = None,
    method: Annotated[
        str | None, _field(default="sbs", help="Method: see `stochbatch list methods`.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        _field(
            "--set",
            default="the method's",
            metavar="NAME=VALUE",
            help="A setting of the method; may be repeated.",
        ),
    ] = None,
    batch_size: Annotated[int | None, _field(default="128", help="Samples in a batch.")] = None,
    lr: Annotated[
        float | None, _field(default="0.1, or the method's own", help="Learning rate at the start.")
    ] = None,
    momentum: Annotated[float | None, _field(default="0.0", help="Momentum factor.")] = None,
    weight_decay: Annotated[float | None, _field(default="0.0005", help="L2 penalty.")] = None,
    schedule: Annotated[
        str | None,
        _field(
            default="sigmoid, or the method's own",
            help="Learning rates: see `stochbatch list schedules`.",
        ),
    ] = None,
    schedule_settings: Annotated[
        list[str] | None,
        _field(
            "--schedule-set",
            default="the schedule's",
            metavar="NAME=VALUE",
            help="A setting of the schedule; may be repeated.",
        ),
    ] = None,
    epochs: Annotated[
        int | None, _field(default="100; 30 on digits", help="Number of epochs.")
    ] = None,
    augment: Annotated[
        bool | None,
        _field("--augment/--no-augment", default="augment", help="Crop and flip training images."),
    ] = None,
    precision: Annotated[
        Literal["fp32", "bf16", "fp16"] | None,
        _field(default="fp32", help="fp32, or bf16 or fp16 under autocast."),
    ] = None,
    compile: Annotated[
        bool | None,
        _field("--compile/--no-compile", default="no-compile", help="Use torch.compile."),
    ] = None,
    evaluate_every: Annotated[
        int | None,
        _field(
            default="1",
            help="Evaluate after every so many epochs, and after each of the last tenth.",
        ),
    ] = None,
    sync_bn: Annotated[
        bool | None,
        _field(
            "--sync-bn/--no-sync-bn",
            default="no-sync-bn",
            help="Under torchrun, on GPUs: batch norm over the whole batch, not a rank's slice.",
        ),
    ] = None,
    norm_init: Annotated[
        Literal["ones", "uniform"] | None,
        _field(
            default="ones",
            help="Where the scales of batch norms start: at 1, or uniform in [0, 1).",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        _field(default="0", help="Decides initial weights, order, crops, flips and coins."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            help="A trial in a .toml or .json file; command-line options override it.",
        ),
    ] = None,
    root: Annotated[Path, typer.Option(help="Folder of all runs.")] = Path("runs"),
    data_root: Annotated[
        Path | None,
        typer.Option(
            help="Folder of all data.",
            show_default="STOCHBATCH_DATA, else stochbatch/data in the cache folder",
        ),
    ] = None,
    accept_hash: Annotated[
        bool,
        typer.Option("--accept-hash", help="Accept data files whose hash differs."),
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
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
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the trial, and train nothing.")
    ] = False,
) -> None:
    """Train a network, or resume training.

    Results go to a folder named after the trial, so the same options find it
    again: a stopped run is resumed, a finished one is not trained again.
    `torchrun --nproc-per-node 2 -m stochbatch train ...` trains it by two processes.
    """
    options = dict(locals())  # first of all, when there is nothing else
    from stochbatch import training
    from stochbatch.training.distributed import launched
    from stochbatch.training.progress_bars import choose_progress

    trial = _trial(options)
    folder = root / trial.folder
    shows = launched()[0] == 0
    if shows:
        _announce(trial, folder, dry_run, quiet)
    if dry_run:
        return
    how = {name: options[name] for name in _HOW}
    observers = [choose_progress(quiet or not shows)]
    if tensorboard and shows:
        from stochbatch.training.tensorboard import TensorBoard

        observers.append(TensorBoard())
    options = {name: value for name, value in how.items() if name != "tensorboard"}
    try:
        result = training.run(trial, root, again=again, observers=observers, wait=wait, **options)
    except training.Interrupted as stop:
        if shows:
            typer.echo(f"Stopped; everything is saved. To go on:\n  {_resume(folder, root, how)}")
        raise typer.Exit(INTERRUPTED + stop.signal_number) from None
    if shows:
        _show_result(result, root, quiet)
    raise typer.Exit(DIVERGED if result.status == "diverged" else DONE)


_HOW = {
    "data_root": None,
    "accept_hash": False,
    "device": "auto",
    "checkpoint_seconds": 300.0,
    "tensorboard": False,
}
"""Options of `run` that a resumed run wants too, with their defaults."""


def _announce(trial: Trial, folder: Path, dry_run: bool, quiet: bool) -> None:
    if dry_run:
        typer.echo(trial.to_toml())
    elif not quiet:
        table(_overview(trial))
    if dry_run or not quiet:
        # What a dry run prints is a configuration file, and nothing else.
        typer.echo(f"folder: {folder} ({_state(folder)})", err=dry_run)


def _trial(options: dict[str, Any]) -> Trial:
    """Return the trial of the file, if there is one, with what the command line says instead."""
    from stochbatch.training import Trial
    from stochbatch.training.trial import check_falling

    given = {name: options[name] for name in Trial.model_fields if options[name] not in (None, [])}
    fields: dict[str, Any] = {}
    if options["config"] is not None:
        fields = Trial.from_file(options["config"]).model_dump(exclude_unset=True)
    for owner, its in (("method", "settings"), ("schedule", "schedule_settings")):
        default = Trial.model_fields[owner].default
        if owner in given and given[owner] != fields.get(owner, default):
            fields.pop(its, None)  # they are another method's
        if its in given:
            given[its] = {**fields.get(its, {}), **parse_settings(given[its])}
    if "lr" in given and "schedule_settings" not in given:
        check_falling(given["lr"], fields.get("schedule_settings", {}))  # of the file's rate
    if options["config"] is None:
        fields = dict(FIRST_TRY)
        if given.get("dataset", "digits") != "digits":
            del fields["epochs"]
    return Trial(**{**fields, **given})


FIRST_TRY = {"method": "sbs", "epochs": 30}
"""What the command trains if it is not told: the method of this package, in half a minute on
digits. The defaults of `Trial` are part of every hash and stay what they are."""


def parse_settings(texts: list[str]) -> dict[str, Any]:
    """Return settings from texts like ``lambd=-2``.

    Example:
        >>> from stochbatch.cli.train import parse_settings
        >>> parse_settings(["lambd=-2", "guard=true", "dropout=block", "milestones=[3, 5]"])
        {'lambd': -2, 'guard': True, 'dropout': 'block', 'milestones': [3, 5]}
    """
    settings = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise typer.BadParameter(f"a setting is NAME=VALUE, got {text!r}")
        settings[name.strip().replace("-", "_")] = _value(value.strip())
    return settings


def _value(text: str) -> Any:
    """Return a number, truth value, list or null as JSON has it, anything else as text."""
    words = {"True": True, "False": False, "None": None}  # as Python has them
    if text in words:
        return words[text]
    for read in (json.loads, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def _overview(trial: Trial) -> list[tuple[str, str]]:
    return [
        ("network", f"{trial.network} on {trial.dataset}" + _part(trial.share)),
        ("method", _with_settings(trial.method, trial.settings)),
        ("training", f"batch size {trial.batch_size}, {trial.epochs} epochs"),
        (
            "learning rate",
            f"{trial.lr:g}, {_with_settings(trial.schedule, trial.schedule_settings)}",
        ),
        (
            "other",
            f"momentum {trial.momentum:g}, weight decay {trial.weight_decay:g}, "
            f"{trial.precision}, {'synchronised batch norm, ' if trial.sync_bn else ''}"
            f"{'uniform batch-norm scales, ' if trial.norm_init == 'uniform' else ''}"
            f"seed {trial.seed}",
        ),
    ]


def _part(share: float) -> str:
    return "" if share == 1 else f", {share:.3g} of the training set"


def _with_settings(name: str, settings: dict[str, Any]) -> str:
    shown = ", ".join(f"{key}={value}" for key, value in settings.items() if value is not None)
    return f"{name} ({shown})" if shown else name


def _state(folder: Path) -> str:
    """Return in words what is in the folder of a trial."""
    from stochbatch.training import RunError, read_run

    try:
        read = read_run(folder)
    except RunError:
        return "new"
    try:
        over = read.result is not None
    except RunError as error:
        return str(error)
    if over and read.result is not None:
        return f"done already: {read.result.status}; --again starts over"
    return f"{len(read.metrics)} of {read.trial.epochs} epochs are done"


def _resume(folder: Path, root: Path, how: dict[str, Any]) -> str:
    """Return the command that takes the run up, from any folder if the paths are absolute."""
    words = [*_command(), "train", "--config", str(folder / "trial.json"), "--root", str(root)]
    for name, value in how.items():
        if value != _HOW[name]:
            option = "--" + name.replace("_", "-")
            words += [option] if value is True else [option, str(value)]
    return shlex.join(words)


def _command() -> list[str]:
    """Return the command, with as many processes as now if they are all on this machine."""
    from stochbatch.training.distributed import launched

    count = launched()[1]
    if count == 1 or os.environ.get("LOCAL_WORLD_SIZE") != str(count):
        return ["stochbatch"]
    return ["torchrun", "--standalone", "--nproc-per-node", str(count), "-m", "stochbatch"]


def _show_result(result: Result, root: Path, quiet: bool) -> None:
    if result.accuracy is not None:
        typer.echo(f"test accuracy {result.accuracy.in_words()}")
    if result.status == "diverged":
        typer.echo(
            f"The training diverged in epoch {result.epochs}: a smaller --lr may help.", err=True
        )
    if not quiet:
        typer.echo(f"folder: {result.folder}")
        typer.echo(f"To look at it: {shlex.join(['stochbatch', 'show', str(result.folder)])}")
