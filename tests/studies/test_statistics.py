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

from stochbatch.studies import CellOutcomes, Claim, Outcome, Published, Scale, Study, StudyResults
from stochbatch.studies.statistics import (
    PUBLISHED_TRIALS,
    cell_verdict,
    statistics,
)
from stochbatch.studies.verdicts import image_variance, t_interval, t_test
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
    [[claims]]
    axis = "method"
    better = "sbs"
    than = "sgd"
    """,
    "two",
)
FULL = Scale("full", "As published.", repetitions=3, comparable=True)
REDUCED = Scale("reduced", "Less.", repetitions=5)
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


def changed(found: StudyResults, outcomes: Sequence[Outcome], place: int = 0) -> StudyResults:
    """Return the results with other outcomes in a cell."""
    cells = list(found.cells)
    cells[place] = replace(cells[place], outcomes=tuple(outcomes))
    return replace(found, cells=tuple(cells))


def with_result(outcome: Outcome, **changes: Any) -> Outcome:
    """Return the outcome with another result."""
    return replace(outcome, result=outcome.result.model_copy(update=changes))


def results(
    *columns: Sequence[float | None],
    scale: Scale | None = None,
    published: Published | None = None,
    only: Any = None,
    diverged: bool = False,
    study: Study = STUDY,
) -> StudyResults:
    """Return a study with these accuracies, a column a cell; None is a missing trial.

    Without a scale it plans as many trials as the longest column has.
    """
    longest = max(map(len, columns), default=3)
    scale = scale or replace(FULL, repetitions=longest or 3)
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
    assert (cell.best, cell.mean_best) == (95.0, 93.0)  # both readings of max
    assert cell.verdict is None, "without a published value"


def test_the_best_epoch_of_the_mean_curve_is_over_epochs_that_all_have() -> None:
    study = results([50.0, 50.0])
    curves = ([60.0, None, 80.0, 10.0], [40.0, 99.0, 30.0])
    outcomes = [
        with_result(one, curve=curve)
        for one, curve in zip(study.cells[0].outcomes, curves, strict=True)
    ]
    found = statistics(changed(study, outcomes)).cells
    assert found[0].curve_best == 55.0
    assert found[1].curve_best is None


def test_a_claim_has_the_paired_difference_computed_by_hand() -> None:
    # Differences 1, 2, 3: mean 2, deviation 1, t = 2 sqrt 3 with 2 degrees of freedom, for
    # which the distribution has a closed form: p = 1 - t / sqrt(2 + t^2) = 1 - sqrt(12 / 14).
    claim = statistics(results([90.0, 80.0, 70.0], [91.0, 82.0, 73.0])).claims[0]
    assert (claim.pairs, claim.difference) == (3, 2.0)
    assert claim.p == pytest.approx(1 - math.sqrt(12 / 14))
    assert claim.interval.low == pytest.approx(2 - 4.3027 / math.sqrt(3), abs=1e-4)
    assert claim.detectable == pytest.approx(3.26, abs=0.01)


def test_pairing_is_by_seed_and_seeds_without_a_partner_are_left_out() -> None:
    claim = statistics(results([None, 80.0, 70.0, 60.0], [99.0, 81.0, None, 62.0])).claims[0]
    assert (claim.pairs, claim.difference, claim.verdict) == (2, 1.5, "2 of 4 pairs")


SEEDS = [90.0, 80.0, 70.0, 60.0, 50.0]
GAINS = (1, 1.1, 0.9, 1, 1.2)
UP = [one + more for one, more in zip(SEEDS, GAINS, strict=True)]
DOWN = [one - less for one, less in zip(SEEDS, GAINS, strict=True)]


def test_a_difference_that_pairing_reveals_is_found() -> None:
    claim = statistics(results(SEEDS, UP)).claims[0]
    assert claim.verdict == "better"
    # Two places and the whole table: the others count, though they have no trials.
    assert claim.corrected_p == pytest.approx(3 * claim.p)
    assert statistics(results(SEEDS, DOWN)).claims[0].verdict == "worse"


def test_over_the_table_differences_are_averaged_seed_by_seed() -> None:
    here, there = [90.0, 80.0, 70.0], [91.0, 79.0, 73.0]  # +1, -1, +3
    claims = statistics(results(here, there, here, [94.0, 80.0, 71.0])).claims  # +4, 0, +1
    whole = claims[-1]
    assert (whole.cell, whole.baseline, whole.place) == (None, None, {})
    assert whole.difference == pytest.approx((2.5 - 0.5 + 2) / 3)
    assert whole.interval == t_interval([2.5, -0.5, 2.0])
    assert whole.ahead == (2, 2)


def test_a_seed_that_one_place_lacks_is_not_in_the_table() -> None:
    whole = statistics(results(SEEDS, UP, SEEDS, [*UP[:4], None])).claims[-1]
    assert (whole.pairs, whole.verdict) == (4, "4 of 5 pairs")


def test_correction_is_over_all_claim_cells_of_the_table() -> None:
    found = statistics(
        results([1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [1.0, 2.0, 3.0], [2.0, 3.5, 3.9])
    ).claims
    first, second, third = sorted(claim.p for claim in found)
    second = max(3 * first, 2 * second)
    assert sorted(claim.corrected_p for claim in found) == pytest.approx(
        [3 * first, second, max(second, third)]
    )


def test_a_narrower_look_changes_neither_p_nor_verdict() -> None:
    whole = statistics(results(SEEDS, UP, SEEDS, DOWN)).claims[0]
    part = statistics(results(SEEDS, UP, only={"batch size": ["16"]})).claims[0]
    assert (part.p, part.corrected_p) == (whole.p, pytest.approx(3 * whole.p))
    assert part.corrected_p >= whole.corrected_p


def test_places_that_were_picked_do_not_stand_for_the_table() -> None:
    main = STUDY.claims[0].model_copy(update={"primary": True})
    study = STUDY.model_copy(update={"claims": (main,)})
    (one,) = statistics(results(SEEDS, UP, only={"batch size": ["16"]}, study=study)).claims
    assert (one.family, one.ahead) == ("exploratory", None)
    assert one.corrected_p == pytest.approx(2 * one.p)
    best = study.model_copy(update={"claims": (main.model_copy(update={"best": True}),)})
    (one,) = statistics(results(SEEDS, UP, only={"batch size": ["16"]}, study=best)).claims
    assert (one.family, one.corrected_p) == ("exploratory", pytest.approx(2 * one.p))
    three = study.model_copy(
        update={"axes": [study.axes[0].model_copy(update={"values": [16, 32, 64]}), study.axes[1]]}
    )
    columns = [SEEDS, UP] * 3
    assert [row.family for row in statistics(results(*columns, study=three)).claims] == [
        *["exploratory"] * 3,
        "primary",
    ]
    picked = results(*columns[:4], only={"batch size": ["16", "64"]}, study=three)
    assert [row.ahead for row in statistics(picked).claims] == [None, None]


def test_another_number_of_trials_than_planned_makes_no_verdict() -> None:
    for count, said in ((3, "3 of 5 pairs"), (5, "better")):
        columns = [column[:count] + [None] * (5 - count) for column in (SEEDS, UP)]
        assert statistics(results(*columns)).claims[0].verdict == said
    asked_for_less = results(SEEDS[:3], UP[:3], scale=replace(FULL, repetitions=5))
    assert statistics(asked_for_less).claims[0].verdict == "3 pairs, not as planned"


def test_an_extended_study_has_twice_the_trials_and_needs_half_the_p() -> None:
    seeds = [*SEEDS, 40.0]
    gains = (0.5, 1.0, 1.9, 0.4, 2.4, -0.1)
    near = [one + more for one, more in zip(seeds, gains, strict=True)]
    alone = STUDY.model_copy(update={"axes": STUDY.axes[1:]})
    found = statistics(results(seeds, near, study=alone)).claims[0]
    assert 0.025 < found.corrected_p < 0.05
    assert found.verdict == "better"
    longer = alone.model_copy(update={"extended": True})
    once = replace(FULL, repetitions=3)
    assert statistics(results(seeds, near, scale=once, study=longer)).claims[0].verdict == (
        "undecided"
    )


def test_a_primary_claim_is_corrected_among_primary_ones_alone() -> None:
    main = STUDY.claims[0].model_copy(update={"primary": True})
    found = statistics(
        results(SEEDS, UP, SEEDS, UP, study=STUDY.model_copy(update={"claims": (main,)}))
    ).claims
    assert [claim.family for claim in found] == ["exploratory", "exploratory", "primary"]
    assert found[2].corrected_p == found[2].p
    assert found[0].corrected_p == pytest.approx(2 * found[0].p)


def test_what_stands_on_a_collapsed_trial_is_undecided() -> None:
    # Of the digits ten per cent is chance.
    theirs = [90.0, 91.0, 92.0, 90.5, 10.2]
    ours = [91.0, 92.1, 92.9, 91.6, 90.0]
    found = statistics(results(theirs, ours)).claims[0]
    assert (found.collapsed, found.verdict) == (1, "undecided")
    ours[4] = 11.2  # both with about the same gain: with it and without it the same verdict
    found = statistics(results(theirs, ours)).claims[0]
    assert (found.collapsed, found.verdict) == (1, "better")


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
    study = changed(study, outcomes)
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
    broken = study.cells[0].cell.trial(2)
    outcome = Outcome(broken, Path(), "diverged", result(broken, None, status="diverged"))
    got = statistics(changed(study, [*study.cells[0].outcomes, outcome])).cells[0]
    assert (got.n, got.diverged, got.mean) == (2, 1, 55.0)


@pytest.mark.parametrize(
    ("values", "published", "verdict"),
    [
        # 4.3027 * 2 * sqrt(1/3 + 1/10) = 5.665: the article's mean has the error of ten trials.
        ([90.0, 92.0, 94.0], 92.0, "agrees"),
        ([90.0, 92.0, 94.0], 97.6, "agrees"),
        ([90.0, 92.0, 94.0], 86.4, "agrees"),
        ([90.0, 92.0, 94.0], 97.7, "lower"),
        ([90.0, 92.0, 94.0], 86.3, "higher"),
        ([90.1, 90.1, 90.1], 90.1, "agrees"),
        ([90.0, 92.0], 91.0, "too few trials"),
    ],
)
def test_verdict_of_a_cell_says_how_ours_stand_to_the_article(
    values: list[float], published: float, verdict: str
) -> None:
    cell = statistics(results(values, published=Published(published, None))).cells[0]
    assert cell.verdict == verdict


def test_at_a_reduced_scale_only_claims_have_verdicts() -> None:
    found = statistics(results(SEEDS, UP, scale=REDUCED, published=Published(90.0, None)))
    assert {cell.verdict for cell in found.cells} == {None}
    assert found.claims[0].verdict == "better"


def test_one_trial_has_a_mean_and_nothing_else() -> None:
    found = statistics(results([90.0], [91.0], published=Published(90.0, None)))
    cell, claim = found.cells[0], found.claims[0]
    assert (cell.mean, cell.std, cell.interval, cell.verdict) == (
        90.0,
        None,
        None,
        "too few trials",
    )
    assert (claim.pairs, claim.difference, claim.interval) == (1, 1.0, None)
    assert (claim.p, claim.corrected_p, claim.verdict) == (None, None, "undecided")


def test_without_trials_or_a_baseline_there_are_no_pairs() -> None:
    found = statistics(results(published=Published(90.0, None)))
    assert [(cell.n, cell.mean) for cell in found.cells] == [(0, None)] * 4
    alone = statistics(results([90.0] * 3, [91.0] * 3, only={"method": ["sbs"]})).claims
    assert [claim.baseline for claim in alone] == [None] * 3
    for claims in (found.claims, alone):
        assert [(claim.pairs, claim.verdict) for claim in claims] == [(0, "0 of 3 pairs")] * 3


def test_without_a_claim_there_are_none() -> None:
    study = results([90.0])
    plain = STUDY.model_copy(update={"claims": []})
    assert statistics(StudyResults(plain, FULL, Path(), study.cells)).claims == ()


def test_equal_differences_are_not_certainty() -> None:
    # 70.3 - 70.1 and 90.3 - 90.1 differ in the last bit: rounding must not pass for a spread.
    for ours, p in (([70.3, 90.3, 50.3], 0.25), ([70.1, 90.1, 50.1], 1.0)):
        claim = statistics(results([70.1, 90.1, 50.1], ours)).claims[0]
        assert (claim.p, claim.verdict) == (p, "undecided")
        assert claim.interval.half_width == pytest.approx(0, abs=1e-12)


def test_differences_within_the_margin_make_no_practical_difference() -> None:
    near = [one + more for one, more in zip(SEEDS, (0.1, -0.1, 0.05, -0.02, 0.0), strict=True)]
    assert statistics(results(SEEDS, near)).claims[0].verdict == "no practical difference"
    strict = STUDY.model_copy(update={"margin": 0.1})
    assert statistics(results(SEEDS, near, study=strict)).claims[0].verdict == "undecided"


@settings(deadline=None)
@given(st.lists(ACCURACY, min_size=1, max_size=6), st.lists(ACCURACY, min_size=1, max_size=6))
def test_swapping_both_sides_of_a_claim_swaps_its_verdict(
    ours: list[float], theirs: list[float]
) -> None:
    one = statistics(results(theirs, ours)).claims[0]
    other = statistics(results(ours, theirs)).claims[0]
    assert one.difference == pytest.approx(-other.difference)
    assert one.p == other.p
    swapped = {"better": "worse", "worse": "better"}
    assert other.verdict == swapped.get(one.verdict, one.verdict)


@settings(deadline=None)
@given(ACCURACY, st.lists(ACCURACY, min_size=3, max_size=6))
def test_a_cell_has_one_of_three_verdicts(published: float, values: list[float]) -> None:
    verdict = cell_verdict(published, values, True)
    assert verdict in ("agrees", "higher", "lower")
    assert (verdict == "agrees") == (published in t_interval(values, others=PUBLISHED_TRIALS))


def test_a_published_mean_has_an_error_of_its_own() -> None:
    # 4,000 cells that do agree, of 5 trials against the mean of 10: 200 are called different,
    # standard deviation 13.8; bounds at 5 of them. With our error alone it would be 430.
    generator = np.random.default_rng(0)
    wrong = 0
    for _ in range(4000):
        published, ours = generator.normal(90, 0.6, 10).mean(), generator.normal(90, 0.6, 5)
        wrong += cell_verdict(published, list(ours), True) != "agrees"
    assert 200 - 69 < wrong < 200 + 69


def counted(*columns: Sequence[Sequence[int]], test_sets: str = "aaaa") -> StudyResults:
    """Return a study with one evaluation per trial: which images each seed of a column had right.

    The i-th column is on the i-th test set.
    """
    study = results(*([100 * float(np.mean(row)) for row in column] for column in columns))
    for place, (column, name) in enumerate(zip(columns, test_sets, strict=False)):
        data = FACTS.model_copy(update={"test_images": len(column[0]), "test_sha256": name})
        outcomes = [
            with_result(one, correct=" ".join(map(str, row)), data=data)
            for one, row in zip(study.cells[place].outcomes, column, strict=True)
        ]
        study = changed(study, outcomes, place)
    return study


GENERATOR = np.random.default_rng(1)
SGD_RIGHT, SBS_RIGHT, MORE, LESS = (
    (GENERATOR.random((4, 50)) < GENERATOR.random(50)).astype(int).tolist() for _ in range(4)
)


def points(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> np.ndarray:
    return 100.0 * np.subtract(ours, theirs)


def test_the_sampling_of_few_test_images_is_in_p_and_interval() -> None:
    found = statistics(counted(SGD_RIGHT, SBS_RIGHT)).claims[0]
    table = points(SBS_RIGHT, SGD_RIGHT)
    values, images = list(table.mean(axis=1)), image_variance(table)
    assert images > 0
    assert found.image_error == pytest.approx(math.sqrt(images))
    assert found.p == pytest.approx(t_test(values, images))
    assert found.interval.high == pytest.approx(t_interval(values, images=images).high)
    assert 1 > found.p > t_test(values)


def test_without_counts_nothing_is_known_of_the_images() -> None:
    found = counted(SGD_RIGHT, SBS_RIGHT)
    unknown = [with_result(one, correct=None) for one in found.cells[0].outcomes]
    assert statistics(changed(found, unknown)).claims[0].image_error == 0


def test_places_share_the_images_of_one_test_set_and_not_those_of_two() -> None:
    columns = (SGD_RIGHT, SBS_RIGHT, LESS, MORE)
    here, there = points(SBS_RIGHT, SGD_RIGHT), points(MORE, LESS)
    one = statistics(counted(*columns)).claims[-1]
    assert one.image_error**2 == pytest.approx(image_variance((here + there) / 2))
    two = statistics(counted(*columns, test_sets="aabb")).claims[-1]
    apart = image_variance(here / 2) + image_variance(there / 2)
    assert two.image_error**2 == pytest.approx(apart)
    assert one.image_error != two.image_error


def test_a_gain_that_grows_has_the_images_of_both_its_ends() -> None:
    growth = {"axis": "batch size", "from": "16", "to": "128"}
    claim = Claim(axis="method", better="sbs", than="sgd", grows=growth)
    study = replace(
        counted(SGD_RIGHT, SBS_RIGHT, LESS, MORE),
        study=STUDY.model_copy(update={"claims": (claim,)}),
    )
    (found,) = statistics(study).claims
    grown = points(MORE, LESS) - points(SBS_RIGHT, SGD_RIGHT)
    assert found.image_error**2 == pytest.approx(image_variance(grown))


def test_a_training_that_diverged_guesses_every_image_alike() -> None:
    found = counted(SGD_RIGHT, SBS_RIGHT)
    first, *others = found.cells[0].outcomes
    broken = with_result(first, status="diverged", correct=None)
    theirs = np.array(SGD_RIGHT, dtype=float)
    theirs[0] = theirs[0].mean()
    got = statistics(changed(found, [broken, *others])).claims[0]
    assert got.image_error**2 == pytest.approx(image_variance(points(SBS_RIGHT, theirs)))
