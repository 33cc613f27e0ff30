"""Invariant: every number of a report is the textbook's, and doubt is never a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from stochbatch.studies import CellOutcomes, Outcome, Published, Scale, Study, StudyResults
from stochbatch.studies.statistics import (
    Interval,
    bootstrap_interval,
    cell_verdict,
    claim_verdict,
    holm,
    statistics,
    t_interval,
    t_test,
)
from stochbatch.training import Accuracy, DataFacts, Result

STUDY = Study.from_text(
    """
    title = "Two methods"
    [base]
    epochs = 1
    [[axes]]
    name = "batch size"
    field = "batch_size"
    values = [16, 128]
    [[axes]]
    name = "method"
    values = ["sgd", "sbs"]
    field = "method"
    [claim]
    axis = "method"
    better = "sbs"
    than = "sgd"
    """,
    "two",
)
FULL = Scale("full", "As published.", repetitions=3, comparable=True)
REDUCED = Scale("reduced", "Less.", repetitions=3)
FACTS = DataFacts(
    train_sha256="", test_sha256="", official=True, train_images=999, test_images=1, mean=(), std=()
)
ACCURACY = st.floats(0, 100, width=32)


def result(trial: Any, accuracy: float | None, **changes: Any) -> Result:
    fields = {
        "status": "finished",
        "trial": trial.model_dump(),
        "trial_hash": trial.hash,
        "epochs": 1,
        "accuracy": accuracy
        if accuracy is None
        else Accuracy(mean=accuracy, max=min(100, accuracy + 1), final=accuracy, best_epoch=0),
        "train_loss": None,
        "curve": [] if accuracy is None else [accuracy],
        "parameters": 1,
        "data": FACTS,
        "weights_sha256": "",
        "times": {},
        "environment": {},
    }
    return Result(**{**fields, **changes})


def with_metrics(outcome: Outcome, lines: list[dict[str, Any]]) -> Outcome:
    """Return the outcome with these metrics instead of those on the disk."""
    made_up = type("MadeUp", (Outcome,), {"metrics": lines})
    return made_up(outcome.trial, outcome.folder, outcome.status, outcome.result)


def results(
    *columns: Sequence[float | None],
    scale: Scale = FULL,
    published: Published | None = None,
    only: Any = None,
    diverged: bool = False,
    study: Study = STUDY,
) -> StudyResults:
    """Return a study with these accuracies, a column a cell; None is a missing trial."""
    cells = []
    for number, cell in enumerate(study.cells(scale, only)):
        object.__setattr__(cell, "published", published)
        outcomes = []
        for seed, accuracy in enumerate(columns[number] if number < len(columns) else ()):
            trial = cell.trial(seed)
            status = "missing" if accuracy is None else "diverged" if diverged else "finished"
            over = None if accuracy is None else result(trial, accuracy, status=status)
            outcomes.append(Outcome(trial, Path(trial.folder), status, over))
        cells.append(CellOutcomes(cell, tuple(outcomes)))
    return StudyResults(study, scale, Path(), tuple(cells))


# By hand, from a table of t: 97.5 % points 12.706 (1 degree of freedom), 4.3027 (2), 2.7764 (4).


def test_a_cell_has_the_mean_spread_and_interval_computed_by_hand() -> None:
    cell = statistics(results([90.0, 92.0, 94.0])).cells[0]
    assert (cell.n, cell.mean, cell.std) == (3, 92.0, 2.0)
    assert cell.interval.low == pytest.approx(92 - 4.3027 * 2 / math.sqrt(3), abs=1e-4)
    assert cell.interval.high == pytest.approx(92 + 4.3027 * 2 / math.sqrt(3), abs=1e-4)
    assert cell.interval.half_width == pytest.approx(4.9683, abs=1e-4)


def test_the_best_epoch_of_the_mean_curve_is_over_epochs_that_all_have() -> None:
    study = results([50.0, 50.0])
    curves = ([60.0, None, 80.0, 10.0], [40.0, 99.0, 30.0])
    outcomes = tuple(
        replace(one, result=one.result.model_copy(update={"curve": curve}))
        for one, curve in zip(study.cells[0].outcomes, curves, strict=True)
    )
    cells = (replace(study.cells[0], outcomes=outcomes), *study.cells[1:])
    found = statistics(replace(study, cells=cells)).cells
    assert found[0].curve_best == 55.0
    assert found[1].curve_best is None


def test_both_readings_of_max_are_given() -> None:
    cell = statistics(results([90.0, 92.0, 97.0])).cells[0]
    assert (cell.best, cell.mean_best) == (98.0, 94.0)


def test_a_claim_has_the_paired_difference_computed_by_hand() -> None:
    # Differences 1, 2, 3: mean 2, deviation 1, t = 2 sqrt 3 with 2 degrees of freedom, for
    # which the distribution has a closed form: p = 1 - t / sqrt(2 + t^2) = 1 - sqrt(12 / 14).
    claim = statistics(results([90.0, 80.0, 70.0], [91.0, 82.0, 73.0])).claims[0]
    assert (claim.pairs, claim.difference) == (3, 2.0)
    assert claim.p == pytest.approx(1 - math.sqrt(12 / 14))
    assert claim.interval.low == pytest.approx(2 - 4.3027 / math.sqrt(3), abs=1e-4)
    assert claim.bootstrap == Interval(1.0, 3.0)


def test_pairing_is_by_seed_and_seeds_without_a_partner_are_left_out() -> None:
    claim = statistics(results([None, 80.0, 70.0, 60.0], [99.0, 81.0, None, 62.0])).claims[0]
    assert (claim.pairs, claim.difference, claim.verdict) == (2, 1.5, "too few trials")


def test_a_difference_that_pairing_reveals_is_confirmed() -> None:
    seeds = [90.0, 80.0, 70.0, 60.0, 50.0]
    claim = statistics(
        results(seeds, [one + more for one, more in zip(seeds, (1, 1.1, 0.9, 1, 1.2), strict=True)])
    ).claims[0]
    assert claim.verdict == "confirmed"
    assert claim.corrected_p == pytest.approx(2 * claim.p)  # two claim cells, one without trials


def test_the_opposite_difference_is_contradicted() -> None:
    seeds = [90.0, 80.0, 70.0, 60.0, 50.0]
    down = [one - less for one, less in zip(seeds, (1, 1.1, 0.9, 1, 1.2), strict=True)]
    assert statistics(results(seeds, down)).claims[0].verdict == "contradicted"


def test_correction_is_over_all_claim_cells_of_the_table() -> None:
    found = statistics(
        results([1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [1.0, 2.0, 3.0], [2.0, 3.5, 3.9])
    ).claims
    first, second = sorted(claim.p for claim in found)
    assert sorted(claim.corrected_p for claim in found) == pytest.approx(
        [2 * first, max(2 * first, second)]
    )


def test_the_update_probability_counts_every_weight_every_epoch_and_every_trial_alike() -> None:
    study = results([90.0, 92.0, 94.0])
    outcomes = []
    for outcome, chance in zip(study.cells[0].outcomes, (0.1, 0.2, None), strict=True):
        layers = [
            {"size": 3, "probability": chance},
            {"size": 1, "probability": 0.5},
            {"size": 9, "probability": None},
        ]
        lines = [{"layers": layers}, {"layers": layers[1:2]}, {}]
        outcomes.append(with_metrics(outcome, lines))
    cells = (replace(study.cells[0], outcomes=tuple(outcomes)), *study.cells[1:])
    study = replace(study, cells=cells)
    first = ((3 * 0.1 + 0.5) / 4 + 0.5) / 2
    second = ((3 * 0.2 + 0.5) / 4 + 0.5) / 2
    cells = statistics(study).cells
    assert cells[0].update_probability == pytest.approx((first + second + 0.5) / 3)
    assert cells[1].update_probability is None


def test_diverged_trials_count_and_are_counted() -> None:
    cell = statistics(results([10.0, 10.0, 40.0], diverged=True)).cells[0]
    assert (cell.n, cell.diverged, cell.mean) == (3, 3, 20.0)


def test_a_trial_that_diverged_before_any_evaluation_has_no_accuracy() -> None:
    study = results([50.0, 60.0])
    first = study.cells[0]
    broken = first.cell.trial(2)
    outcome = Outcome(broken, Path(), "diverged", result(broken, None, status="diverged"))
    cell = CellOutcomes(first.cell, (*first.outcomes, outcome))
    got = statistics(StudyResults(STUDY, FULL, Path(), (cell,))).cells[0]
    assert (got.n, got.diverged, got.mean) == (2, 1, 55.0)


@pytest.mark.parametrize(
    ("mean", "verdict"),
    [(92.0, "agrees"), (96.9, "agrees"), (87.1, "agrees"), (97.0, "lower"), (87.0, "higher")],
)
def test_verdict_of_a_cell_says_how_ours_stand_to_the_article(mean: float, verdict: str) -> None:
    cell = statistics(results([90.0, 92.0, 94.0], published=Published(mean, None))).cells[0]
    assert cell.verdict == verdict


def test_two_trials_are_too_few_for_a_verdict() -> None:
    cell = statistics(results([90.0, 92.0], published=Published(91.0, None))).cells[0]
    assert cell.verdict == "too few trials"


def test_without_a_published_value_a_cell_is_not_comparable() -> None:
    assert statistics(results([90.0, 92.0, 94.0])).cells[0].verdict is None


def test_at_a_reduced_scale_only_claims_have_verdicts() -> None:
    columns = [90.0, 80.0, 70.0, 60.0], [91.0, 81.2, 70.9, 61.1]
    found = statistics(results(*columns, scale=REDUCED, published=Published(90.0, None)))
    assert {cell.verdict for cell in found.cells} == {None}
    assert found.claims[0].verdict == "confirmed"


def test_one_trial_has_a_mean_and_nothing_else() -> None:
    found = statistics(results([90.0], [91.0], published=Published(90.0, None)))
    cell, claim = found.cells[0], found.claims[0]
    assert (cell.mean, cell.std, cell.interval, cell.verdict) == (
        90.0,
        None,
        None,
        "too few trials",
    )
    assert (claim.pairs, claim.difference, claim.interval, claim.bootstrap) == (1, 1.0, None, None)
    assert (claim.p, claim.corrected_p, claim.verdict) == (None, None, "too few trials")


def test_a_study_that_was_not_run_has_no_numbers() -> None:
    found = statistics(results(published=Published(90.0, None)))
    assert [cell.n for cell in found.cells] == [0] * 4
    assert {cell.mean for cell in found.cells} == {None}
    assert {claim.verdict for claim in found.claims} == {"too few trials"}


def test_without_its_baseline_a_claim_has_no_pairs() -> None:
    found = statistics(results([90.0] * 3, [91.0] * 3, only={"method": ["sbs"]}))
    assert [(claim.baseline, claim.pairs) for claim in found.claims] == [(None, 0)] * 2
    assert {claim.verdict for claim in found.claims} == {"too few trials"}


def test_without_a_claim_there_are_none() -> None:
    study = results([90.0])
    plain = STUDY.model_copy(update={"claims": []})
    assert statistics(StudyResults(plain, FULL, Path(), study.cells)).claims == ()


def test_equal_accuracies_have_an_interval_without_width() -> None:
    found = statistics(results([90.1] * 3, published=Published(90.1, None))).cells[0]
    assert found.interval.half_width == pytest.approx(0, abs=1e-12)
    assert found.verdict == "agrees"


def test_three_equal_differences_are_not_certainty() -> None:
    # 70.3 - 70.1 and 90.3 - 90.1 differ in the last bit: rounding must not pass for a spread.
    claim = statistics(results([70.1, 90.1, 50.1], [70.3, 90.3, 50.3])).claims[0]
    assert (claim.p, claim.verdict) == (0.25, "undecided")


def test_no_difference_at_all_is_undecided() -> None:
    claim = statistics(results([90.0, 91.0, 92.0], [90.0, 91.0, 92.0])).claims[0]
    assert (claim.difference, claim.p, claim.verdict) == (0.0, 1.0, "undecided")


@settings(deadline=None)
@given(st.lists(ACCURACY, min_size=2, max_size=12))
def test_interval_and_p_are_those_of_scipy(values: list[float]) -> None:
    if np.std(values) < 1e-3:
        return
    low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
    got = t_interval(values)
    assert (got.low, got.high) == pytest.approx((low, high), rel=1e-6, abs=1e-6)
    assert t_test(values) == pytest.approx(stats.ttest_1samp(values, 0).pvalue, rel=1e-6, abs=1e-12)


@settings(deadline=None)
@given(st.lists(ACCURACY, min_size=2, max_size=12))
def test_a_resampled_mean_stays_among_the_values(values: list[float]) -> None:
    got = bootstrap_interval(values)
    assert min(values) - 1e-9 <= got.low <= got.high <= max(values) + 1e-9
    assert got == bootstrap_interval(values)


def test_the_bootstrap_is_near_that_of_scipy() -> None:
    values = np.random.default_rng(1).normal(1, 1, 10)
    theirs = stats.bootstrap((values,), np.mean, method="percentile", random_state=0)
    got = bootstrap_interval(list(values))
    assert (got.low, got.high) == pytest.approx(tuple(theirs.confidence_interval), abs=0.05)


def test_holm_of_a_textbook_example() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@settings(deadline=None)
@given(st.lists(st.none() | st.floats(0, 1), max_size=12))
def test_holm_is_never_below_p_nor_above_bonferroni_and_keeps_the_order(
    given_ps: list[float | None],
) -> None:
    corrected = holm(given_ps)
    pairs = [(p, c) for p, c in zip(given_ps, corrected, strict=True) if p is not None]
    assert [p is None for p in given_ps] == [c is None for c in corrected]
    assert all(p <= c <= min(1, p * len(given_ps)) + 1e-15 for p, c in pairs)
    ordered = [c for _, c in sorted(pairs)]
    assert ordered == sorted(ordered)


@settings(deadline=None)
@given(st.lists(ACCURACY, min_size=1, max_size=6), st.lists(ACCURACY, min_size=1, max_size=6))
def test_swapping_both_sides_of_a_claim_swaps_its_verdict(
    ours: list[float], theirs: list[float]
) -> None:
    one = statistics(results(theirs, ours)).claims[0]
    other = statistics(results(ours, theirs)).claims[0]
    assert one.difference == pytest.approx(-other.difference)
    assert one.p == other.p
    swapped = {"confirmed": "contradicted", "contradicted": "confirmed"}
    assert other.verdict == swapped.get(one.verdict, one.verdict)


@settings(deadline=None)
@given(ACCURACY, st.lists(ACCURACY, min_size=3, max_size=6))
def test_a_cell_has_one_of_three_verdicts(published: float, values: list[float]) -> None:
    interval = t_interval(values)
    verdict = cell_verdict(published, interval, len(values), True)
    assert verdict in ("agrees", "higher", "lower")
    assert (verdict == "agrees") == (published in interval)


def test_no_verdict_needs_more_than_a_corrected_p() -> None:
    assert claim_verdict(0.1, 0.049, 3) == "confirmed"
    assert claim_verdict(0.1, 0.05, 3) == "undecided"
    assert claim_verdict(0.1, 0.0, 2) == "too few trials"


def test_a_table_without_any_effect_raises_a_false_alarm_in_one_of_twenty() -> None:
    # 2,000 tables of 12 claims on 5 pairs each, all without effect. Holm promises at most 5 %
    # of tables with any verdict; independent claims come near it, 4.9 %: 98 tables, standard
    # deviation 9.6. Bounds are at 5 deviations: another seed would fail 6 times in 10 million.
    generator = np.random.default_rng(0)
    alarms = 0
    for _ in range(2000):
        ps = [t_test(list(values)) for values in generator.normal(size=(12, 5))]
        alarms += any(claim_verdict(1.0, p, 5) == "confirmed" for p in holm(ps))
    assert 98 - 48 < alarms < 98 + 48


def test_intervals_cover_the_truth_in_nineteen_of_twenty() -> None:
    # 5,000 intervals of 3 values: 4,750 cover, standard deviation 15.4; bounds at 5 of them.
    generator = np.random.default_rng(0)
    covered = sum(90.0 in t_interval(list(row)) for row in generator.normal(90, 2, size=(5000, 3)))
    assert 4750 - 77 < covered < 4750 + 77
