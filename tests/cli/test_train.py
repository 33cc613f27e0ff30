"""Invariant: the command's options are the trial's fields, and the same command is the same run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stochbatch.cli.options import parse_settings
from stochbatch.training import Trial, read_run
from tests.cli.command import all_commands, assert_one_clear_line, call

FAST = ("--epochs", "1", "--share", "0.1", "--batch-size", "32", "--device", "cpu")


def parameters() -> dict[str, Any]:
    return {one.name: one for one in all_commands()["train",].params}


def shown(*args: object) -> Trial:
    """Return the trial that a dry run shows, which makes nothing."""
    outcome = call("train", *args, "--root", "none", "--dry-run")
    assert outcome.code == 0, outcome.err
    assert outcome.err.startswith("folder: none/")
    assert outcome.err.endswith(" (new)\n")
    assert not Path("none").exists()
    return Trial.from_text(outcome.out, "toml")


def test_a_rate_below_the_end_of_the_file_s_schedule_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trial.json"
    path.write_text(Trial().to_json())
    outcome = call("train", "--config", path, "--lr", "0.0005", "--dry-run")
    assert_one_clear_line(outcome, 1, "the rate would rise from lr 0.0005 to the schedule's end_lr")
    both = ("--lr", "0.0005", "--schedule-set", "end_lr=0.0001")
    assert shown("--config", path, *both).schedule_settings["end_lr"] == 0.0001
    assert shown("--config", path, "--lr", "0.0005", "--schedule", "constant").lr == 0.0005


def test_the_options_of_the_trial_are_its_fields() -> None:
    fields = list(Trial.model_fields)
    assert list(parameters())[: len(fields)] == fields


def test_the_help_of_an_option_is_the_description_of_the_field_with_its_default() -> None:
    options = parameters()
    for name, field in Trial.model_fields.items():
        assert field.description
        assert options[name].help.startswith(field.description)
    for name, default in (
        ("dataset", "digits"),
        ("weight_decay", "0.0005"),
        ("method", "sbs"),
        ("epochs", "30 on digits, else 100"),
        ("augment", "augment"),
        ("sync_bn", "no-sync-bn"),
    ):
        assert options[name].help.endswith(f"  [default: {default}]")
    for name in ("network", "lr", "schedule", "settings"):
        assert "[default" not in options[name].help


def test_the_command_alone_trains_sbs_on_digits_for_a_short_time(tmp_path: Path) -> None:
    assert shown() == Trial(method="sbs", epochs=30)
    assert shown("--method", "sgd") == Trial(method="sgd", epochs=30)
    assert shown("--epochs", "7") == Trial(method="sbs", epochs=7)
    assert shown("--dataset", "cifar10") == Trial(method="sbs", dataset="cifar10")
    path = tmp_path / "trial.toml"
    path.write_text("seed = 1")
    assert shown("--config", path) == Trial(seed=1), "a file means what it says"


def test_what_is_usual_for_a_method_is_not_what_a_file_says(tmp_path: Path) -> None:
    path = tmp_path / "trial.toml"
    path.write_text('method = "adam"')
    assert shown("--config", path).lr == 1e-4
    other = shown("--config", path, "--method", "sgd")
    assert (other.lr, other.schedule) == (0.1, "sigmoid")
    path.write_text('method = "entropy-sgd"')
    assert shown("--config", path, "--lr", "0.005").schedule_settings["end_lr"] == 0.001


def test_options_make_the_trial() -> None:
    trial = shown(
        *("--dataset", "cifar10", "--share", "0.125", "--network", "resnet18", "--width", "0.5"),
        *("--method", "sbs", "--set", "lambd=-2", "--set", "cross_layer=mean"),
        *("--batch-size", "16", "--lr", "0.05", "--momentum", "0.9", "--weight-decay", "0"),
        *("--schedule", "staircase", "--schedule-set", "milestones=[0.3, 0.6]"),
        *("--epochs", "7", "--no-augment", "--precision", "bf16", "--compile", "--seed", "3"),
    )
    assert trial == Trial(
        dataset="cifar10",
        share=0.125,
        network="resnet18",
        width=0.5,
        method="sbs",
        settings={"lambd": -2, "cross_layer": "mean"},
        batch_size=16,
        lr=0.05,
        momentum=0.9,
        weight_decay=0,
        schedule="staircase",
        schedule_settings={"milestones": [0.3, 0.6]},
        epochs=7,
        augment=False,
        precision="bf16",
        compile=True,
        seed=3,
    )


@pytest.mark.parametrize("form", ["toml", "json"])
def test_a_file_makes_the_trial_and_options_go_before_it(tmp_path: Path, form: str) -> None:
    trial = Trial(method="sbs", settings={"lambd": -2, "alpha": 0.2}, epochs=5, seed=4)
    path = tmp_path / f"trial.{form}"
    path.write_text(trial.to_toml() if form == "toml" else trial.to_json())
    assert shown("--config", path) == trial
    other = shown("--config", path, "--seed", "9", "--set", "lambd=-3")
    assert other.seed == 9
    assert other.epochs == 5
    assert (other.settings["lambd"], other.settings["alpha"]) == (-3.0, 0.2)


def test_another_method_or_data_set_does_not_inherit_what_belongs_to_the_file_s(
    tmp_path: Path,
) -> None:
    path = tmp_path / "trial.toml"
    path.write_text('method = "sbs"\n[settings]\nlambd = -2\n')
    assert shown("-c", path, "--method", "sgd") == Trial(method="sgd")
    assert shown("-c", path, "--method", "sbs").settings["lambd"] == -2
    path.write_text('dataset = "digits"\n')
    assert shown("-c", path, "--dataset", "svhn").network == "vgg11"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-2", -2),
        ("1e-3", 0.001),
        (".5", 0.5),
        ("true", True),
        ("False", False),
        ("none", "none"),
        ("None", None),
        ("null", None),
        ("block", "block"),
        ("[0.5, 0.75]", [0.5, 0.75]),
        ("a=b", "a=b"),
    ],
)
def test_values_of_settings(text: str, value: object) -> None:
    assert parse_settings([f"name={text}"]) == {"name": value}


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["--dataset", "digit"], "did you mean 'digits'?"),
        (["--lr", "-1"], "lr: "),
        (["--method", "sbs", "--set", "lamda=1"], "did you mean 'lambd'?"),
        (["--schedule-set", "end=1"], "no setting 'end'"),
        (["--config", "none.toml"], "none.toml"),
        (["--config", "trial.yaml"], "a trial is a .json or a .toml file"),
        (["--device", "abacus"], "no device 'abacus'"),
        (["--dataset", "svhn", "--data-root", "none"], "stochbatch data get svhn --data-root none"),
    ],
    ids=str,
)
def test_a_trial_that_cannot_be_is_one_line(args: list[str], part: str, tmp_path: Path) -> None:
    assert_one_clear_line(call("train", "--root", tmp_path, *args), 1, part)
    assert list(tmp_path.iterdir()) == []


def test_a_file_with_a_wrong_field_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trial.toml"
    path.write_text('metod = "sbs"\n')
    outcome = call("train", "--config", path)
    assert_one_clear_line(outcome, 1, f"{path}: a trial has no 'metod', did you mean 'method'?")


def test_training_shows_the_trial_and_the_result_and_a_finished_run_is_not_trained_again(
    tmp_path: Path,
) -> None:
    first = call("train", *FAST, "--root", tmp_path)
    assert first.code == 0, first.err
    (folder,) = tmp_path.iterdir()
    assert first.out.startswith("network")
    assert "vgg_tiny on digits, 0.1 of the training set" in first.out
    assert f"folder: {folder} (new)" in first.out
    result = f"test accuracy {read_run(folder).result.accuracy.final:.2f} %"
    assert result in first.out
    assert first.out.endswith(f"To look at it: stochbatch show {folder}\n")
    assert first.err.startswith("epoch 1/1  loss ")
    second = call("train", *FAST, "--root", tmp_path)
    assert second.code == 0
    assert "(done; --again starts over)" in second.out
    assert "epoch 1/1" not in second.err
    assert first.out.splitlines()[-3:] == second.out.splitlines()[-3:]
    quiet = call("train", *FAST, "--root", tmp_path, "--quiet", "--again")
    assert (quiet.out.split(" (")[0].strip(), quiet.out.count("\n"), quiet.err) == (result, 1, "")
    assert "epoch 1/1" in call("train", *FAST, "--root", tmp_path, "--again").err


def test_a_training_that_diverges_is_exit_code_3(tmp_path: Path) -> None:
    args = ("train", *FAST, "--root", tmp_path, "--lr", "1e38", "--epochs", "3")
    outcome = call(*args)
    assert outcome.code == 3
    assert "The training diverged in epoch 1" in outcome.err
    assert json.loads(next(tmp_path.glob("*/result.json")).read_text())["status"] == "diverged"
    assert call(*args).code == 3
