"""Invariant: every test is the textbook's, and each rule keeps the false alarms it promises.

The simulations draw normal differences with a fixed seed. Bounds are five standard deviations of
the count around what is expected: another seed would fail six times in ten million.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from stochbatch.studies.verdicts import (
    Pairs,
    decide,
    detectable,
    equivalence_test,
    holm,
    image_variance,
    t_interval,
    t_test,
)
from tests.studies.test_statistics import ACCURACY

DECIDED = {"better", "worse"}


def expected(tables: int, rate: float) -> range:
    """Return the counts within five standard deviations of the expected one."""
    reach = 5 * math.sqrt(tables * rate * (1 - rate))
    return range(max(0, math.ceil(tables * rate - reach)), math.floor(tables * rate + reach) + 1)


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
@given(st.lists(ACCURACY, min_size=2, max_size=12), st.floats(0.1, 100))
def test_equivalence_is_a_90_percent_interval_within_the_margin(
    values: list[float], margin: float
) -> None:
    if np.std(values) < 1e-3:
        return
    low, high = stats.t.interval(0.9, len(values) - 1, np.mean(values), stats.sem(values))
    if min(abs(low + margin), abs(high - margin)) > 1e-6:
        assert (equivalence_test(values, margin) < 0.05) == (-margin < low and high < margin)


@pytest.mark.parametrize(("count", "times"), [(3, 3.27), (5, 1.69), (8, 1.16), (10, 1.00)])
def test_a_difference_of_so_many_deviations_is_found_with_80_percent(
    count: int, times: float
) -> None:
    values = np.linspace(-1, 1, count)
    shift = detectable(list(values / values.std(ddof=1)))
    assert shift == pytest.approx(times, abs=0.011)
    rows = np.random.default_rng(0).normal(shift, 1, size=(3000, count))
    assert sum(t_test(list(row)) < 0.05 for row in rows) in expected(3000, 0.8)


def test_without_a_spread_no_difference_is_said_to_be_found() -> None:
    assert detectable([0.0, 0.0, 0.0]) is None
    assert detectable([0.1 + 0.2, 0.3, 0.3]) is None
    assert detectable([0.0, 0.0, 0.0], images=0.04) == pytest.approx(2.8 * 0.2, abs=0.01)


def test_holm_of_a_textbook_example() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@settings(deadline=None)
@given(st.lists(st.none() | st.floats(0, 1), max_size=12), st.integers(0, 20))
def test_holm_is_never_below_p_nor_above_bonferroni_and_keeps_the_order(
    given_ps: list[float | None], count: int
) -> None:
    corrected = holm(given_ps, count)
    pairs = [(p, c) for p, c in zip(given_ps, corrected, strict=True) if p is not None]
    assert [p is None for p in given_ps] == [c is None for c in corrected]
    most = max(count, len(given_ps))
    assert all(p <= c <= min(1, p * most) + 1e-15 for p, c in pairs)
    ordered = [c for _, c in sorted(pairs)]
    assert ordered == sorted(ordered)


def test_what_was_not_planned_or_is_not_over_has_no_verdict() -> None:
    clear = [1.0, 1.1, 0.9, 1.05, 0.95]
    family = [Pairs(clear, 5), Pairs(clear, 8), Pairs(clear, None)]
    said = ["better", "5 of 8 pairs", "5 pairs, not as planned"]
    assert decide(family, 3, 1.0, 0.05) == said


def test_a_table_without_any_effect_raises_a_false_alarm_in_one_of_twenty() -> None:
    # 2,000 tables of 12 independent claims of 5 pairs. Holm: 1 - (1 - 0.05 / 12)^12 = 4.9 %.
    alarms = 0
    for table in np.random.default_rng(0).normal(size=(2000, 12, 5)):
        alarms += bool(DECIDED & {*decide([Pairs(list(row), 5) for row in table], 12, 0.1, 0.05)})
    assert alarms in expected(2000, 0.049)


def test_looking_at_a_part_buys_no_verdict() -> None:
    # Of 12 claims without effect somebody looks at the four most promising ones alone. Corrected
    # over all twelve the false alarms stay at 4.9 %; over those four they would be 13 %.
    right = wrong = 0
    for table in np.random.default_rng(1).normal(size=(2000, 12, 5)):
        best = sorted(table.tolist(), key=t_test)[:4]
        right += bool(DECIDED & {*decide([Pairs(row, 5) for row in best], 12, 0.1, 0.05)})
        wrong += bool(DECIDED & {*decide([Pairs(row, 5) for row in best], 4, 0.1, 0.05)})
    assert right in expected(2000, 0.049)
    assert wrong > 2 * right


def test_looking_while_trials_arrive_makes_no_verdict() -> None:
    # Looks at 3, 4 and 5 of 5 planned pairs: a verdict at the last one alone, 5 % false ones.
    # Taking each look for planned gives 9.8 %.
    right = wrong = 0
    for row in np.random.default_rng(2).normal(size=(4000, 5)).tolist():
        looks = [decide([Pairs(row[:n], 5)], 1, 0.1, 0.05)[0] for n in (3, 4, 5)]
        right += any(look in DECIDED for look in looks)
        wrong += any(t_test(row[:n]) < 0.05 for n in (3, 4, 5))
    assert right in expected(4000, 0.05)
    assert wrong in expected(4000, 0.098)


def test_one_extension_keeps_the_false_alarms_below_one_in_twenty() -> None:
    # A look at 5 pairs and, if it does not decide, one at 10, each at 0.025: 4.4 % in all.
    false = 0
    for row in np.random.default_rng(3).normal(size=(4000, 10)).tolist():
        looks = [decide([Pairs(row[:n], n)], 1, 0.1, 0.025)[0] for n in (5, 10)]
        false += any(look in DECIDED for look in looks)
    assert false in expected(4000, 0.044)


def test_seed_means_do_not_mistake_correlated_cells_for_many() -> None:
    # 12 cells that share a seed's luck (correlation 0.3), 5 seeds, no effect: the t test over seed
    # means is false in 5 %. Taking all 60 differences for independent is so in far more.
    generator = np.random.default_rng(4)
    right = wrong = 0
    for _ in range(2000):
        shared, own = generator.normal(size=(1, 5)), generator.normal(size=(12, 5))
        table = math.sqrt(0.3) * shared + math.sqrt(0.7) * own
        right += decide([Pairs(list(table.mean(axis=0)), 5)], 1, 0.01, 0.05)[0] in DECIDED
        wrong += t_test(list(table.ravel())) < 0.05
    assert right in expected(2000, 0.05)
    assert wrong > 500


@pytest.mark.parametrize("gap", [0.0, 0.5])
def test_the_best_of_four_is_rarely_called_so_when_it_is_not(gap: float) -> None:
    # Three rivals, of which the strongest is as good and the others are behind by the gap: X must
    # beat each at 0.025 one-sided, so at most 2.5 % are false, and less where all are as good.
    generator = np.random.default_rng(5)
    false = 0
    for _ in range(2000):
        means = np.array([0, 0, gap, gap])[:, None]
        values = generator.normal(size=(4, 5)) - means
        rivals = [Pairs(list(values[0] - values[number]), 5) for number in (1, 2, 3)]
        false += decide([replace(rivals[0], rivals=rivals)], 1, 0.1, 0.05)[0] == "best"
    assert false <= expected(2000, 0.025).stop


def test_the_best_is_found_and_a_better_rival_too() -> None:
    ahead = [[1.0, 1.2, 0.9, 1.1, 1.0], [2.0, 2.2, 1.9, 2.1, 2.0]]
    behind = [[-one for one in ahead[0]], ahead[1]]
    near = [[0.1, -0.3, 0.2, 0.0, 0.4], ahead[1]]
    said = [
        decide([Pairs(one[0], 5, [Pairs(rival, 5) for rival in one])], 1, 1.0, 0.05)[0]
        for one in (ahead, behind, near)
    ]
    assert said == ["best", "not the best", "undecided"]


def test_the_best_is_not_decided_before_the_pairs_with_every_other_are_over() -> None:
    clear, early = Pairs([5.0, 5.1, 5.2], 3), Pairs([5.0, 5.1], 3)
    for rivals, verdict in (([clear, clear], "best"), ([clear, early], "2 of 3 pairs")):
        assert decide([replace(clear, rivals=rivals)], 1, 0.1, 0.05) == [verdict]


def test_no_practical_difference_is_rarely_said_of_one_at_the_margin() -> None:
    # True differences at the margin: 5 % are called no practical difference.
    rows = np.random.default_rng(6).normal(1.0, 0.5, size=(4000, 5)).tolist()
    said = [decide([Pairs(row, 5)], 1, 1.0, 1e-9)[0] for row in rows]
    assert said.count("no practical difference") == 0  # at that level nothing is
    false = sum(equivalence_test(row, 1.0) < 0.05 for row in rows)
    assert false in expected(4000, 0.05)


def test_intervals_cover_the_truth_in_nineteen_of_twenty() -> None:
    rows = np.random.default_rng(0).normal(90, 2, size=(5000, 3))
    assert sum(90.0 in t_interval(list(row)) for row in rows) in expected(5000, 0.95)


def drawn(generator: np.random.Generator, seeds: int, own: float) -> np.ndarray:
    """Return differences by seed and image of two methods that are equally good on all images.

    Images are harder or easier, for a method alone with a deviation of ``own`` (log-odds).
    """
    hardness, right = generator.normal(3.5, 2, 150), []
    for _ in range(2):
        odds = hardness + generator.normal(0, own, 150) + generator.normal(0, 0.1, (seeds, 1))
        right.append(generator.random((seeds, 150)) < 1 / (1 + np.exp(-odds)))
    return 100.0 * (right[0].astype(float) - right[1])


@pytest.mark.parametrize(("seeds", "own"), [(3, 0.0), (3, 1.0), (5, 0.0), (5, 2.0)])
def test_few_test_images_raise_no_more_false_alarms_than_many(seeds: int, own: float) -> None:
    # 2,000 comparisons on 150 test images each, no difference over all images there might be: at
    # most 5 % are false (measured: 3.4, 4.5, 5.1, 5.2). A test over seeds alone, which speaks of
    # these 150 only, is false in 20 % of the last.
    generator = np.random.default_rng(8)
    right = wrong = 0
    for _ in range(2000):
        table = drawn(generator, seeds, own)
        values, images = list(table.mean(axis=1)), image_variance(table)
        right += decide([Pairs(values, seeds, images=images)], 1, 0.01, 0.05)[0] in DECIDED
        wrong += t_test(values) < 0.05
    assert right in expected(2000, 0.05)
    assert wrong > (300 if own == 2 else 0)


def test_images_are_sampled_apart_from_seeds_and_counted_once() -> None:
    generator = np.random.default_rng(9)
    by_seed, by_image = generator.normal(size=(4, 1)), generator.normal(size=200)
    assert image_variance(by_seed + by_image) == pytest.approx(by_image.var(ddof=1) / 200)
    noise = [image_variance(generator.normal(size=(4, 200))) for _ in range(500)]
    assert np.mean(noise) < 0.15 / (4 * 200)  # counted twice it would be 1 / (4 * 200)


@settings(deadline=None)
@given(st.lists(ACCURACY, min_size=2, max_size=8), st.floats(0, 100), st.floats(0, 9))
def test_counting_in_the_images_never_decides_more(
    values: list[float], margin: float, images: float
) -> None:
    assert t_test(values, images) >= t_test(values)
    assert equivalence_test(values, margin, images) >= equivalence_test(values, margin)
    assert t_interval(values, images=images).half_width >= t_interval(values).half_width
    assert (detectable(values, images) or 0) >= (detectable(values) or 0)


def test_the_error_of_seeds_and_images_is_that_of_welch_and_satterthwaite() -> None:
    values, images = [1.0, 2.0, 3.0, 4.0], 5.0
    over_seeds = np.var(values, ddof=1) / 4
    freedom = (over_seeds + images) ** 2 / (over_seeds**2 / 3)
    t = 2.5 / math.sqrt(over_seeds + images)
    assert t_test(values, images) == pytest.approx(2 * stats.t.sf(t, freedom))
    half = stats.t.ppf(0.975, freedom) * math.sqrt(over_seeds + images)
    assert t_interval(values, images=images).half_width == pytest.approx(half)
