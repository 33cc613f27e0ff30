"""Invariant: marks stand where the numbers are, labels never overlap, nothing is dropped unsaid."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stochbatch.report.charts import (
    BRIEF,
    LABEL,
    Span,
    apart,
    around,
    curves,
    forest,
    short,
    strips,
)
from stochbatch.report.heat_maps import heats
from stochbatch.report.layout import Layout
from stochbatch.report.palette import COLOURS, FREE, colours
from stochbatch.report.tables import claims, claims_in_full
from stochbatch.studies import SCALES, STUDIES, Published, StudyResults
from tests.report.finished_study import finished_study
from tests.report.test_figures import epochs, made_up
from tests.studies.test_statistics import results, with_metrics


def test_a_comparison_has_the_seeds_that_its_mean_is_of() -> None:
    found = Layout.of(
        results([90.0, 80.0, 70.0], [91.0, 82.0, 73.0], [50.0, 60.0, 70.0], [51.0, 61.0, 74.0])
    )
    ((_, rows),) = forest(found).groups
    whole, first, _ = rows
    assert list(first.row.by_seed.values()) == [1.0, 2.0, 3.0]
    assert list(whole.row.by_seed.values()) == [1.0, 1.5, 3.5]
    for one in rows:
        assert math.fsum(one.row.by_seed.values()) / 3 == pytest.approx(one.row.difference)
    assert "By seed: +1.00, +2.00, +3.00" in first.tip
    assert (whole.name, first.name) == ("all 2 places", "batch size 16")


def test_the_published_difference_is_drawn_where_both_sides_have_one() -> None:
    both = Layout.of(results([90.0], [91.0], published=Published(80.0, 81.0)))
    assert [one.published for one in forest(both).groups[0][1]] == [0.0, 0.0, 0.0]
    assert "published" in claims(both).head
    none = Layout.of(results([90.0], [91.0]))
    assert "published" not in claims(none).head
    assert [one.published for one in forest(none).groups[0][1]] == [None] * 3


def test_published_differences_are_those_of_the_article_s_tables() -> None:
    """Looked up: partial-data, VGG11, batches of 16, and two growths over four and nine places."""
    layout = Layout.of(made_up(STUDIES["partial-data"], SCALES["paper"], epochs(0.1)))
    table = claims_in_full(layout)
    row = next(row for row in table.rows if row[2:5] == ["vgg11", "16", "0.125"])
    assert row[-1] == pytest.approx(80.18 - 79.25)
    published = {row.claim.name: layout.published(row) for row in layout.claims if row.ahead}
    halves = [0.42, 0.36, 0.29, 0.32, 0.21, 0.30, 0.42, 0.25]
    eighths = [0.93, 0.37, 1.06, 1.51, 0.91, 0.61, 0.52, 0.62]
    assert published["more where data are few"] == pytest.approx(
        (sum(eighths) - sum(halves)) / 8, abs=1e-9
    )
    comparison = Layout.of(made_up(STUDIES["comparison"], SCALES["paper"], epochs(0.1)))
    published = {r.claim.name: comparison.published(r) for r in comparison.claims if r.ahead}
    grown = [0.02, 0.27, 0.31, -0.10, 0.03, -0.01, -2.13, -3.18, -1.46]
    assert published["less sensitive to the batch size"] == pytest.approx(sum(grown) / 9, abs=1e-9)
    assert published["against Entropy-SGD"] is None
    assert published["against Entropy-SGD as printed"] > 0


def test_the_range_is_symmetric_and_an_outlier_does_not_squeeze_the_rest() -> None:
    usual = forest(Layout.of(results([90.0, 91.0, 92.0], [90.5, 91.6, 92.4])))
    assert usual.span.low == -usual.span.high
    row = usual.groups[0][1][1].row
    assert row.interval.low in usual.span
    assert row.interval.high in usual.span
    wild = forest(Layout.of(results([90.0, 91.0], [91.0, 92.0], [90.0, 91.0], [10.0, 10.0])))
    assert wild.span.high >= 1.0


def test_nothing_run_is_an_empty_plot() -> None:
    found = Layout.of(results())
    assert forest(found).span.high >= 1
    assert all(one.row.difference is None for one in forest(found).groups[0][1])
    assert (strips(found)[0], curves(found)[0], heats(found)[0]) == ([], [], [])


def test_strips_have_every_training_and_say_what_is_not_drawn() -> None:
    found = Layout.of(results([90.0, 91.0], [92.0, 93.0], [90.0, 91.0], [92.0, 15.0]))
    panels, span = strips(found)
    assert [panel.title for panel in panels] == ["Batch size 16", "Batch size 128"]
    assert [len(row.seeds) for panel in panels for row in panel.rows] == [2, 2, 2, 2]
    assert 15.0 in span  # of a method that is compared
    comparison = made_up(STUDIES["comparison"], SCALES["demo"], epochs(0.1))
    other = next(c for c in comparison.cells if c.cell.coordinates["method"] == "Dropout")
    low = other.outcomes[0].result.model_copy(
        update={"accuracy": other.outcomes[0].result.accuracy.model_copy(update={"mean": 5.0})}
    )
    object.__setattr__(other.outcomes[0], "result", low)
    panels, span = strips(Layout.of(comparison))
    row = next(row for row in panels[0].rows if row.label == "Dropout")
    assert (5.0 in span, row.outside(span)) == (False, "5.0")
    assert "By seed, in percent: 5.00" in row.tip


def test_diverged_and_missing_trials_are_said() -> None:
    panels, _ = strips(Layout.of(results([90.0, 10.0], [92.0, None], diverged=True)))
    first, second = panels[0].rows
    assert "2 diverged" in first.tip
    assert second.missing == 1


@given(st.lists(st.floats(0, 232), max_size=14))
def test_labels_stand_apart_in_their_order_and_within_the_panel(wanted: list[float]) -> None:
    height = max(232, LABEL * len(wanted) + 16)
    found = apart(sorted(wanted), height)
    assert all(below - above >= LABEL - 1e-9 for above, below in pairwise(found))
    assert all(0 <= place <= height for place in found)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=8))
def test_a_range_holds_its_values_and_has_ticks(values: list[float]) -> None:
    span = around(values)
    assert all(value in span for value in values)
    assert 0 <= span.low < span.high <= 100
    assert 2 <= len(span.ticks()) <= 12


def test_a_logarithmic_range_has_its_middle_between_the_ends() -> None:
    span = Span(0.001, 1, log=True)
    assert span.at(0.1) == pytest.approx(2 / 3)
    assert span.ticks() == [0.001, 0.01, 0.1, 1.0]


def test_curves_show_the_end_of_what_is_compared() -> None:
    found = Layout.of(finished_study())
    (panel,), span = curves(found)
    for line, cell in zip(panel.lines, finished_study().cells, strict=True):
        ends = [one.result.curve[-1] for one in cell.done]
        assert line.ends == ends
        assert line.points[-1][2] == pytest.approx(sum(ends) / 3)
        assert all(end in span for end in ends)
    assert [line.colour for line in panel.lines] == ["sgd", "sbs"]
    assert len(panel.labels(span)) == 2


# Layers.


def layer(name: str, probability: float | None, **more: Any) -> dict[str, Any]:
    usual = {"name": name, "kind": "conv", "size": 3, "batches": 1.5}
    return {**usual, "probability": probability, **more}


def study(*lines: list[dict[str, Any]]) -> StudyResults:
    """Return local-global with one trial a cell, which has these layers in its epochs."""
    metrics = [{"epoch": epoch, "lr": 0.1, "layers": layers} for epoch, layers in enumerate(lines)]
    return made_up(STUDIES["local-global"], SCALES["demo"], metrics)


def test_every_layer_has_a_row_and_every_epoch_a_column() -> None:
    lines = [[layer("a", 0.25), layer("b", 0.5)], [layer("a", 0.75), layer("b", 1.0)]]
    found, left_out = heats(Layout.of(study(*lines)))
    assert found[0].epochs == [1, 2]
    assert found[0].rows == [("a", 3, [0.25, 0.75]), ("b", 3, [0.5, 1.0])]
    assert [heat.title for heat in found] == ["Scheme alpha -0.1", "Scheme alpha 0"]
    assert left_out[0].options.endswith("--only 'scheme=alpha 0.1'")


def test_the_map_of_a_real_run_has_what_its_metrics_have() -> None:
    (heat,), left_out = heats(Layout.of(finished_study()))
    trials = finished_study().cells[1].done
    means = [
        sum(trial.metrics[1]["layers"][row]["probability"] for trial in trials) / 3
        for row in range(len(heat.rows))
    ]
    shown = [values[1] for _, _, values in heat.rows]
    assert shown.count(-1) <= 2  # layers of which no weight moved
    for value, expected in zip(shown, means, strict=True):
        assert value in (-1, pytest.approx(expected))
    assert left_out == []


def test_a_layer_that_never_moved_is_told_by_its_batches_and_no_number_is_a_gap() -> None:
    steps = math.ceil(999 / 16)
    still = layer("a", 0.25, batches=(steps + 1) / 2)
    found, _ = heats(Layout.of(study([still], [layer("a", None)], [layer("a", 0.25)])))
    assert found[0].rows == [("a", 3, [-1.0, None, 0.25])]


def test_a_trial_without_a_number_does_not_take_it_from_the_others() -> None:
    whole = study([layer("a", 0.25)], [layer("a", 0.5)])
    cell = whole.cells[0]
    broken = with_metrics(replace(cell.outcomes[0]), epochs(0.1, layers=[layer("a", None)]))
    cells = (replace(cell, outcomes=(cell.outcomes[0], broken)), *whole.cells[1:])
    found, _ = heats(Layout.of(replace(whole, cells=cells)))
    assert found[0].rows == [("a", 3, [0.25, 0.5])]


def test_very_many_layers_are_shown_by_kind_and_many_epochs_in_steps() -> None:
    layers = [layer(f"layer {number}", 0.25) for number in range(50)]
    found, _ = heats(Layout.of(study(*[layers] * 30)))
    assert [(name, size) for name, size, _ in found[0].rows] == [("conv", 150)]
    assert found[0].epochs == [3, 6, 9, 12, 15, 18, 21, 24, 27, 30]


# Colours.


def test_a_method_has_its_colour_wherever_it_stands() -> None:
    assert colours({"SBS": "sbs", "SGD": "sgd"}) == {"SBS": "sbs", "SGD": "sgd"}
    assert colours({"mine": "sbs", "other": "sgd"}) == {"mine": "sbs", "other": "sgd"}
    assert colours({"Accelerated-SGD": "acc-sgd"}) == {"Accelerated-SGD": "acc"}


def test_labels_have_different_colours_as_long_as_there_are_any() -> None:
    few = colours({f"label {number}": "sgd" for number in range(len(FREE))})
    assert len(set(few.values())) == len(FREE)
    many = colours({f"label {number}": "sgd" for number in range(20)})
    assert set(many.values()) <= set(COLOURS)
    by_method = colours({f"rate {n}": ("sgd", "sbs")[n % 2] for n in range(20)})
    assert set(by_method.values()) == {"sgd", "sbs"}


@pytest.mark.parametrize("value", ["9.1", "88.4", "100.0", "↓ 20.0, ep. 2"])
def test_a_short_label_leaves_room_for_its_number(value: str) -> None:
    label, number = short("Entropy-SGD as printed", value)
    assert len(label + number) <= BRIEF
    assert label.startswith("Entropy")
    assert number == value.split(",")[0]
    assert short("SGD", value)[0] == "SGD"
