"""Invariant: the batches of every layer are drawn as the metrics have them, in images."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from stochbatch.report.batch_sizes import NAMED
from stochbatch.report.figures import gallery
from stochbatch.report.layout import Layout
from stochbatch.report.plotting import Sketch
from stochbatch.studies import SCALES, STUDIES, StudyResults
from tests.report.finished_study import finished_study
from tests.report.test_figures import epochs, made_up, named
from tests.studies.test_statistics import with_metrics

SIZE = 16


def layer(name: str, batches: float | None, kind: str = "conv") -> dict[str, Any]:
    return {"name": name, "kind": kind, "size": 3, "probability": 0.5, "batches": batches}


def study(*lines: list[dict[str, Any]]) -> StudyResults:
    """Return local-global with one trial a cell, which has these layers in its epochs."""
    metrics = [{"epoch": epoch, "lr": 0.1, "layers": layers} for epoch, layers in enumerate(lines)]
    return made_up(STUDIES["local-global"], SCALES["demo"], metrics)


def first_map(results: StudyResults) -> Sketch:
    return named(results)["layers-vgg-tiny-alpha-0.1"]


def picture(sketch: Sketch) -> np.ndarray[Any, Any]:
    """Return the numbers of a map, with NaN where it has none."""
    return np.ma.filled(sketch.figure().axes[0].images[0].get_array(), np.nan)


def test_batches_of_kinds_are_counted_in_images() -> None:
    found = named(study([layer("a", 2.5)]))["batches-vgg-tiny"]
    assert "alpha 0: conv 40;" in found.alt


def test_every_layer_has_a_row_and_every_epoch_a_column() -> None:
    found = first_map(
        study(
            [layer("a", 1.0), layer("b", 2.5, "bias")],
            [layer("a", 3.0), layer("b", 8.0, "bias")],
        )
    )
    panel = found.figure().axes[0]
    assert [text.get_text() for text in panel.get_yticklabels()] == ["a (conv)", "b (bias)"]
    np.testing.assert_array_equal(picture(found), [[16, 48], [40, 128]])
    assert panel.images[0].get_extent() == [0.5, 2.5, 1.5, -0.5]
    assert "In the last epoch b (bias) has most, 128, and a (conv) least, 48." in found.alt


def test_the_map_of_a_real_run_has_what_its_metrics_have() -> None:
    results = finished_study()
    found = named(results)["layers-16-sbs"]
    trials = next(cell for cell in results.cells if cell.cell.coordinates["method"] == "SBS").done
    assert len(trials) == 3
    expected = np.mean(
        [
            [[row["batches"] * SIZE for row in line["layers"]] for line in trial.metrics]
            for trial in trials
        ],
        axis=0,
    ).T
    np.testing.assert_allclose(picture(found), expected)
    assert not any("layers-16-sgd" in name for name in named(results))


def test_a_trial_without_a_number_does_not_take_it_from_the_others() -> None:
    results = study([layer("a", 2.0)], [layer("a", 4.0)])
    cell = results.cells[0]
    broken = with_metrics(replace(cell.outcomes[0]), epochs(0.1, layers=[layer("a", None)]))
    cells = (replace(cell, outcomes=(cell.outcomes[0], broken)), *results.cells[1:])
    np.testing.assert_array_equal(picture(first_map(replace(results, cells=cells))), [[32, 64]])


def test_a_batch_is_never_more_than_the_whole_training_set() -> None:
    results = study([layer("a", 2.0)])
    done = results.cells[0].outcomes[0].result
    assert done is not None
    few = done.model_copy(update={"data": done.data.model_copy(update={"train_images": 10})})
    object.__setattr__(results.cells[0].outcomes[0], "result", few)
    found = first_map(results)
    np.testing.assert_array_equal(picture(found), [[20]])
    assert found.figure().axes[0].images[0].get_clim() == pytest.approx((10, 20))


def test_an_epoch_without_numbers_is_a_gap_in_its_place() -> None:
    found = first_map(study([layer("a", None)], [layer("a", 2.0)]))
    np.testing.assert_array_equal(picture(found), [[math.nan, 32]])


def test_without_any_number_there_is_no_map() -> None:
    assert not [name for name in named(study([layer("a", None)])) if name.startswith("layers")]


@pytest.mark.parametrize(("batches", "highest"), [(1.01, 32), (50.0, 800)])
def test_colours_begin_at_one_batch_and_do_not_blow_up_small_differences(
    batches: float, highest: float
) -> None:
    found = first_map(study([layer("a", 1.0), layer("b", batches)]))
    assert found.figure().axes[0].images[0].get_clim() == pytest.approx((SIZE, highest))


def test_of_very_many_layers_some_are_named() -> None:
    layers = [layer(f"layer {number}", 1.0) for number in range(3 * NAMED + 1)]
    found = first_map(study(layers))
    assert len(picture(found)) == len(layers)
    figure = found.figure()
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.axes[0].get_yticklabels()]
    assert NAMED / 2 < len(boxes) <= NAMED
    assert all(above.y0 >= below.y1 - 1 for above, below in pairwise(boxes))


def test_more_maps_than_twelve_are_left_out_with_the_options_that_draw_them() -> None:
    layers = [layer("a", 2.0)]
    results = made_up(STUDIES["readings"], SCALES["demo"], epochs(0.1, layers=layers))
    found = gallery(Layout.of(results))
    assert len([one for one in found.sketches if one.name.startswith("layers")]) == 12
    (left_out,) = found.left_out
    assert left_out.text.startswith("9 more figures of batch sizes of layers:")
    assert left_out.options.startswith("--only")
