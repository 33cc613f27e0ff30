"""Invariant: a run is found by its folder or how its name begins, and is good for something."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image, ImageOps

from stochbatch import data
from stochbatch.training import RunFolder
from tests.cli.command import assert_one_clear_line, call
from tests.trained import copied, trained


@pytest.fixture
def sgd(tmp_path: Path) -> RunFolder:
    return copied(trained(), tmp_path)


def test_show_prints_the_trial_its_epochs_and_where_the_curve_is(
    sgd: RunFolder, tmp_path: Path
) -> None:
    outcome = call("show", sgd.folder)
    assert outcome.code == 0, outcome.err
    rows = [line.split() for line in outcome.out.splitlines()]
    assert ["method", "sgd"] in rows
    assert ["batch", "size", "64"] in rows
    assert ["state", "finished"] in rows
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


@pytest.mark.parametrize("damage", [b"\xff\xfe", b"[1]", b'{"epoch": '])
def test_show_of_metrics_with_a_damaged_line(damage: bytes, sgd: RunFolder) -> None:
    path = sgd.folder / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:4], damage + b"\n", *lines[5:]]))
    (sgd.folder / "result.json").unlink()
    outcome = call("show", sgd.folder)
    assert outcome.code == 0, outcome.err
    assert "4 of 10 epochs are done" in outcome.out


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


def test_an_unknown_run_is_one_line(tmp_path: Path) -> None:
    assert_one_clear_line(call("show", "0000", "--root", tmp_path), 1, "there is no run '0000'")
    assert_one_clear_line(call("show", tmp_path), 1, "is no run")
    assert_one_clear_line(call("show", "", "--root", tmp_path), 1, "there is no run ''")


def test_an_ambiguous_beginning_names_the_runs(tmp_path: Path) -> None:
    for name in ("abc1", "abc2"):
        (tmp_path / name).mkdir()
    outcome = call("show", "abc", "--root", tmp_path)
    assert_one_clear_line(outcome, 1, "several runs", "abc1, abc2")


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


def test_predict_names_a_picture_that_is_not_there(sgd: RunFolder) -> None:
    outcome = call("predict", sgd.folder, "none.png")
    assert_one_clear_line(outcome, 1, "none.png cannot be read as a picture")
