"""Invariant: the page answers first, and shows everything that tuning tried."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stochbatch.report import write_report
from stochbatch.report.answer import headline
from stochbatch.report.formatting import minus
from stochbatch.report.layout import Layout
from stochbatch.report.tried import by_budget, charts, costs, expected_best, tried
from stochbatch.studies import StudyResults, compare
from stochbatch.studies.conclusions import conclusions
from tests.engine_here import run_trials
from tests.report.test_page import Page


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> StudyResults:
    """Three settings each with all three seeds, one of them so high that it may break."""
    return compare(
        ["sgd", "sbs"],
        root=tmp_path_factory.mktemp("runs"),
        quiet=True,
        run_trials=run_trials,
        **{"share": 0.1, "epochs": 2, "budget": 3, "seeds": 2, "batch_size": 32, "width": 0.25},
    )


def test_the_page_begins_with_the_answer(compared: StudyResults, tmp_path: Path) -> None:
    file = write_report(compared, tmp_path / "report", figures=False)
    page = Page(file.read_text(encoding="utf-8"))
    text = " ".join("".join(page.text).split())
    (sentence,) = conclusions(compared)
    (h1,) = re.findall("<h1>(.*?)</h1>", file.read_text(encoding="utf-8"))
    assert h1 == headline(Layout.of(compared))
    assert text.index(h1) < text.index(minus(sentence)) < text.index("Results by seed Test")
    assert sentence in (tmp_path / "report/table.md").read_text(encoding="utf-8")
    for one in compared.tuned:
        for setting in one.tried:
            assert str(setting) in text
    charts = {part.get("aria-label") for part in page.all("svg")}
    assert "Validation accuracy of SBS against learning rate" in charts
    assert "tuning" in {attributes.get("id") for _, attributes in page.elements}


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
    panel = charts(layout)[0].panels[0]
    assert (panel.chosen, panel.note) == (None, "nothing was chosen yet.")
    assert len(panel.dots) == 6


def test_there_is_a_dot_for_every_training_and_an_edge_is_said(
    compared: StudyResults, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout.of(compared)
    (chart,) = charts(layout)
    assert [(panel.label, len(panel.dots)) for panel in chart.panels] == [("SGD", 9), ("SBS", 9)]
    for panel, one in zip(chart.panels, compared.tuned, strict=True):
        assert panel.chosen.value == one.winner.settings["lr"]
        assert panel.note == f"{panel.chosen.value:g} was chosen."
    assert (chart.what, chart.x.log, (chart.x.low, chart.x.high)) == (
        "learning rate",
        True,
        compared.study.tuning.spaces["SGD"]["lr"].ends,
    )
    monkeypatch.setattr(type(compared.tuned[0]), "at_edge", lambda self, tuning: ["lr"])
    (chart,) = charts(layout)
    assert "at the edge of what was tried" in chart.panels[0].note


def test_a_training_that_diverged_is_a_cross(compared: StudyResults) -> None:
    one = compared.tuned[0]
    broken = tuple(replace(outcome, status="diverged") for outcome in one.tried[0].outcomes)
    for outcome in broken:
        result = outcome.result.model_copy(update={"status": "diverged"})
        object.__setattr__(outcome, "result", result)
    first = replace(one, tried=(replace(one.tried[0], outcomes=broken), *one.tried[1:]))
    (chart,) = charts(Layout.of(replace(compared, tuned=(first, compared.tuned[1]))))
    assert [dot.accuracy for dot in chart.panels[0].dots[:3]] == [None] * 3
    assert chart.panels[0].dots[0].tip.endswith(": diverged")


def test_costs_are_counted_over_tuning_and_verdict(compared: StudyResults) -> None:
    rows = costs(Layout.of(compared)).rows
    batches = 2 * -(-135 // 32)  # epochs times batches of an epoch
    assert [row[:3] for row in rows] == [
        [label, "11", f"{11 * batches:,}"] for label in ("SGD", "SBS")
    ]


def test_smaller_budgets_are_shown_where_all_settings_got_all_seeds(
    compared: StudyResults,
) -> None:
    table = by_budget(Layout.of(compared))
    assert table is not None
    assert table.head == ["method", "1 tried", "2 tried", "3 tried"]
    assert [row[0] for row in table.rows] == ["SGD", "SBS"]
    partly = replace(compared.tuned[0].tried[0], outcomes=compared.tuned[0].tried[0].outcomes[:1])
    first = replace(compared.tuned[0], tried=(partly, *compared.tuned[0].tried[1:]))
    fewer = replace(compared, tuned=(first, *compared.tuned[1:]))
    left = by_budget(Layout.of(fewer))
    assert left is not None
    assert [row[0] for row in left.rows] == ["SBS"]


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
