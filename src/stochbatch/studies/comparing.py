"""``compare``: is one method better than another on some data, when both are tuned?

The question becomes a study: one cell per method, all tuned by the same budget on validation
images, then trained with the same fresh seeds; each method is compared with the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from stochbatch.data.own_data import taken_in
from stochbatch.registry import METHODS
from stochbatch.studies.cell import StudyError
from stochbatch.studies.claim import Claim
from stochbatch.studies.grid import Axis, Study
from stochbatch.studies.results import StudyResults, collect
from stochbatch.studies.scales import SCALES, Scale
from stochbatch.studies.tuning import Tuning, validation_images
from stochbatch.training import Trial
from stochbatch.training.exceptions import what_is_wrong

if TYPE_CHECKING:
    from stochbatch.studies.engine import Ended

USUAL: dict[str, Any] = {"momentum": 0.9, "schedule": "cosine"}
"""Fields of a comparison that gives none; what a method has not is left out."""


def comparison(
    methods: Sequence[str],
    *,
    dataset: str = "digits",
    epochs: int = 30,
    budget: int = 8,
    seeds: int = 5,
    tune: Mapping[str, Any] | None = None,
    name: str = "",
    data: str = "",
    **fields: Any,
) -> Study:
    """Return the study that answers whether methods are better than the first, all tuned.

    Args:
        methods: names of methods (``stochbatch list methods``), the one to compare with first.
        dataset: name of the data set.
        epochs: of every training.
        budget: settings tried for each method.
        seeds: fresh seeds that the verdict comes from.
        tune: search spaces by name, for all methods that have it (``"lr"``), or for one
            (``"sbs.lambd"``): a range ``{"log": [low, high]}``, ``{"linear": [low, high]}`` or a
            list of values. By default the learning rate, over the range of each method.
        name: of the study; by default made from the data and the methods.
        data: path of the data set, if it is one of your own.
        **fields: other fields of all trials: ``network``, ``batch_size``, ``share``, ...

    Example:
        >>> from stochbatch.studies import comparison
        >>> study = comparison(["sgd", "sbs"], tune={"sbs.lambd": [-4, -1]}, budget=4)
        >>> print(*study.claims)
        SBS is better than SGD (method), all else being equal.
        >>> study.tuning.points("SBS")[0]
        {'lr': 0.4811, 'lambd': -4}
    """
    methods = list(methods)
    if len(methods) < 2:
        raise StudyError(f"a comparison needs two methods or more, got {', '.join(methods)!r}")
    if twice := [method for method in methods if methods.count(method) > 1]:
        raise StudyError(f"{twice[0]} is named twice")
    called = Path(data).absolute().stem if data else dataset.replace(":", "-")
    titles = [METHODS[method].title for method in methods]
    given: dict[str, Any] = {"dataset": dataset, "epochs": epochs, **USUAL, **fields}
    given.setdefault("evaluate_every", max(1, epochs // 10))
    by_title = list(zip(titles, methods, strict=True))
    try:
        return Study(
            name=name or "-".join(["compare", called, *methods]),
            title=" against ".join([titles[0], ", ".join(titles[1:])]),
            caption=f"Test accuracy (%) on {called}, each method at the settings that tuning "
            "chose.",
            data=data,
            base=given,
            axes=[
                Axis(
                    name="method",
                    points=[{"label": title, "method": method} for title, method in by_title],
                )
            ],
            claims=[
                Claim(axis="method", better=title, than=(titles[0],), primary=True)
                for title in titles[1:]
            ],
            repetitions=seeds,
            tuning=Tuning(
                budget=budget,
                spaces={title: _space(method, methods, tune or {}) for title, method in by_title},
            ),
        )
    except ValidationError as error:
        raise StudyError(what_is_wrong(error)) from None


def _space(method: str, methods: Sequence[str], tune: Mapping[str, Any]) -> dict[str, Any]:
    """Return the search space of a method."""
    space: dict[str, Any] = {"lr": {"log": METHODS[method].lr_range}}
    for name, values in tune.items():
        owner, dot, its = name.rpartition(".")
        if dot and owner not in methods:
            raise StudyError(f"{name} cannot be tuned: {owner} is not among the methods")
        if not dot or owner == method:
            space[its] = values
    return space


def compare(
    methods: Sequence[str],
    *,
    root: str | Path = "runs",
    run_trials: Callable[..., list[Ended]] | None = None,
    quiet: bool = False,
    data_root: str | Path | None = None,
    accept_hash: bool = False,
    **question: Any,
) -> StudyResults:
    """Tune methods on validation images, train them with fresh seeds, and return all results.

    Run the same call again to resume. `conclusions` says what came out.

    Args:
        methods: names of methods, the one to compare with first.
        root: the folder of all runs.
        run_trials: an engine's function; by default trials run on this machine, as many in
            parallel as it has cores or GPUs.
        quiet: show no progress.
        data_root: the folder of all data.
        accept_hash: accept data files whose hash differs.
        **question: as for `comparison`; ``dataset`` may also be data of your own, as
            `stochbatch.data.add` takes them.

    Raises:
        StudyError: a trial failed; what it said.
    """
    question["dataset"], question["data"] = taken_in(question.get("dataset", "digits"), data_root)
    study = comparison(methods, **question)
    found, ended = run_stages(
        partial(collect, study, SCALES["paper"], root),
        quiet,
        run_trials,
        root=root,
        data_root=data_root,
        accept_hash=accept_hash,
    )
    for trial, status, text in ended:
        if status == "failed":
            raise StudyError(f"{trial.folder}: {text}")
    return found


def run_stages(
    look: Callable[[], StudyResults],
    quiet: bool = False,
    run_trials: Callable[..., list[Ended]] | None = None,
    **options: Any,
) -> tuple[StudyResults, list[Ended]]:
    """Run the missing trials of a study until none is left: each stage of tuning asks for the next.

    ``look`` collects the results so far; options are passed on to ``run_trials``, an engine's
    function, by default this machine's.
    """
    from stochbatch.studies import local_engine
    from stochbatch.studies.progress import choose_watcher

    if run_trials is None:
        run_trials = partial(local_engine.run_trials, workers=local_engine.default_workers())
    found = look()
    ended: list[Ended] = []
    while missing := found.missing:
        ended += run_trials(missing, watcher=choose_watcher(quiet, found.labels), **options)
        found = look()
        if any(one.status == "failed" for one in ended):
            break  # what comes next may depend on it
    return found, ended


def planned_trials(study: Study, scale: Scale | None = None) -> list[Trial]:
    """Return as many trials as a tuned study runs, for an estimate; which, tuning decides."""
    tuning, scale = study.tuning, scale or SCALES["paper"]
    assert tuning is not None
    found = []
    for cell in study.cells(scale):
        label = cell.coordinates[tuning.axis]
        points = len(tuning.points(label)) if tuning.spaces[label] else 0
        tried = points + (tuning.seeds - 1) * min(tuning.finalists, points)
        found += [cell.trial(0)] * (tried + study.planned(scale))
    return found


def in_words(study: Study) -> str:
    """Return what a tuned study does, in a sentence."""
    tuning = study.tuning
    assert tuning is not None
    first = study.cells(SCALES["paper"])[0].trial(0)
    *others, last = tuning.spaces
    names = f"{', '.join(others)} and {last}"
    most = max(len(tuning.points(label)) for label in tuning.spaces)
    images = validation_images(first)
    where = f"{Path(study.data).absolute().name} ({first.dataset})" if study.data else first.dataset
    return (
        f"{names} on {where}, {first.network}, {first.epochs} epochs each: {most} settings "
        f"of each with one seed on {images:,} validation images, the best "
        f"{min(tuning.finalists, most)} with {tuning.seeds - 1} more, then {study.repetitions} "
        "fresh seeds of each winner on the test images."
    )
