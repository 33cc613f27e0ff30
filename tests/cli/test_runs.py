"""Invariant: a run is found by its folder or how its name begins, and is good for something."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image, ImageOps

from stochbatch import data
from stochbatch.training import RunFolder, Trial
from tests.cli.command import assert_one_clear_line, call
from tests.trained import copied, trained


@pytest.fixture
def sgd(tmp_path: Path) -> RunFolder:
    return copied(trained(), tmp_path)


def begun(trial: Trial, root: Path) -> Path:
    """Return the folder of a run that has done nothing yet."""
    folder = root / trial.folder
    folder.mkdir()
    (folder / "trial.json").write_text(trial.to_json())
    return folder


def test_show_prints_the_trial_its_epochs_and_where_the_curve_is(
    sgd: RunFolder, tmp_path: Path
) -> None:
    outcome = call("show", sgd.folder)
    assert outcome.code == 0, outcome.err
    rows = [line.split() for line in outcome.out.splitlines()]
    assert ["method", "sgd"] in rows
    assert ["batch", "size", "64"] in rows
    assert ["state", "done"] in rows
    last = sgd.metrics[-1]
    (shown,) = [row for row in rows if row[:1] == ["10"]]
    assert shown[5] == f"{last['test_accuracy']:.2f}"
    picture = sgd.folder / "curve.png"
    assert outcome.out.endswith(f"learning curve: {picture}\n")
    Image.open(picture).verify()
    assert "Layers" not in outcome.out


def test_show_of_a_folder_that_cannot_be_written_to(sgd: RunFolder) -> None:
    (sgd.folder / "curve.png").mkdir()
    outcome = call("show", sgd.folder)
    assert outcome.code == 0
    assert f"no learning curve: cannot write {sgd.folder / 'curve.png'}: " in outcome.err
    assert_one_clear_line(call("show", sgd.folder, "--curve", sgd.folder / "curve.png"), 1)


def test_show_takes_the_beginning_of_a_name(sgd: RunFolder, tmp_path: Path) -> None:
    outcome = call("show", sgd.folder.name[:5], "--root", tmp_path, "--last", "2")
    assert outcome.code == 0, outcome.err
    numbers = [line.split()[0] for line in outcome.out.splitlines() if line[:6].strip().isdigit()]
    assert numbers == ["9", "10"]


def test_show_has_the_layers_of_sbs(tmp_path: Path) -> None:
    read = copied(trained("sbs", 3), tmp_path)
    outcome = call("show", read.folder, "--curve", tmp_path / "curve.svg")
    assert "Layers in the last epoch" in outcome.out
    for layer in read.metrics[-1]["layers"]:
        assert layer["name"] in outcome.out
    assert (tmp_path / "curve.svg").exists()
    assert not (read.folder / "curve.png").exists()


def test_show_of_a_run_without_an_epoch(sgd: RunFolder) -> None:
    for name in ("result.json", "metrics.jsonl"):
        (sgd.folder / name).unlink()
    outcome = call("show", sgd.folder)
    assert outcome.code == 0, outcome.err
    assert outcome.out.endswith("No epoch is done yet.\n")


def test_several_runs_are_compared_in_a_table_and_one_picture(
    sgd: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sbs = copied(trained("sbs", 3), tmp_path)
    outcome = call("show", sgd.folder, sbs.folder.name[:6], "--root", tmp_path)
    assert outcome.code == 0, outcome.err
    rows = [line.split(maxsplit=5) for line in outcome.out.splitlines()]
    for run in (sgd, sbs):
        accuracy = f"{run.result.accuracy.mean:.2f}"
        fields = [run.folder.name[:4], run.trial.method, "digits", "done", accuracy]
        assert [*fields, f"epochs={run.trial.epochs}"] in rows
    assert outcome.out.endswith("learning curves: curves.png\n")
    Image.open("curves.png").verify()
    assert not (sgd.folder / "curve.png").exists()


def test_runs_are_listed_with_what_differs_and_broken_folders_are_named(
    sgd: RunFolder, tmp_path: Path
) -> None:
    """Done, diverged, under way, failed; a damaged trial, a damaged result and a foreign folder."""
    folders = {}
    for name, fields in (
        ("diverged", {"lr": 0.2}),
        ("under way", {"seed": 1}),
        ("failed", {"method": "sbs", "settings": {"lambd": -2}}),
        ("damaged", {"seed": 2}),
    ):
        folders[name] = begun(Trial(**{"epochs": 10, "batch_size": 64, **fields}), tmp_path)
    trial = Trial.from_file(folders["diverged"] / "trial.json")
    result = json.loads((sgd.folder / "result.json").read_text()) | {
        "trial": trial.model_dump(),
        "trial_hash": trial.hash,
        "status": "diverged",
    }
    (folders["diverged"] / "result.json").write_text(json.dumps(result))
    (folders["failed"] / "error.json").write_text('{"error": "no memory"}')
    (folders["damaged"] / "result.json").write_text("{")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "trial.json").write_text("{")
    outcome = call("list", "runs", "--root", tmp_path)
    assert outcome.code == 0
    rows = [line.split(maxsplit=2)[1:] for line in outcome.out.splitlines()]
    accuracy = f"{sgd.result.accuracy.mean:.2f}"
    assert [" ".join([method, *rest.split()]) for method, rest in (row for row in rows if row)] == [
        "method data state test % differs in",
        "sbs digits failed - lr=0.1, seed=0",
        f"sgd digits done {accuracy} lr=0.1, seed=0",
        "sgd digits 0 of 10 epochs - lr=0.1, seed=1",
        f"sgd digits diverged {accuracy} lr=0.2, seed=0",
    ]
    named = outcome.err.splitlines()
    assert len(named) == 3
    for folder in (tmp_path / "foreign", tmp_path / "broken", folders["damaged"]):
        assert sum(str(folder) in line for line in named) == 1


def test_a_run_that_is_not_found_is_one_line(tmp_path: Path) -> None:
    root = tmp_path / "no\x1b[2J"
    listed = call("list", "runs", "--root", root).out
    assert listed == f"There are no runs in {tmp_path}/no\\x1b[2J.\n"
    for name in ("abc1", "abc2"):
        (tmp_path / name).mkdir()
    for run, *parts in (
        ("0000", "there is no run '0000'"),
        ("", "there is no run ''"),
        ("abc", "several runs", "abc1, abc2"),
        (tmp_path, "is not a run folder (no trial.json)"),
    ):
        assert_one_clear_line(call("show", run, "--root", tmp_path), 1, *parts)


def test_a_run_is_shown_without_its_plugin(tmp_path: Path) -> None:
    fields = json.loads(Trial(epochs=1).to_json())
    trial = Trial.stored({**fields, "method": "signs", "settings": {"power": 0.5}})
    folder = begun(trial, tmp_path)
    metrics = {"epoch": 0, "lr": 0.1, "train_loss": 1.0, "train_accuracy": 50.0}
    line = json.dumps({**metrics, "seconds": 1.0, "images_per_second": 1e3})
    (folder / "metrics.jsonl").write_text(line + "\n")
    outcome = call("show", folder)
    assert outcome.code == 0, outcome.err
    assert "settings           power=0.5" in outcome.out
    assert outcome.out.endswith(f"learning curve: {folder / 'curve.png'}\n")


def test_an_odd_line_of_metrics_leaves_one_run_out_of_a_comparison(
    sgd: RunFolder, tmp_path: Path
) -> None:
    sbs = copied(trained("sbs", 3), tmp_path)
    (sbs.folder / "metrics.jsonl").write_text("odd\n")
    outcome = call("show", sgd.folder, sbs.folder, "--curve", tmp_path / "both.png")
    assert outcome.code == 0, outcome.err
    assert outcome.err.startswith(f"left out: {sbs.folder / 'metrics.jsonl'}: ")
    assert outcome.err.count("\n") == 1
    assert (tmp_path / "both.png").exists()
    alone = call("show", sbs.folder)
    assert_one_clear_line(alone, 1, str(sbs.folder))
    assert "done" in alone.out, "what can be shown is shown"
    none = call("show", sbs.folder, sbs.folder)
    assert (none.code, none.out) == (1, "")


def test_predict_knows_a_digit_on_paper(sgd: RunFolder, tmp_path: Path) -> None:
    images, labels = data.load("digits", split="test")
    picture = Image.fromarray(images[0, 0].numpy()).resize((160, 160), Image.Resampling.NEAREST)
    path = tmp_path / "digit.png"
    ImageOps.invert(picture).save(path)
    outcome = call("predict", sgd.folder, path)
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith(str(path))
    said = outcome.out.removeprefix(str(path)).split()
    assert said[0] == str(int(labels[0]))
    assert said[1].endswith("%,")
    assert "(light and dark exchanged)" in outcome.out
    assert call("predict", sgd.folder, path, "--top", "1").out.count("%") == 1
    none = call("predict", sgd.folder, "none.png")
    assert_one_clear_line(none, 1, "none.png cannot be read as a picture")
