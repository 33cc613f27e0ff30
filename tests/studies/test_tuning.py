"""Tuning: equal budgets, the same points, and no way from a test label to a choice."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from stochbatch import data
from stochbatch.studies import SCALES, Study, StudyError, StudyResults, collect
from stochbatch.studies.comparing import run_stages
from stochbatch.studies.tuning import FIRST_SEED, Tuning, halton, tuned_fields, validation_images
from stochbatch.training import Trial
from tests.studies.engines import in_process

PAPER = SCALES["paper"]
TEXT = """
title = "SGD against SBS"
repetitions = 2
{head}
[base]
epochs = 1
share = 0.1
batch_size = 32

[[axes]]
name = "method"
points = [{{ label = "SGD", method = "sgd" }}, {{ label = "SBS", method = "sbs" }}]

[[claims]]
axis = "method"
better = "SBS"
than = "SGD"

[tuning]
budget = {budget}
{options}

[tuning.spaces.SGD]
lr = {lr}

[tuning.spaces.SBS]
lr = {{ log = [0.01, 1] }}
lambd = [-4.0, 0.0]
"""


def study(**changes: Any) -> Study:
    parts = {
        "budget": 3,
        "options": "finalists = 2\nseeds = 2",
        "lr": "{ log = [0.01, 1] }",
        "head": "",
    }
    return Study.from_text(TEXT.format(**{**parts, **changes}), "tuned")


def run_all(root: Path) -> StudyResults:
    """Run a study to its end, stage by stage, in this process."""
    look = partial(collect, study(), PAPER, root)
    return run_stages(look, quiet=True, run_trials=in_process, root=root)[0]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> StudyResults:
    return run_all(tmp_path_factory.mktemp("runs"))


def test_all_methods_get_the_same_budget_and_shared_names_the_same_points(
    tuned: StudyResults,
) -> None:
    sgd, sbs = tuned.tuned
    assert [one.settings["lr"] for one in sgd.tried] == [one.settings["lr"] for one in sbs.tried]
    assert [len(one.trials) for one in tuned.tuned] == [3 + 2, 3 + 2]


def test_the_best_get_more_seeds_and_the_highest_mean_wins(tuned: StudyResults) -> None:
    for one in tuned.tuned:
        first = [tried.scores[0] for tried in one.tried]
        assert [len(tried.scores) for tried in one.tried].count(2) == 2
        assert min(first) == first[({0, 1, 2} - set(one.finalists)).pop()]
        means = {place: one.tried[place].mean for place in one.finalists}
        assert one.chosen is not None
        assert means[one.chosen] == max(means.values())


def test_verdict_trials_are_plain_and_have_the_chosen_settings(tuned: StudyResults) -> None:
    for one, cell in zip(tuned.tuned, tuned.cells, strict=True):
        assert one.winner is not None
        for seed, outcome in enumerate(cell.outcomes):
            assert outcome.trial.lr == one.winner.settings["lr"]
            assert (outcome.trial.validation, outcome.trial.seed) == (0, seed)
            assert outcome.result is not None
            assert outcome.result.data.test_images == 445
        for outcome in one.trials:
            assert outcome.trial.validation == 1352 - 135
            assert outcome.trial.seed >= FIRST_SEED


def test_stages_follow_from_what_is_on_disk_alone(tuned: StudyResults, tmp_path: Path) -> None:
    empty = collect(study(), PAPER, tmp_path)
    assert len(empty.missing) == 6  # all points of both, with the first seed
    assert not any(cell.outcomes for cell in empty.cells)
    assert set(empty.labels) == {trial.hash for trial in empty.missing}
    assert collect(study(), PAPER, tuned.root).tuned == tuned.tuned


def test_no_test_label_reaches_a_choice(
    tuned: StudyResults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = data.load

    def poisoned(name: Any, root: Any = None, split: str = "train", **options: Any) -> data.Split:
        found = load(name, root, split, **options)
        if split == "train":
            return found
        return replace(found, labels=torch.zeros_like(found.labels), sha256="0" * 64)

    monkeypatch.setattr(data, "load", poisoned)
    other = run_all(tmp_path)
    for one, same in zip(other.tuned, tuned.tuned, strict=True):
        assert one.chosen == same.chosen
        assert [tried.scores for tried in one.tried] == [tried.scores for tried in same.tried]
    # The poison works: verdicts differ.
    mine, theirs = (each.cells[0].outcomes[0].result for each in (other, tuned))
    assert mine and theirs and mine.curve != theirs.curve  # noqa: PT018


def test_a_point_that_diverges_is_the_worst_and_is_shown(tmp_path: Path) -> None:
    wild = study(lr="[1e30, 0.1]", budget=2, options="finalists = 1\nseeds = 1")
    in_process(collect(wild, PAPER, tmp_path).missing, tmp_path)
    sgd = collect(wild, PAPER, tmp_path).tuned[0]
    scores = {one.settings["lr"]: one.scores for one in sgd.tried}
    assert scores[1e30] == [-math.inf]
    assert sgd.winner is not None
    assert sgd.winner.settings == {"lr": 0.1}


def test_how_fickle_a_choice_is_counts_all_draws_of_seeds(tuned: StudyResults) -> None:
    one = tuned.tuned[0]
    assert one.fickle in (0, 0.25, 0.5, 0.75)
    assert replace(one, chosen=None).fickle is None


@pytest.mark.parametrize("dimension", [0, 1, 2])
def test_any_first_points_are_spread_evenly(dimension: int) -> None:
    base = (2, 3, 5)[dimension]
    places = [halton(number, dimension) for number in range(base**3)]
    assert sorted(int(place * base**3) for place in places) == list(range(base**3))
    assert sorted(int(place * base) for place in places[:base]) == list(range(base))


def test_a_schedule_ends_as_far_below_the_tuned_rate() -> None:
    fields = tuned_fields({"method": "sgd"}, {"lr": 0.02})
    assert Trial(**fields).schedule_settings["end_lr"] == 0.0002
    assert Trial(**tuned_fields({"schedule": "constant"}, {"lr": 0.02})).lr == 0.02


@pytest.mark.parametrize(
    ("fields", "images"),
    [
        ({"dataset": "cifar10", "share": 0.125}, 5000),
        ({"dataset": "cifar10"}, 10_000),
        ({"dataset": "digits", "share": 0.25}, 1352 - 338),
        ({"dataset": "digits"}, 270),
        ({"dataset": "digits", "share": 0.99}, 268),
    ],
)
def test_validation_images_are_unused_ones_or_a_fifth(fields: dict[str, Any], images: int) -> None:
    assert validation_images(Trial(**fields)) == images


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budget": 0}, "budget: input should be greater than or equal to 1"),
        (
            {"lr": "{ log = [1, 0.1] }"},
            "needs 0 < low < high (it is logarithmic), got 1 to",
        ),
        (
            {"lr": "{ log = [0, 0.1] }"},
            "needs 0 < low < high (it is logarithmic), got 0 to",
        ),
        ({"lr": "{ }"}, "a range is { log = [low, high] } or { linear = [low, high] }"),
        ({"lr": "[]"}, "the space of lr for 'SGD' has no value"),
        ({"options": 'axis = "metod"'}, r"[tuning] is about 'metod', axes are ['method']"),
        ({"options": "[tuning.spaces.Sgd]\nlr = [1]"}, "there is no 'Sgd' to tune"),
    ],
)
def test_bad_tables_are_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(StudyError) as error:
        study(**changes)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_method_without_the_tuned_setting_is_named(tmp_path: Path) -> None:
    wrong = study(lr="{ log = [0.01, 1] }\nlambd = [-4.0, 0.0]")
    with pytest.raises(StudyError, match="tuned, method SGD: SGD has no setting 'lambd'"):
        collect(wrong, PAPER, tmp_path)


def test_every_label_must_be_tuned() -> None:
    with pytest.raises(ValueError, match=r"'SBS' has no space in \[tuning.spaces\]"):
        Tuning(spaces={"SGD": {"lr": [0.1]}}).check_labels(["SGD", "SBS"])
