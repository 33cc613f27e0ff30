"""Invariant: figures show what the trials left, in words too; of too many some are drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stochbatch.report.figures import Drawing, drawings
from stochbatch.report.layout import Layout
from stochbatch.studies import SCALES, STUDIES, CellOutcomes, Outcome, Scale, Study, StudyResults
from tests.studies.test_statistics import result
from tests.studies.test_statistics import results as two_by_two


def made_up(study: Study, scale: Scale, metrics: list[dict[str, Any]]) -> StudyResults:
    """Return a study with one trial a cell, all alike."""
    cells = []
    for cell in study.cells(scale):
        trial = cell.trial(0)
        curve = [10.0 * (line["epoch"] + 1) for line in metrics]
        outcome = Outcome(trial, Path(trial.folder), "finished", result(trial, 20.0, curve=curve))
        outcome.__dict__["metrics"] = metrics  # instead of those on the disk
        cells.append(CellOutcomes(cell, (outcome,)))
    return StudyResults(study, scale, Path(), tuple(cells))


def named(results: StudyResults) -> dict[str, Drawing]:
    return {drawing.name: drawing for drawing in drawings(Layout.of(results))}


def epochs(*rates: float, **more: Any) -> list[dict[str, Any]]:
    return [{"epoch": epoch, "lr": rate, **more} for epoch, rate in enumerate(rates)]


def test_accuracy_against_batch_size_has_the_means_of_the_cells() -> None:
    found = named(two_by_two([90.0, 92.0], [80.0], [70.0], [60.0, 70.0]))["batch-size"]
    assert "sgd: 91.00 at 16, 70.00 at 128; sbs: 80.00 at 16, 65.00 at 128." in found.alt


def test_one_batch_size_is_no_curve() -> None:
    assert "batch-size" not in named(two_by_two([90.0], [80.0], only={"batch size": ["16"]}))


def test_schedules_have_a_figure_of_their_rates() -> None:
    found = named(made_up(STUDIES["lr-schedules"], SCALES["demo"], epochs(0.1, 0.05)))
    assert list(found) == ["learning-rates", "curves-vgg-tiny"]
    assert "Sigmoid 0.1 to 0.05" in found["learning-rates"].alt
    assert "Adam 20.00" in found["curves-vgg-tiny"].alt


def test_batches_are_counted_in_images() -> None:
    layers = [{"kind": "conv", "size": 3, "batches": 2.5}]
    results = made_up(STUDIES["local-global"], SCALES["demo"], epochs(0.1, layers=layers))
    found = named(results)["batches-vgg-tiny"]
    assert "alpha 0: conv 40;" in found.alt  # batches of 16


def test_of_many_groups_the_first_batch_size_is_drawn_as_in_the_article() -> None:
    results = made_up(STUDIES["partial-data"], SCALES["demo"], epochs(0.1))
    curves = [name for name in named(results) if name.startswith("curves")]
    assert curves == [f"curves-vgg-tiny-16-{share}" for share in ("0.5", "0.25", "0.125")]


def test_labels_that_make_one_file_name_have_figures_of_their_own() -> None:
    study = Study.from_text(
        """
        title = "Signs"
        [[axes]]
        name = "sign"
        points = [{ label = "a +1", lr = 0.1 }, { label = "a -1", lr = 0.2 }]
        [[axes]]
        name = "method"
        field = "method"
        values = ["sgd"]
        """,
        "signs",
    )
    assert list(named(made_up(study, SCALES["paper"], epochs(0.1)))) == [
        "curves-a-1",
        "curves-a-1-2",
    ]


def test_a_report_leaves_the_settings_of_matplotlib_alone() -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    named(two_by_two([90.0], [80.0]))
    assert dict(matplotlib.rcParams) == before
