"""``stochbatch compare``: is it better on my data, when both are tuned?"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from stochbatch.cli.errors import UsageError
from stochbatch.cli.options import Root, name_and_value, parse_value, with_options
from stochbatch.cli.printing import examples, say
from stochbatch.cli.study import How, time_of

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


@with_options(*FIELDS, momentum=0.9, schedule="cosine")
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
        bool, typer.Option("--plan", help="Only say what would be run, and how long it takes.")
    ] = False,
    root: Root = Path("runs"),
    *,
    how: How,
    **fields: Any,
) -> None:
    """Tune methods with equal budgets, and say whether each is better than the first.

    Settings are tried on validation images, which are training images that are held out; the best
    are then trained with fresh seeds and compared on the test images.
    """
    from stochbatch.data.own_data import taken_in
    from stochbatch.report import write_report
    from stochbatch.studies import SCALES, collect, comparison
    from stochbatch.studies.comparing import in_words, planned_trials
    from stochbatch.studies.conclusions import conclusions
    from stochbatch.studies.engine import check_data

    if not methods or len(methods) < 2:
        raise UsageError("name two methods or more, for example: stochbatch compare sgd sbs")
    run_trials = how.run_trials()
    given = {name: value for name, value in fields.items() if value is not None}
    given["dataset"], given["data"] = taken_in(given.get("dataset", "digits"), how.data_root)
    study = comparison(
        methods,
        epochs=epochs,
        budget=budget,
        seeds=seeds,
        tune=dict(map(parse_space, tune or [])),
        **given,
    )
    look = partial(collect, study, SCALES["paper"], root)
    check_data(look().missing, how.data_root, how.accept_hash)
    say(in_words(study))
    if not how.quiet:
        trials = planned_trials(study)
        time = time_of(trials, root, how.workers, how.device)
        say(f"{len(trials)} trainings: about {time} here, less what is done already")
    if plan:
        return
    page = to or Path("reports") / study.name
    text = study.to_toml(f"stochbatch {' '.join(sys.argv[1:])}")
    found = how.run(look, run_trials, root)
    file = page.with_name(f"{page.name}.toml")
    written = write_report(found, page)
    file.write_text(text, encoding="utf-8")
    say()
    for sentence in conclusions(found):
        say(sentence)
    say(f"\npage: {written}\nstudy: {file}")


def parse_space(text: str) -> tuple[str, Any]:
    """Return the name and the space of a text like ``lr=0.001..1`` or ``sbs.lambd=-4,-1``.

    Example:
        >>> from stochbatch.cli.compare import parse_space
        >>> parse_space("lr=0.001..1"), parse_space("sbs.lambd=-4,-1")
        (('lr', {'log': (0.001, 1.0)}), ('sbs.lambd', [-4, -1]))
    """
    name, space = name_and_value(text, "--tune is NAME=LOW..HIGH or NAME=VALUE,VALUE")
    low, dots, high = space.partition("..")
    if not dots:
        return name, [parse_value(value.strip()) for value in space.split(",")]
    try:
        ends = float(low), float(high)
    except ValueError:
        raise typer.BadParameter(f"--tune {text!r}: the ends of a range are numbers") from None
    return name, {"log" if ends[0] > 0 else "linear": ends}
