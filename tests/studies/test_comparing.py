"""Invariant: a comparison is a study, run to its end by one call, and its sentences say no more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stochbatch.studies import SCALES, Study, StudyError, StudyResults, collect
from stochbatch.studies.comparing import compare, in_words, planned_trials
from stochbatch.studies.conclusions import conclusions
from stochbatch.training import Result, TrialError
from tests.studies.engines import in_process

QUICK: dict[str, Any] = {"share": 0.1, "epochs": 2, "budget": 2, "seeds": 2, "batch_size": 32}
METHODS = ["sgd", "sbs", "adamw"]
PAPER = SCALES["paper"]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> StudyResults:
    root = tmp_path_factory.mktemp("runs")
    return compare(METHODS, root=root, quiet=True, run_trials=in_process, **QUICK)


def test_all_stages_are_run_as_planned_and_found_done_by_a_second_call(
    found: StudyResults, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found.missing == []
    run = [outcome for one in found.tuned for outcome in one.trials] + found.trials
    assert len(run) == len(planned_trials(found.study)) == 3 * (2 + 2 * 2 + 2)
    assert {outcome.trial.epochs for outcome in run} == {2}

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("everything is done")

    monkeypatch.setattr("stochbatch.studies.local_engine.run_trials", refuse)
    assert compare(METHODS, root=found.root, quiet=True, **QUICK).trials == found.trials


def test_methods_that_have_no_momentum_are_trained_without_and_rates_suit_each(
    found: StudyResults,
) -> None:
    trials = {cell.cell.key[0]: cell.cell.trial(0) for cell in found.cells}
    momenta = {name: trial.momentum for name, trial in trials.items()}
    assert momenta == {"SGD": 0.9, "SBS": 0.9, "AdamW": 0.0}
    assert trials["AdamW"].weight_decay == 0.01
    assert 1e-5 <= trials["AdamW"].lr <= 1e-2


def test_the_study_written_as_toml_is_the_same(found: StudyResults) -> None:
    text = found.study.to_toml("stochbatch compare")
    read = Study.from_text(text, found.study.name)
    assert read.model_dump() == found.study.model_dump()
    assert [one.trial.hash for one in collect(read, PAPER, found.root).trials] == [
        one.trial.hash for one in found.trials
    ]


def test_each_method_is_compared_with_the_first(found: StudyResults) -> None:
    first, second = conclusions(found)
    assert "SBS" in first
    assert "AdamW" in second
    for sentence in (first, second):
        assert sentence.startswith("At the settings chosen (2 tried, on validation images; ")
        assert "SGD lr 0." in sentence
        assert "2 fresh seeds." in sentence


def shifted(found: StudyResults, shifts: dict[str, list[float]]) -> StudyResults:
    """Return the results with these accuracies added to 90, by label and seed."""
    cells = []
    for cell in found.cells:
        outcomes = []
        for seed, shift in enumerate(shifts[cell.cell.key[0]]):
            result: Result = cell.outcomes[0].result
            accuracy = result.accuracy.model_copy(update={"mean": 90 + shift})
            trial = cell.cell.trial(seed)
            outcomes.append(
                replace(
                    cell.outcomes[0],
                    trial=trial,
                    result=result.model_copy(update={"accuracy": accuracy, "correct": None}),
                )
            )
        cells.append(replace(cell, outcomes=tuple(outcomes)))
    study = found.study.model_copy(update={"repetitions": len(shifts["SGD"])})
    return replace(found, study=study, cells=tuple(cells))


NONE = [0.0, 0.0, 0.0, 0.0, 0.0]
UP = [2.0, 2.2, 1.9, 2.1, 2.0]
NEAR = [0.1, -0.1, 0.05, 0.0, -0.05]
WIDE = [4.0, -3.0, 2.0, -2.5, 3.0]


def test_every_verdict_has_its_words(found: StudyResults) -> None:
    def said(sbs: list[float], adamw: list[float]) -> list[str]:
        return conclusions(shifted(found, {"SGD": NONE, "SBS": sbs, "AdamW": adamw}))

    better, same = said(UP, NEAR)
    assert "SBS is better than SGD: +2.04 points (" in better
    assert "AdamW makes no practical difference to SGD: +0.00 points" in same
    worse, open_ = said([-one for one in UP], WIDE)
    assert "SBS is worse than SGD: -2.04 points (" in worse
    assert "AdamW cannot be told from SGD: +0.70 points" in open_
    assert "points would be found with probability 0.8." in open_
    assert "would be found" not in worse
    early = conclusions(
        replace(found, study=found.study.model_copy(update={"repetitions": 9}), narrowed="x")
    )
    assert all("has no verdict yet" in sentence for sentence in early)


def test_settings_of_another_place_are_not_in_a_sentence(found: StudyResults) -> None:
    elsewhere = [
        replace(
            one,
            cell=replace(one.cell, coordinates={**one.cell.coordinates, "batch size": "16"}),
            chosen=1 - one.chosen,
        )
        for one in found.tuned
    ]
    both = replace(found, tuned=(*found.tuned, *elsewhere))
    assert conclusions(both) == conclusions(found)


def test_what_is_to_be_done_is_said_before(found: StudyResults) -> None:
    assert in_words(found.study) == (
        "SGD, SBS and AdamW on digits, vgg_tiny, 2 epochs each: 2 settings of each with one seed "
        "on 1,217 validation images, the best 2 with 2 more, then 2 fresh seeds of each winner on "
        "the test images."
    )


@pytest.mark.parametrize(
    ("methods", "changes", "message"),
    [
        (["sgd"], {}, "a comparison needs two methods or more, got 'sgd'"),
        (["sgd", "sgd"], {}, "sgd is named twice"),
        (["sgd", "sbz"], {}, "no method is called 'sbz', did you mean 'sbs'?"),
        (["sgd", "sbs"], {"budget": 0}, "budget"),
        (["sgd", "sbs"], {"seeds": 0}, "repetitions"),
        (["sgd", "sbs"], {"tune": {"lr": {"log": [1, 0.1]}}}, "a range needs 0 < low < high"),
        (["sgd", "sbs"], {"tune": {"lambd": [-4, 0]}}, "SGD has no setting 'lambd'"),
        (["sgd", "sbs"], {"tune": {"adam.eps": [1]}}, "adam is not among the methods"),
        (["sgd", "sbs"], {"network": "vgg12"}, "no network is called 'vgg12'"),
    ],
)
def test_what_cannot_be_compared_is_one_line(
    methods: list[str], changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises((StudyError, TrialError, ValueError, LookupError)) as caught:
        compare(methods, root=tmp_path / "runs", quiet=True, **{**QUICK, **changes})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "runs").exists()
