"""Invariant: the curve has what the metrics have, and needs no display."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from stochbatch.report import learning_curve
from stochbatch.report.curve import CurveError, draw
from stochbatch.training import Trial
from tests.trained import trained


def made_up(metrics: list[dict[str, Any]]) -> Any:
    return SimpleNamespace(trial=Trial(), metrics=metrics)


def line(epoch: int, **changes: Any) -> dict[str, Any]:
    numbers = ("lr", "train_loss", "train_accuracy", "test_loss", "test_accuracy")
    return {"epoch": epoch, **dict.fromkeys(numbers, 1.0), **changes}


def test_the_picture_is_a_picture(tmp_path: Path) -> None:
    path = learning_curve([trained()], tmp_path / "curve.png")
    with Image.open(path) as picture:
        assert picture.width > 600
        assert len(picture.convert("RGB").getcolors(1 << 20)) > 10
    assert [file.name for file in tmp_path.iterdir()] == ["curve.png"]


def test_curves_are_those_of_the_metrics() -> None:
    read = trained()
    accuracy, loss, rate = draw([read]).axes
    assert accuracy.get_ylabel() == "accuracy (%)"
    for panel, what in ((accuracy, "accuracy"), (loss, "loss")):
        for drawn, part in zip(panel.lines, ("test", "train"), strict=True):
            assert drawn.get_label() == part
            expected = [epoch[f"{part}_{what}"] for epoch in read.metrics]
            np.testing.assert_array_equal(drawn.get_ydata(), expected)
            np.testing.assert_array_equal(drawn.get_xdata(), range(1, 11))
    np.testing.assert_array_equal(
        rate.lines[0].get_ydata(), [epoch["lr"] for epoch in read.metrics]
    )


def test_sbs_has_a_panel_of_batches_by_kind() -> None:
    read = trained("sbs", 3)
    panel = draw([read]).axes[2]
    kinds = {layer["kind"] for layer in read.metrics[0]["layers"]}
    assert {drawn.get_label() for drawn in panel.lines} == kinds
    assert all(min(drawn.get_ydata()) >= 1 for drawn in panel.lines)


def test_several_runs_are_told_apart(tmp_path: Path) -> None:
    """By their methods, and by what else differs between their trials."""
    labels = [drawn.get_label() for drawn in draw([trained(), trained("sbs", 3)]).axes[0].lines]
    names = ("SGD, epochs=10", "SBS, epochs=3")
    assert set(labels) == {f"{name}, {what}" for name in names for what in ("test", "train")}


def test_a_run_whose_plugin_is_missing_goes_by_its_name() -> None:
    run = made_up([line(0)])
    run.trial = SimpleNamespace(method="gone", network="vgg_tiny", dataset="digits", seed=3)
    assert draw([run]).get_suptitle() == "gone: vgg_tiny on digits, seed 3"


def test_a_diverged_run_has_a_curve_as_far_as_it_went() -> None:
    read = made_up([line(0), line(1, train_loss=None, test_loss=None)])
    assert [list(drawn.get_xdata()) for drawn in draw([read]).axes[1].lines] == [[1], [1]]


def test_epochs_without_an_evaluation_are_bridged_and_not_drawn_as_zero() -> None:
    without = [{"epoch": epoch, "lr": 1.0, "train_accuracy": 50.0} for epoch in range(4)]
    test, _ = draw([made_up(without)]).axes[0].lines
    assert list(test.get_xdata()) == []
    without[1]["test_accuracy"], without[3]["test_accuracy"] = 60.0, 70.0
    test, train = draw([made_up(without)]).axes[0].lines
    assert list(zip(test.get_xdata(), test.get_ydata(), strict=True)) == [(2, 60.0), (4, 70.0)]
    assert list(train.get_xdata()) == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["curve.svg", "curve.pdf"])
def test_other_formats_go_by_the_name(tmp_path: Path, name: str) -> None:
    assert learning_curve([made_up([line(0)])], tmp_path / name).stat().st_size > 1000


@pytest.mark.parametrize(
    ("metrics", "name", "message"),
    [
        ([], "curve.png", "before the first epoch is done"),
        ([line(0)], "curve.bmp", "curve.bmp: a curve must end in .png, .svg or .pdf"),
        ([line(0)], "none/curve.png", "cannot write .*none/curve.png: No such file"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(
    metrics: list[dict[str, Any]], name: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(CurveError, match=message):
        learning_curve([made_up(metrics)], tmp_path / name)
