"""Invariant: figures show what the trials left, in words too; of too many some are drawn."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib

from stochbatch.report.charts import MANY, LeftOut, groups, lines, over_trials
from stochbatch.report.figures import Sketch, gallery
from stochbatch.report.layout import Layout
from stochbatch.report.page import OURS
from stochbatch.studies import SCALES, STUDIES, CellOutcomes, Outcome, Scale, Study, StudyResults
from tests.studies.test_statistics import result, with_metrics
from tests.studies.test_statistics import results as two_by_two

NETWORKS = ("vgg11", "resnet18")


def made_up(study: Study, scale: Scale, metrics: list[dict[str, Any]]) -> StudyResults:
    """Return a study with one trial a cell, all alike."""
    cells = []
    for cell in study.cells(scale):
        trial = cell.trial(0)
        curve = [10.0 * (line["epoch"] + 1) for line in metrics]
        outcome = Outcome(trial, Path(trial.folder), "finished", result(trial, 20.0, curve=curve))
        cells.append(CellOutcomes(cell, (with_metrics(outcome, metrics),)))
    return StudyResults(study, scale, Path(), tuple(cells))


def named(results: StudyResults) -> dict[str, Sketch]:
    return {sketch.name: sketch for sketch in gallery(Layout.of(results))}


def epochs(*rates: float, **more: Any) -> list[dict[str, Any]]:
    return [{"epoch": epoch, "lr": rate, **more} for epoch, rate in enumerate(rates)]


def test_a_curve_has_gaps_where_no_trial_was_evaluated() -> None:
    results = two_by_two([20.0, 30.0], [40.0])
    curves = ([None, 10.0, None, 20.0], [None, None, 5.0, 30.0])
    for outcome, curve in zip(results.cells[0].outcomes, curves, strict=True):
        object.__setattr__(outcome, "result", result(outcome.trial, curve[-1], curve=curve))
    assert over_trials(curves) == [
        (2, 10.0, 10.0, 10.0),
        (3, 5.0, 5.0, 5.0),
        (4, 20.0, 25.0, 30.0),
    ]
    sgd, sbs = lines(Layout.of(results), {"batch size": "16"})
    assert (sgd.points[-1][2], sbs.points[-1][2]) == (25.0, 40.0)
    assert (sgd.ends, sbs.ends) == ([20.0, 30.0], [40.0])


def test_many_lines_are_named_in_full_within_the_picture() -> None:
    study = STUDIES["readings"]
    (sketch,) = gallery(Layout.of(made_up(study, SCALES["demo"], epochs(0.1, 0.1))))
    figure = sketch.figure()
    assert [line.get_label() for line in figure.axes[0].lines] == [
        point.label for point in study.axes[0].expanded()
    ]
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
    assert figure.axes[0].get_window_extent().height > 150


def test_without_any_evaluation_there_is_no_curve() -> None:
    results = two_by_two([20.0], only={"batch size": ["16"], "method": ["sgd"]})
    outcome = results.cells[0].outcomes[0]
    unseen = result(outcome.trial, None, curve=[None, None], status="diverged")
    object.__setattr__(outcome, "result", unseen)
    assert named(results) == {}


def test_schedules_have_the_article_s_first_figure() -> None:
    """Rates, losses and accuracy: a column per schedule, two rows per network below the rates."""
    losses = [{"train_loss": 2.0, "test_loss": None}, {"train_loss": 1.0, "test_loss": 1.5}]
    metrics = [
        {**line, **loss, "test_accuracy": accuracy}
        for line, loss, accuracy in zip(epochs(0.1, 0.05), losses, (40.0, 60.0), strict=True)
    ]
    found = named(made_up(STUDIES["lr-schedules"], SCALES["paper"], metrics))
    assert list(found) == ["schedules", "curves-1-vgg11", "curves-2-resnet18"]
    panels = found["schedules"].figure().axes
    assert [panel.get_title() for panel in panels[:8]] == [
        point.label for point in STUDIES["lr-schedules"].axes[1].expanded()
    ]
    assert [panel.get_ylabel() for panel in panels[::8]] == [
        "learning rate",
        *(f"{what}\n{name}" for name in NETWORKS for what in ("loss", "accuracy (%)")),
    ]
    drawn = [
        {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in panel.lines}
        for panel in panels
    ]
    rate, loss, accuracy = drawn[7], drawn[15], drawn[23]
    assert rate == {"learning rate": ([1, 2], [0.1, 0.05])}
    assert loss == {"training loss": ([1, 2], [2.0, 1.0]), "test loss": ([2], [1.5])}
    assert accuracy == {"test accuracy": ([1, 2], [40.0, 60.0])}
    assert drawn[31:] == [loss, *[accuracy] * 8]


def test_a_schedule_that_was_not_run_is_left_out_of_the_figure() -> None:
    results = made_up(STUDIES["lr-schedules"], SCALES["paper"], epochs(0.1, 0.05))
    kept = [
        cell
        for cell in results.cells
        if cell.cell.key in {("vgg11", "Sigmoid"), ("resnet18", "Sigmoid"), ("vgg11", "Adam")}
    ]
    figure = named(replace(results, cells=tuple(kept)))["schedules"].figure()
    assert [panel.get_title() for panel in figure.axes[:2]] == ["Adam", "Sigmoid"]
    lines = [len(panel.lines) for panel in figure.axes]
    assert lines == [1, 1, *[0] * 8]
    figure.draw_without_rendering()
    labels = [label.get_text() for label in figure.axes[0].yaxis.get_ticklabels()]
    assert "0.1" in labels
    assert not any("$" in label for label in labels)


def test_the_comparison_has_the_article_s_second_figure() -> None:
    """A panel per data set and network, with batches of 16, and all methods in each."""
    study, paper = STUDIES["comparison"], SCALES["paper"]
    results = made_up(study, paper, epochs(0.1, 0.05))
    sketches = named(results)
    places = product(("cifar10", "svhn", "stl10"), ("vgg11", "resnet18", "resnet50"))
    assert list(sketches) == [
        f"curves-{number}-{data}-{network}-16" for number, (data, network) in enumerate(places, 1)
    ]
    (panel,) = sketches["curves-9-stl10-resnet50-16"].figure().axes
    methods = [point.label for point in study.axes[-1].expanded()]
    assert [line.get_label() for line in panel.lines] == methods
    assert [list(line.get_ydata()) for line in panel.lines] == [[10.0, 20.0]] * len(methods)
    (left_out,) = groups(Layout.of(results))[1]
    assert left_out.text == "curves of other batch sizes than 16, as in the article"


def test_of_many_groups_the_first_batch_size_is_drawn_as_in_the_article() -> None:
    """What is left out is said, with the options that draw it."""
    results = made_up(STUDIES["partial-data"], SCALES["demo"], epochs(0.1))

    def drawn(*sizes: str) -> tuple[list[str], list[LeftOut]]:
        cells = [
            cell
            if cell.cell.coordinates["batch size"] in sizes
            else replace(cell, outcomes=tuple(replace(o, result=None) for o in cell.outcomes))
            for cell in results.cells
        ]
        found = replace(results, cells=tuple(cells))
        return list(named(found)), groups(Layout.of(found))[1]

    shares = list(enumerate(("0.5", "0.25", "0.125"), 1))
    names, (left_out,) = drawn("16", "32", "64", "128")
    assert names == [f"curves-{n}-vgg-tiny-16-{share}" for n, share in shares]
    assert left_out.text.startswith("curves of other batch sizes than 16,")
    assert left_out.options == "--only 'batch size=32'"
    assert drawn("128") == ([f"curves-{n}-vgg-tiny-128-{share}" for n, share in shares], [])


def test_of_more_than_nine_places_nine_are_drawn_and_the_rest_is_said() -> None:
    study = Study.from_text(
        """
        title = "Many rates"
        [[axes]]
        name = "rate"
        field = "lr"
        values = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]
        [[axes]]
        name = "method"
        field = "method"
        values = ["sgd"]
        """,
        "many",
    )
    layout = Layout.of(made_up(study, SCALES["paper"], epochs(0.1)))
    assert [one.name for one in gallery(layout)] == [
        f"curves-{rate}-{rate}" for rate in range(1, 10)
    ]
    assert len(gallery(layout)) == MANY
    (left_out,) = groups(layout)[1]
    assert left_out.text == "curves of 5 more places"
    assert left_out.options == "--only rate=10"


ODD = ("a", "a!", "a 2", "a $x_$", "$5 and $6", "_hidden", "long " * 30, "x" * 220)


def odd_axis(name: str, field: str) -> str:
    points = ", ".join(f'{{ label = "{label}", {field} = {n} }}' for n, label in enumerate(ODD, 2))
    return f'[[axes]]\nname = "{name}"\npoints = [{points}]\n'


def odd_study() -> StudyResults:
    axes = odd_axis("odd", "epochs") + odd_axis("other", "batch_size")
    study = Study.from_text(f'title = "Odd labels"\n{axes}', "odd")
    return made_up(study, SCALES["paper"], epochs(0.1, 0.2))


def test_any_label_has_a_file_of_its_own_and_is_in_the_legend() -> None:
    sketches = named(odd_study())
    assert list(sketches)[:3] == ["curves-1-a", "curves-2-a", "curves-3-a-2"]
    assert len(sketches) == len(ODD)
    assert max(map(len, sketches)) <= 110
    assert all(OURS.fullmatch(f"figures/{name}.png") for name in sketches)
    figure = sketches["curves-1-a"].figure()
    (legend,) = figure.legends
    texts = [text.get_text().strip() for text in legend.get_texts()]
    assert texts == [label[:100].strip() for label in ODD]
    figure.draw_without_rendering()


def test_a_reader_s_own_settings_change_nothing_and_are_left_alone() -> None:
    sketch = gallery(Layout.of(two_by_two([90.0, 92.0], [80.0])))[0]
    usual = sketch.saved()
    dark = {
        **{"text.color": "white", "axes.labelcolor": "white", "savefig.facecolor": "black"},
        **{"font.family": "serif", "axes.spines.top": False, "savefig.bbox": "tight"},
        **{"lines.linewidth": 9.0, "axes.grid": True, "font.size": 20.0},
    }
    with matplotlib.rc_context(dark):
        before = dict(matplotlib.rcParams)
        changed = sketch.saved()
        assert dict(matplotlib.rcParams) == before
    assert changed == usual
