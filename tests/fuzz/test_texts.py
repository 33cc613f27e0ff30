"""Invariant: a text is a trial or a study, or is refused by one line."""

from __future__ import annotations

import json
from typing import Any

import tomli_w

from stochbatch.studies import StudyError
from stochbatch.studies.grid import Study
from stochbatch.studies.scales import SCALES
from stochbatch.training import Trial
from stochbatch.training.trial import TrialError
from tests.fuzz.mutations import fuzz, mutated_bytes, mutated_value, used_or_refused

TRIAL = Trial(method="sbs", schedule="sigmoid", epochs=3, share=0.5)
STUDY = {
    "title": "Two rates",
    "base": {"dataset": "digits", "epochs": 3, "schedule_settings": {"end_lr": 0.01}},
    "axes": [
        {"name": "method", "field": "method", "values": ["sgd", "sbs"]},
        {"name": "size", "zip": {"batch_size": [16, 128], "momentum": [0.0, 0.9]}},
        {"name": "rate", "points": [{"label": "fast", "lr": 0.2}, {"label": "slow", "lr": 0.05}]},
    ],
    "claims": [{"axis": "method", "better": "sbs", "than": ["sgd"]}],
    "repetitions": 1,
}


def as_toml(value: Any) -> str:
    """Return TOML for what TOML can say, and something near for the rest."""
    if not isinstance(value, dict):
        return f"it = {value!r}"
    try:
        return tomli_w.dumps(value)
    except (TypeError, ValueError, AttributeError):
        return "\n".join(f"{json.dumps(key)} = {value!r}" for key, value in value.items())


def check_trial(text: str, form: Any) -> None:
    trial = used_or_refused(lambda: Trial.from_text(text, form), TrialError)
    if trial is not None:
        assert Trial.from_text(trial.to_json(), "json").hash == trial.hash
        assert Trial.from_text(trial.to_toml(), "toml").hash == trial.hash
        assert Trial.stored(json.loads(trial.to_json())).hash == trial.hash


@fuzz(60, value=mutated_value(json.loads(TRIAL.to_json())))
def test_values_of_trials(value: Any) -> None:
    check_trial(json.dumps(value), "json")
    if isinstance(value, dict):
        used_or_refused(lambda: Trial.stored(value), TrialError)
    check_trial(as_toml(value), "toml")


@fuzz(40, text=mutated_bytes(TRIAL.to_json().encode()))
def test_texts_of_trials(text: bytes) -> None:
    check_trial(text.decode(errors="replace"), "json")


@fuzz(40, text=mutated_bytes(TRIAL.to_toml().encode()))
def test_toml_texts_of_trials(text: bytes) -> None:
    check_trial(text.decode(errors="replace"), "toml")


def check_study(text: str) -> None:
    study = used_or_refused(lambda: Study.from_text(text, "mutated"), StudyError)
    if study is None:
        return
    for scale in SCALES.values():
        cells = used_or_refused(lambda scale=scale: study.cells(scale), StudyError)
        if cells:
            trials = used_or_refused(lambda cells=cells: study.trials(cells, 1), StudyError)
            assert trials is None or 1 <= len(trials) <= len(cells)


@fuzz(60, value=mutated_value(STUDY))
def test_values_of_studies(value: Any) -> None:
    check_study(as_toml(value))


@fuzz(40, text=mutated_bytes(tomli_w.dumps(STUDY).encode()))
def test_texts_of_studies(text: bytes) -> None:
    check_study(text.decode(errors="replace"))


def test_the_examples_are_good() -> None:
    check = Study.from_text(tomli_w.dumps(STUDY), "good")
    assert len(check.trials(check.cells(SCALES["paper"]), 1)) == 8
    assert Trial.from_text(TRIAL.to_toml(), "toml") == TRIAL
