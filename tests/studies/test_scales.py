"""Invariant: a scale makes trials smaller, and none too small to learn anything."""

from __future__ import annotations

import pytest

from stochbatch.studies import SCALES, STUDIES
from stochbatch.studies.scales import LEAST_SHARE

DEMO = SCALES["demo"]


def shares(name: str) -> list[float]:
    return sorted({cell.trial(0).share for cell in STUDIES[name].cells(DEMO)})


def test_the_demo_trains_on_42_digits_at_least() -> None:
    assert round(LEAST_SHARE * 1352) == 42
    assert shares("readings") == [1 / 32]


def test_the_limit_changes_nothing_where_there_was_enough() -> None:
    assert shares("partial-data") == [1 / 32, 1 / 16, 1 / 8]
    assert shares("comparison") == [1 / 4]


@pytest.mark.parametrize(
    ("share", "reduced"),
    [(1.0, 0.25), (0.2, 0.05), (0.125, 1 / 32), (0.05, 1 / 32), (1 / 32, 1 / 32), (0.02, 0.02)],
)
def test_a_share_is_a_quarter_but_never_below_the_limit_nor_larger_than_it_was(
    share: float, reduced: float
) -> None:
    assert DEMO.reduced({"share": share})["share"] == pytest.approx(reduced)
    assert SCALES["paper"].reduced({"share": share})["share"] == share


def test_small_takes_an_eighth_of_what_is_whole_and_all_of_stl10() -> None:
    small = SCALES["small"]
    for dataset, share, reduced in (
        ("cifar10", 1.0, 0.125),
        ("svhn", 1.0, 0.125),
        ("stl10", 1.0, 1.0),
        ("cifar10", 0.25, 0.25),  # of partial-data
    ):
        assert small.reduced({"dataset": dataset, "share": share})["share"] == reduced


@pytest.mark.parametrize(
    "name", ["lr-schedules", "batch-momentum", "local-global", "partial-data", "comparison"]
)
def test_the_article_is_rerun_with_the_start_under_which_its_sgd_comes_out(name: str) -> None:
    def starts(scale: str) -> set[str]:
        return {cell.trial(0).norm_init for cell in STUDIES[name].cells(SCALES[scale])}

    assert starts("paper") == starts("small") == {"uniform"}
    assert starts("demo") == {"ones"}


def test_small_has_the_cells_that_it_says() -> None:
    cells = STUDIES["comparison"].cells(SCALES["small"])
    places = {(cell.fields["dataset"], cell.fields["network"]) for cell in cells}
    datasets = ("cifar10", "svhn", "stl10")
    assert places == {("cifar10", "resnet18"), *((name, "vgg11") for name in datasets)}
    assert {cell.fields["batch_size"] for cell in cells} == {16, 128}
    assert len(cells) == 4 * 2 * 7
    assert {cell.fields["width"] for cell in cells} == {0.25}
    assert len(STUDIES["partial-data"].cells(SCALES["small"])) == 2 * 4 * 3 * 2
