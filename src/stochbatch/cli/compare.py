"""``stochbatch compare``: is it better on my data, when both are tuned?"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stochbatch.cli.errors import UsageError
from stochbatch.cli.options import AcceptHash, DataRoot, Device, Quiet, Root, with_trial_options
from stochbatch.cli.printing import examples, say
from stochbatch.cli.study import (
    Address,
    CpusPerTrial,
    Engine,
    GpusPerTrial,
    Workers,
    engine_of,
    run_all,
)

if TYPE_CHECKING:
    from stochbatch.studies import Study

EPILOG = examples(
    "stochbatch compare sgd sbs --budget 4 --epochs 12",
    "stochbatch compare sgd sbs adamw --dataset my_photos/ --network resnet18",
    "stochbatch compare sgd sbs --tune lr=0.01..1 --tune sbs.lambd=-4,-1,0",
    after="Run the same command again to resume. Settings are chosen on validation images; the "
    "verdict comes from other seeds and the test images.",
)
FIELDS = (
    *("dataset", "share", "network", "width", "batch_size", "momentum", "weight_decay"),
    *("schedule", "augment", "precision"),
)


def compare(
    methods: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="METHOD METHOD...",
            help="Methods; each is compared with the first: see `stochbatch list methods`.",
            show_default=False,
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of every training.")] = 30,
    budget: Annotated[int, typer.Option(min=1, help="Settings tried for each method.")] = 8,
    seeds: Annotated[int, typer.Option(min=1, help="Fresh seeds that the verdict comes from.")] = 5,
    tune: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SPACE",
            help="What to tune, and where: lr=0.001..1, sbs.lambd=-4,-1,0; may be repeated. "
            "By default the learning rate, over the method's usual range.",
        ),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(help="Folder of the page.", show_default="reports/compare-..."),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Say what would be run, and how long it takes.")
    ] = False,
    root: Root = Path("runs"),
    engine: Engine = "local",
    workers: Workers = None,
    address: Address = None,
    cpus_per_trial: CpusPerTrial = None,
    gpus_per_trial: GpusPerTrial = None,
    data_root: DataRoot = None,
    accept_hash: AcceptHash = False,
    device: Device = "auto",
    quiet: Quiet = False,
    **fields: Any,
) -> None:
    """Tune methods with equal budgets, and say whether each is better than the first.

    Settings are tried on validation images, which are training images that are held out; the best
    are then trained with fresh seeds and compared on the test images.
    """
    from stochbatch.data.own_data import taken_in
    from stochbatch.report import write_report
    from stochbatch.studies import SCALES, collect, comparison
    from stochbatch.studies.conclusions import conclusions
    from stochbatch.studies.engine import check_data

    if not methods or len(methods) < 2:
        raise UsageError(
            "name two methods or more, for example: stochbatch compare sgd sbs "
            "(see: stochbatch list methods)"
        )
    run_trials = engine_of(engine, workers, device, address, cpus_per_trial, gpus_per_trial)
    given = {name: value for name, value in fields.items() if value is not None}
    given["dataset"], given["data"] = taken_in(given.get("dataset", "digits"), data_root)
    study = comparison(
        methods,
        epochs=epochs,
        budget=budget,
        seeds=seeds,
        tune=dict(map(parse_space, tune or [])),
        **given,
    )
    look = partial(collect, study, SCALES["paper"], root)
    check_data(look().missing, data_root, accept_hash)
    _announce(study, root, workers, device, quiet)
    if plan:
        return
    page = to or Path("reports") / study.name
    text = study.to_toml(f"stochbatch {' '.join(sys.argv[1:])}")
    found = run_all(look, run_trials, quiet, root, data_root, accept_hash)
    file = page.with_name(f"{page.name}.toml")
    written = write_report(found, page)
    file.write_text(text, encoding="utf-8")
    say()
    for sentence in conclusions(found):
        say(sentence)
    say(f"\npage: {written}\nstudy: {file}")


def _announce(study: Study, root: Path, workers: int | None, device: str, quiet: bool) -> None:
    """Say what will be done and, unless it is to be quiet, how long it takes here."""
    from stochbatch.cores import usable_cores
    from stochbatch.studies.comparing import in_words, planned_trials
    from stochbatch.studies.estimate import duration, estimate, until_all_are_done
    from stochbatch.training.device import choose_device

    say(in_words(study))
    if quiet:
        return
    trials = planned_trials(study)
    each = estimate(trials, root, choose_device(device))
    time = duration(until_all_are_done(each, workers or usable_cores()))
    say(f"{len(trials)} trainings: about {time} here, less what is done already")


def parse_space(text: str) -> tuple[str, Any]:
    """Return the name and the space of a text like ``lr=0.001..1`` or ``sbs.lambd=-4,-1``.

    Example:
        >>> from stochbatch.cli.compare import parse_space
        >>> parse_space("lr=0.001..1"), parse_space("sbs.lambd=-4,-1")
        (('lr', {'log': (0.001, 1.0)}), ('sbs.lambd', [-4, -1]))
    """
    from stochbatch.cli.options import parse_value

    name, equals, space = text.partition("=")
    if not equals or not name.strip() or not space.strip():
        raise typer.BadParameter(f"--tune is NAME=LOW..HIGH or NAME=VALUE,VALUE, got {text!r}")
    low, dots, high = space.partition("..")
    if not dots:
        return name.strip(), [parse_value(value.strip()) for value in space.split(",")]
    try:
        ends = float(low), float(high)
    except ValueError:
        raise typer.BadParameter(f"--tune {text!r}: the ends of a range are numbers") from None
    return name.strip(), {"log" if ends[0] > 0 else "linear": ends}


with_trial_options(compare, FIELDS)
