"""Invariant: a claim compares the cells that it names, in every place of the rest of the grid."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ttest_1samp

from stochbatch.studies import STUDIES, Study
from stochbatch.studies.statistics import statistics
from stochbatch.studies.verdicts import holm
from tests.studies.test_statistics import ACCURACY, results

STUDY = Study.from_text(
    """
    title = "Rates"
    [base]
    epochs = 1
    [[axes]]
    name = "batch size"
    field = "batch_size"
    values = [16, 128]
    [[axes]]
    name = "run"
    points = [
        { label = "sgd 1", lr = 0.1 },
        { label = "sgd 2", lr = 0.2 },
        { label = "sbs 1", lr = 0.1, method = "sbs" },
        { label = "sbs 2", lr = 0.2, method = "sbs" },
    ]
    [[claims]]
    name = "top"
    axis = "run"
    better = "sbs 1"
    than = ["sgd 1", "sgd 2"]
    best = true
    [[claims]]
    name = "equal"
    axis = "run"
    better = "sbs 1"
    than = "sgd 1"
    [[claims]]
    name = "large batches"
    axis = "batch size"
    better = "128"
    than = "16"
    """,
    "rates",
)
LOW, MIDDLE, HIGH = [10.0, 20.0, 30.0], [11.0, 22.0, 33.0], [50.0, 50.0, 50.0]


def test_a_label_that_is_the_best_stands_against_the_strongest_rival() -> None:
    columns = [LOW, MIDDLE, HIGH, MIDDLE, HIGH, MIDDLE, LOW, MIDDLE]
    first, second, *_ = statistics(results(*columns, study=STUDY)).claims
    assert (first.cell.key, first.baseline.key) == (("16", "sbs 1"), ("16", "sgd 2"))
    assert first.difference == pytest.approx(50 - 22)
    assert (second.cell.key, second.baseline.key) == (("128", "sbs 1"), ("128", "sgd 1"))
    assert second.place == {"batch size": "128"}
    (before, *_) = statistics(results([], MIDDLE, study=STUDY)).claims
    assert before.baseline.key == ("16", "sgd 2")  # the only one with a trial


def test_nothing_is_the_best_of_those_that_were_picked_and_a_lone_side_has_no_row() -> None:
    only = {"run": ["sbs 1", "sgd 1"], "batch size": ["16"]}
    (equal,) = statistics(results(LOW, HIGH, study=STUDY, only=only)).claims
    assert (equal.claim.name, equal.cell.key[1], equal.baseline.key[1]) == (
        "equal",
        "sbs 1",
        "sgd 1",
    )
    only = {"run": ["sgd 1"], "batch size": ["16"]}
    assert statistics(results(LOW, study=STUDY, only=only)).claims == ()


def test_claims_have_their_rows_in_the_order_of_the_study() -> None:
    rows = statistics(results(study=STUDY)).claims
    assert [row.claim.name for row in rows] == ["top"] * 2 + ["equal"] * 3 + ["large batches"] * 5
    assert [row.place for row in rows[5:]] == [
        *({"run": label} for label in ("sgd 1", "sgd 2", "sbs 1", "sbs 2")),
        {},
    ]


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(ACCURACY, min_size=3, max_size=3), min_size=8, max_size=8))
def test_correction_is_over_all_rows_of_all_claims(columns: list[list[float]]) -> None:
    rows = statistics(results(*columns, study=STUDY)).claims
    assert len(rows) == 10
    assert [row.corrected_p for row in rows] == holm([row.p for row in rows])


GROWTH = Study.from_text(
    """
    title = "Shares"
    [base]
    epochs = 1
    [[axes]]
    name = "batch size"
    field = "batch_size"
    values = [16, 128]
    [[axes]]
    name = "share"
    field = "share"
    values = [0.5, 0.25]
    [[axes]]
    name = "method"
    points = [{ label = "SGD", method = "sgd" }, { label = "SBS", method = "sbs" }]
    [[claims]]
    name = "few data"
    axis = "method"
    better = "SBS"
    than = "SGD"
    grows = { axis = "share", from = 0.5, to = 0.25 }
    """,
    "shares",
)


def test_a_gain_grows_by_the_difference_of_gains_averaged_seed_by_seed() -> None:
    # By batch size, share and method. Gains at 16: 1, 1, 1, then 2, 3, 7; at 128: 0, then 4.
    zero, one = [50.0, 60.0, 70.0], [51.0, 61.0, 71.0]
    columns = [zero, one, zero, [52.0, 63.0, 77.0], zero, zero, zero, [54.0, 64.0, 74.0]]
    (row,) = statistics(results(*columns, study=GROWTH)).claims
    grown = [(1 + 4) / 2, (2 + 4) / 2, (6 + 4) / 2]
    assert row.difference == pytest.approx(sum(grown) / 3)
    assert row.p == pytest.approx(ttest_1samp(grown, 0).pvalue)
    assert row.ahead == (2, 2)
    assert (row.cell, row.pairs, row.family) == (None, 3, "exploratory")


def test_a_gain_that_lacks_a_side_says_nothing_of_growth() -> None:
    columns = [[50.0] * 3, [51.0] * 3, [50.0] * 3, [], [50.0] * 3, [50.0] * 3, [50.0] * 3, []]
    (row,) = statistics(results(*columns, study=GROWTH)).claims
    assert (row.difference, row.pairs, row.verdict) == (None, 0, "0 of 3 pairs")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"axis": "method", "from": "SGD", "to": "SBS"}, "two labels of another axis"),
        ({"axis": "share", "from": 0.5, "to": 0.5}, "two labels of another axis"),
        ({"axis": "share", "from": 0.5, "to": 0.1}, "two labels of another axis"),
        ({"axis": "shares", "from": 0.5, "to": 0.25}, "about 'shares', axes are"),
    ],
)
def test_a_gain_grows_between_two_labels_of_another_axis(
    changes: dict[str, object], message: str
) -> None:
    fields = GROWTH.model_dump(by_alias=True)
    fields["claims"][0]["grows"] = changes
    with pytest.raises(ValueError, match=message):
        Study(**fields)


def test_a_study_with_growth_is_read_back_from_its_text() -> None:
    assert Study.from_text(GROWTH.to_toml("shares"), "shares") == GROWTH


def test_the_studies_claim_what_the_article_claims() -> None:
    rivals = ("Dropout", "Adaptive dropout", "Entropy-SGD", "Entropy-SGD as printed")
    less_sensitive = (
        "less sensitive to the batch size: the gain of SBS over SGD at batch size 128 is larger "
        "than that at batch size 16."
    )
    claimed = {
        "lr-schedules": [
            "Sigmoid is better than “constant 0.1” and “constant 0.01” and “constant 0.001” and "
            "“Exponential” and “RMSProp” and “Adam” and “Staircase” (schedule), all else being "
            "equal."
        ],
        "batch-momentum": [
            "momentum for large batches: the gain of momentum 0.9 over 0.0 at batch size 128 is "
            "larger than that at batch size 16."
        ],
        "local-global": [
            "alpha 0.1: alpha 0.1 is better than “alpha -0.1” and “alpha 0” and “alpha 1” "
            "(scheme), all else being equal.",
            "lambda -4: lambda -4 is better than “lambda 0” and “lambda -2” and “lambda -8” "
            "(scheme), all else being equal.",
        ],
        "partial-data": [
            "SBS against SGD: SBS is better than SGD (method), all else being equal.",
            "more where data are few: the gain of SBS over SGD at share 0.125 is larger than that "
            "at share 0.5.",
            less_sensitive,
        ],
        "comparison": [
            *(
                f"against {one}: SBS is better than {one} (method), all else being equal."
                for one in ("SGD", *rivals, "Accelerated-SGD")
            ),
            less_sensitive,
        ],
    }
    assert {name: [str(one) for one in STUDIES[name].claims] for name in claimed} == claimed
    primary = {name: [one.name for one in STUDIES[name].claims if one.primary] for name in claimed}
    assert {name: names for name, names in primary.items() if names} == {
        "partial-data": ["SBS against SGD"],
        "comparison": ["against SGD"],
    }
    assert all(
        one.best for name in ("lr-schedules", "local-global") for one in STUDIES[name].claims
    )
