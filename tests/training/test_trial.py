"""Invariant: a trial says all about a training, has one identity, and cannot be wrong."""

import copy
import hashlib
import json
import pickle
import re
import subprocess
import sys

import pytest
import torch
from pydantic import ValidationError
from torch.nn import BatchNorm2d

from stochbatch.data import DATASETS
from stochbatch.studies import SCALES, STUDIES
from stochbatch.training import METHODS, SCHEDULES, Trial, TrialError
from stochbatch.training.builders import build_network


def test_what_is_not_given_is_filled_in() -> None:
    trial = Trial(method="sbs", settings={"lambd": -2})
    assert trial.settings["lambd"] == -2.0
    assert set(trial.settings) == set(METHODS["sbs"].settings) - {"compare"}
    assert trial.schedule_settings == {"end_lr": 0.001, "steepness": 10.0}


def test_the_network_follows_from_the_size_of_the_images() -> None:
    small = {"digits"}
    for dataset in DATASETS:
        assert Trial(dataset=dataset).network == ("vgg_tiny" if dataset in small else "vgg11")


@pytest.mark.parametrize(
    "fields",
    [
        *({"method": method} for method in METHODS),
        *({"schedule": schedule} for schedule in SCHEDULES),
        {"method": "dropout", "settings": {"dropout": None}},
        {"method": "sbs", "settings": {"probability": 0.5}},
        {"schedule": "staircase", "schedule_settings": {"milestones": [0.3]}},
    ],
    ids=str,
)
def test_a_trial_reads_itself_in_both_forms(fields: dict, tmp_path) -> None:
    trial = Trial(**fields)
    for name, text in (("t.json", trial.to_json()), ("t.toml", trial.to_toml())):
        (tmp_path / name).write_text(text)
        assert Trial.from_file(tmp_path / name) == trial
        assert Trial.from_text(text, name[2:]) == trial


def test_the_same_trial_has_the_same_hash_however_it_is_written() -> None:
    one = Trial(method="sbs", lr=1, settings={"lambd": -4, "alpha": 0.1})
    other = Trial(lr=1.0, settings={}, method="sbs", network="vgg_tiny")
    assert one == other
    assert one.hash == other.hash
    assert one.folder == one.hash[:16]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"momentum": -0.0}, {"momentum": 0.0}),
        ({"settings": {"dampening": 0.0}}, {"settings": {"dampening": 0}}),
        (
            {"method": "sbs", "settings": {"probability": 1}},
            {"method": "sbs", "settings": {"probability": 1.0}},
        ),
        (
            {"method": "sbs", "settings": {"lambd": -0.0}},
            {"method": "sbs", "settings": {"lambd": 0}},
        ),
        (
            {"method": "entropy-sgd", "settings": {"L": 5.0}},
            {"method": "entropy-sgd"},
        ),
    ],
    ids=str,
)
def test_one_training_has_one_hash(one: dict, other: dict) -> None:
    assert Trial(**one).hash == Trial(**other).hash


def test_a_trial_is_frozen_and_can_be_copied() -> None:
    trial = Trial(method="sbs")
    with pytest.raises(ValidationError, match="frozen"):
        trial.lr = 0.5
    for same in (trial, Trial.stored(json.loads(trial.to_json()))):
        with pytest.raises(TypeError, match="a trial is frozen"):
            same.settings["lambd"] = 0.0
        with pytest.raises(TypeError, match="a trial is frozen"):
            same.settings.update(lambd=0.0)
        assert pickle.loads(pickle.dumps(same)).hash == trial.hash
        assert copy.deepcopy(same) == trial


def test_identity_is_stable_between_versions() -> None:
    """Finished runs are found by this; if it must change, runs of old versions are orphaned."""
    assert json.loads(Trial().to_json()) == {
        "augment": True,
        "batch_size": 128,
        "compile": False,
        "dataset": "digits",
        "epochs": 100,
        "lr": 0.1,
        "method": "sgd",
        "momentum": 0.0,
        "network": "vgg_tiny",
        "precision": "fp32",
        "schedule": "sigmoid",
        "schedule_settings": {"end_lr": 0.001, "steepness": 10.0},
        "seed": 0,
        "settings": {"dampening": 0, "nesterov": False},
        "share": 1.0,
        "weight_decay": 0.0005,
        "width": 1.0,
    }
    assert Trial().folder == "67eb63b22392811b"


def test_every_field_is_part_of_the_identity() -> None:
    other = {
        "dataset": "stl10",
        "share": 0.5,
        "network": "resnet18",
        "width": 0.5,
        "method": "adam",
        "settings": {"nesterov": True},
        "batch_size": 64,
        "lr": 0.2,
        "momentum": 0.1,
        "weight_decay": 0.0,
        "schedule": "constant",
        "schedule_settings": {"end_lr": 0.01},
        "epochs": 3,
        "augment": False,
        "precision": "bf16",
        "compile": True,
        "evaluate_every": 2,
        "sync_bn": True,
        "norm_init": "uniform",
        "validation": 100,
        "seed": 1,
    }
    assert other.keys() == Trial.model_fields.keys()
    base = Trial(momentum=0.3)
    hashes = {Trial(**{"momentum": 0.3, **{k: v}}).hash for k, v in other.items() if k != "method"}
    hashes |= {base.hash, Trial(method="adam").hash}
    assert len(hashes) == len(other) + 1


@pytest.mark.parametrize(
    ("epochs", "every", "evaluated"),
    [
        (4, 1, [0, 1, 2, 3]),
        (12, 5, [4, 9, 11]),
        (30, 10, [9, 19, 27, 28, 29]),
        (5, 9, [4]),
    ],
)
def test_sparse_evaluation_never_spares_the_last_tenth(
    epochs: int, every: int, evaluated: list[int]
) -> None:
    trial = Trial(epochs=epochs, evaluate_every=every)
    assert [epoch for epoch in range(epochs) if trial.evaluates(epoch)] == evaluated


def test_a_field_that_joined_later_leaves_the_names_of_trials_alone() -> None:
    later = {"evaluate_every": 1, "sync_bn": False, "norm_init": "ones", "validation": 0}
    assert Trial(**later).folder == "67eb63b22392811b"
    assert not any(name in Trial().to_json() for name in later)
    other = {"evaluate_every": 2, "sync_bn": True, "norm_init": "uniform", "validation": 9}
    assert json.loads(Trial(**other).to_json()).items() >= other.items()


def test_uniform_scales_of_batch_norms_change_nothing_else_of_the_start() -> None:
    torch.manual_seed(0)
    ones = build_network(Trial()).state_dict()
    torch.manual_seed(0)
    uniform = build_network(Trial(norm_init="uniform"))
    scales = {f"{name}.weight" for name, m in uniform.named_modules() if isinstance(m, BatchNorm2d)}
    assert len(scales) == 3
    for name, value in uniform.state_dict().items():
        if name in scales:
            assert ((value >= 0) & (value < 1)).all()
            assert value.std() > 0.2  # of uniform numbers: 0.29
        else:
            assert torch.equal(value, ones[name])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"metod": "sgd"}, "a trial has no 'metod', did you mean 'method'?"),
        ({"method": "sbss"}, "no method is called 'sbss', did you mean 'sbs'? There are: sgd,"),
        ({"dataset": "cifar"}, "no data set is called 'cifar', did you mean 'cifar10'?"),
        ({"network": "vgg"}, "no network is called 'vgg', did you mean 'vgg11'?"),
        ({"schedule": "sigmoyd"}, "no schedule is called 'sigmoyd', did you mean 'sigmoid'?"),
        ({"network": "vgg11"}, "images must be at least 32x32 for a network that halves them"),
        ({"lr": -1}, "lr: input should be greater than or equal to 0, got -1"),
        ({"lr": float("nan")}, "lr: input should be a finite number, got nan"),
        ({"batch_size": 2.5}, "batch_size: input should be a valid integer, got 2.5"),
        ({"batch_size": 0}, "batch_size: input should be greater than or equal to 1, got 0"),
        ({"share": 0}, "share: input should be greater than 0, got 0"),
        ({"share": 1.5}, "share: input should be less than or equal to 1, got 1.5"),
        ({"seed": -1}, "seed: input should be greater than or equal to 0, got -1"),
        ({"augment": 1}, "augment: input should be a valid boolean, got 1"),
        ({"precision": "fp8"}, "precision: input should be 'fp32', 'bf16' or 'fp16', got 'fp8'"),
        ({"method": "sbs", "settings": {"lamda": 1}}, "SBS has no setting 'lamda', did you mean"),
        (
            {"method": "sbs", "settings": {"cross_layer": "sum"}},
            "cross_layer must be one of ('total', 'mean', 'weighted'), got 'sum'",
        ),
        (
            {"schedule_settings": {"end": 1}},
            "the schedule 'sigmoid' has no setting 'end', did you mean 'end_lr'? It has: end_lr,",
        ),
        ({"settings": {"dampening": 10**400}}, "int too large to convert to float"),
        ({"settings": {"nesterov": "no"}}, "nesterov must be true or false, got 'no'"),
        ({"settings": {"dampening": "abc"}}, "dampening must be a number, got 'abc'"),
        ({"method": "sbs", "settings": {"lambd": "foo"}}, "lambd must be a number, got 'foo'"),
        ({"method": "sbs", "settings": {"cross_layer": 3}}, "cross_layer must be a text, got 3"),
        ({"method": "adam", "settings": {"betas": 0.9}}, "betas must be a list of numbers, got"),
        ({"method": "adam", "settings": {"betas": [0.9]}}, "cannot be built: "),
        ({"schedule_settings": {"end_lr": None}}, "end_lr must be a number, got None"),
        (
            {"method": "sbs", "settings": {"lambd": float("nan")}},
            "lambd must be a finite number, a text, true, false, null or a list of numbers, "
            "got nan",
        ),
        (
            {"schedule": "staircase", "schedule_settings": {"milestones": ["a"]}},
            "milestones must be a finite number, a text, true, false, null or a list of "
            "numbers, got ['a']",
        ),
        (
            {"method": "sgd", "lr": 0.0001},
            "the rate would rise from lr 0.0001 to the schedule's end_lr 0.001: set end_lr too, "
            "or take the schedule 'constant'",
        ),
        ({"width": 1e9}, "cannot be built: "),
        ({"share": 1e-7}, "share 1e-07 of digits is less than two images"),
        (
            {"method": "entropy-sgd", "precision": "fp16"},
            "Entropy-SGD takes a closure, which fp16's scaler does not support: use bf16",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_in_one_line(fields: dict, message: str) -> None:
    with pytest.raises(TrialError, match=re.escape(message)) as caught:
        Trial(**fields)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "rate", "schedule", "end"),
    [
        ({"method": "sbs"}, 0.1, "sigmoid", 0.001),
        ({"method": "adam"}, 1e-4, "constant", None),
        ({"method": "rmsprop", "lr": 0.001}, 0.001, "sigmoid", 0.001),
        ({"method": "adam", "schedule": "sigmoid"}, 1e-4, "sigmoid", 1e-6),
        ({"method": "adam", "schedule": "sigmoid", "lr": 0.1}, 0.1, "sigmoid", 0.001),
        ({"method": "entropy-sgd"}, 1.0, "sigmoid", 0.01),
        ({"method": "entropy-sgd", "lr": 0.5}, 0.5, "sigmoid", 0.001),
        ({"method": "entropy-sgd", "schedule_settings": {"end_lr": 0.1}}, 1.0, "sigmoid", 0.1),
        ({"method": "entropy-sgd", "schedule": "constant"}, 1.0, "constant", None),
    ],
    ids=str,
)
def test_a_method_has_its_usual_rate_unless_told_otherwise(
    fields: dict, rate: float, schedule: str, end: float | None
) -> None:
    trial = Trial(**fields)
    assert (trial.lr, trial.schedule) == (rate, schedule)
    assert trial.schedule_settings.get("end_lr") == (end if end is None else pytest.approx(end))
    assert trial.model_fields_set == fields.keys()  # what is usual is not what was given
    assert Trial(**trial.model_dump()) == trial


def test_the_usual_rates_are_those_of_the_article_s_studies() -> None:
    for study in ("comparison", "lr-schedules"):
        # Each method with each schedule once: other coordinates change no rate.
        cells = {
            tuple(cell.coordinates.get(axis) for axis in ("method", "schedule")): cell
            for cell in STUDIES[study].cells(SCALES["paper"])
        }
        for (method, _), cell in cells.items():
            trial = cell.trial(0)
            if METHODS[trial.method].usual_lr and method != "Entropy-SGD as printed":
                usual = Trial(method=trial.method)
                assert (usual.lr, usual.schedule) == (trial.lr, trial.schedule)
                assert usual.schedule_settings == trial.schedule_settings


def test_a_rate_may_rise_if_that_is_said() -> None:
    rising = Trial(lr=0.0001, schedule_settings={"end_lr": 0.001})
    assert Trial.from_text(rising.to_toml(), "toml") == rising
    assert Trial(lr=0.0001, schedule="constant").schedule_settings == {}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "lr = ", "a.toml: not valid TOML"),
        ("a.json", "{", "a.json: not valid JSON"),
        ("a.json", "[1]", "a trial must be a table of fields, got list"),
        ("a.json", "[" * 100_000, "a.json: not valid JSON"),
        ("a.json", '{"self": 1}', "a.json: a trial has no 'self'"),
        ("a.yaml", "lr: 1", "a.yaml: a trial is a .json or a .toml file"),
        ("a.toml", "lr = -1", "a.toml: lr: input should be"),
        ("none.toml", None, "none.toml cannot be read: "),
    ],
)
def test_a_file_that_is_no_trial(tmp_path, name: str, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(TrialError, match=re.escape(message)):
        Trial.from_file(tmp_path / name)


def test_a_saved_trial_and_a_list_of_data_are_read_without_torch_or_the_trial_s_plugin() -> None:
    """Completing a trial looks its method up, and imports torch; reading one does neither."""
    code = (
        "import sys, stochbatch.data\n"
        "from stochbatch.training.trial import Trial\n"
        f"trial = Trial.stored({json.loads(UNKNOWN)!r})\n"
        "print(trial.hash, *sys.modules.keys() & {'torch', 'scipy', 'pooch'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [hashlib.sha256(UNKNOWN.encode()).hexdigest()]


UNKNOWN = json.dumps(
    {
        **json.loads(Trial(method="sbs").to_json()),
        **dict.fromkeys(("dataset", "network", "method", "schedule"), "unknown"),
    },
    sort_keys=True,
    separators=(",", ":"),
)


@pytest.mark.parametrize("study", STUDIES)
def test_a_saved_trial_is_the_trial(study: str) -> None:
    for cell in STUDIES[study].cells(SCALES["demo"]):
        trial = cell.trial(1)
        for text in (trial.to_json(), trial.model_dump_json(indent=1)):
            stored = Trial.stored(json.loads(text))
            assert stored == trial
            assert stored.hash == trial.hash
            assert stored.folder == trial.folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lr": None}, "lr: input should be a valid number, got None"),
        ({"metod": "sgd"}, "a trial has no 'metod', did you mean 'method'?"),
        ({"settings": {"lambd": {}}}, "lambd must be a finite number, a text, true"),
    ],
    ids=str,
)
def test_a_saved_trial_with_wrong_fields_is_refused(change: dict, message: str) -> None:
    with pytest.raises(TrialError, match=re.escape(message)):
        Trial.stored({**json.loads(UNKNOWN), **change})


def test_a_saved_trial_has_every_field() -> None:
    for name in json.loads(UNKNOWN):
        fields = json.loads(UNKNOWN)
        del fields[name]
        with pytest.raises(TrialError, match=f"a saved trial has every field.* no '{name}'"):
            Trial.stored(fields)
