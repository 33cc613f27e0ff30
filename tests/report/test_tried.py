"""Invariant: the page answers first, and shows everything that tuning tried."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stochbatch.report import write_report
from stochbatch.report.figures import gallery
from stochbatch.report.layout import Layout
from stochbatch.report.tried import costs, expected_best, tried
from stochbatch.studies import StudyResults, compare
from stochbatch.studies.conclusions import conclusions
from tests.report.test_page import Page


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> StudyResults:
    """Three settings each with all three seeds, one of them so high that it may break."""
    return compare(
        ["sgd", "sbs"],
        root=tmp_path_factory.mktemp("runs"),
        quiet=True,
        **{"share": 0.1, "epochs": 2, "budget": 3, "seeds": 2, "batch_size": 32, "width": 0.25},
    )


def test_the_page_begins_with_the_answer(compared: StudyResults, tmp_path: Path) -> None:
    file = write_report(compared, tmp_path / "report")
    page = Page(file.read_text(encoding="utf-8"))
    text = " ".join("".join(page.text).split())
    (sentence,) = conclusions(compared)
    assert text.index(sentence) < text.index("Accuracy Test accuracy in percent")
    assert sentence in (tmp_path / "report/table.md").read_text(encoding="utf-8")
    for one in compared.tuned:
        for setting in one.tried:
            assert str(setting) in text
    again = write_report(compared, tmp_path / "again")
    assert again.read_bytes() == file.read_bytes()


def test_without_figures_what_was_tried_is_still_there(
    compared: StudyResults, tmp_path: Path
) -> None:
    text = write_report(compared, tmp_path, figures=False).read_text()
    assert 'id="tuning"' in text
    assert "<img" not in text


def test_every_setting_has_a_row_with_its_seeds(compared: StudyResults) -> None:
    table = tried(Layout.of(compared))
    assert [row[0] for row in table.rows] == ["SGD"] * 3 + ["SBS"] * 3
    assert [row[-1].startswith("chosen") for row in table.rows].count(True) == 2
    assert all(row[-2].count(",") == 2 for row in table.rows)


def test_what_is_not_over_yet_is_shown_as_such(compared: StudyResults) -> None:
    one = compared.tuned[0]
    begun = replace(one.tried[0].outcomes[0], status="missing", result=None)
    first = replace(one.tried[0], outcomes=(begun,))
    early = replace(one, tried=(first, *one.tried[1:]), finalists=(), chosen=None)
    layout = Layout.of(replace(compared, tuned=(early, compared.tuned[1])))
    assert tried(layout).rows[0][1:] == [str(first), "–", "missing", ""]  # noqa: RUF001
    names = [sketch.name for sketch in gallery(layout).tuning]
    assert names == ["tuning-lr"]  # a result against the budget needs all of them


def test_there_is_a_dot_for_every_training_and_a_line_for_every_method(
    compared: StudyResults,
) -> None:
    dots, budget = gallery(Layout.of(compared)).tuning
    assert (dots.name, budget.name) == ("tuning-lr", "budget")
    panel = dots.figure().axes[0]
    drawn = [line for line in panel.lines if not line.get_label().startswith("_")]
    assert [(line.get_label(), len(line.get_xdata())) for line in drawn] == [("SGD", 9), ("SBS", 9)]
    lines = {line.get_label(): list(line.get_xdata()) for line in budget.figure().axes[0].lines}
    assert lines == {"SGD": [1, 2, 3], "SBS": [1, 2, 3]}


def test_costs_are_counted_over_tuning_and_verdict(compared: StudyResults) -> None:
    rows = costs(Layout.of(compared)).rows
    batches = 2 * -(-135 // 32)  # epochs times batches of an epoch
    assert [row[:3] for row in rows] == [
        [label, "11", f"{11 * batches:,}"] for label in ("SGD", "SBS")
    ]


@given(
    st.lists(
        st.lists(st.floats(0, 100, width=16), min_size=3, max_size=3), min_size=1, max_size=6
    ).filter(lambda rows: len({row[0] for row in rows}) == len(rows))
)
def test_the_expected_best_is_the_mean_over_all_choices(rows: list[list[float]]) -> None:
    found = expected_best(rows, 0)
    for size in range(1, len(rows) + 1):
        chosen = [max(some, key=lambda row: row[0]) for some in itertools.combinations(rows, size)]
        mean = sum((row[1] + row[2]) / 2 for row in chosen) / len(chosen)
        assert found[size - 1] == pytest.approx(mean)
