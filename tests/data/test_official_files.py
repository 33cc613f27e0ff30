"""Invariant: packed arrays come back as official files with the same pixels and labels."""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.official_files import main

from stochbatch import data

SHAPES = {"cifar10": (3, 32, 32), "svhn": (3, 32, 32), "stl10": (3, 96, 96)}


def pack(images: np.ndarray, path: Path) -> None:
    """Pack by the description: green off red and blue, differences of rows, then of pixels."""
    wide = images.astype(np.int64)
    wide = np.stack([wide[:, 0] - wide[:, 1], wide[:, 1], wide[:, 2] - wide[:, 1]])
    for axis in (2, 3):
        wide = np.diff(wide, axis=axis, prepend=0)
    with lzma.open(path, "wb") as file:
        np.save(file, (wide % 256).astype(np.uint8))


def write_source(name: str, split: str, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(5)
    images = random.integers(0, 256, (10, *SHAPES[name]), dtype=np.uint8)
    labels = random.permutation(10).astype(np.uint8)
    pack(images, folder / f"{name}_{split}_images.npy.xz")
    np.save(folder / f"{name}_{split}_labels.npy", labels)
    return images, labels


@pytest.mark.parametrize("name", ["svhn", "stl10"])
def test_the_loaders_give_back_what_was_packed(name: str, tmp_path: Path) -> None:
    source = {split: write_source(name, split, tmp_path) for split in ("train", "test")}
    assert main([str(tmp_path), str(tmp_path / "out"), "--datasets", name]) == 0
    for split, (images, labels) in source.items():
        loaded = data.load(name, tmp_path / "out", split, accept_hash=True)
        assert torch.equal(loaded.images, torch.from_numpy(images))
        assert loaded.labels.tolist() == labels.tolist()


@pytest.mark.parametrize("name", ["svhn", "stl10"])
def test_the_same_arrays_give_the_same_bytes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for split in ("train", "test"):
        write_source(name, split, tmp_path)
    main([str(tmp_path), str(tmp_path / "one"), "--datasets", name])
    monkeypatch.setattr("time.asctime", lambda *_: "Thu Jan  1 00:00:00 1970")
    monkeypatch.setattr("time.time", lambda: 0.0)
    main([str(tmp_path), str(tmp_path / "two"), "--datasets", name])
    for file in data.DATASETS[name].files:
        one, two = (tmp_path / side / name / file.name for side in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()


def test_other_pixels_than_cifar_has_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(1, 6):
        write_source("cifar10", f"train{number}", tmp_path)
    write_source("cifar10", "test", tmp_path)
    np.save(tmp_path / "cifar10_train_labels.npy", np.zeros(50, np.uint8))
    assert main([str(tmp_path), str(tmp_path / "out"), "--datasets", "cifar10"]) == 1
    assert "data_batch_1.bin has SHA-1" in capsys.readouterr().err
    assert list((tmp_path / "out" / "cifar10").iterdir()) == []


def test_a_source_that_was_cut_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for split in ("train", "test"):
        write_source("stl10", split, tmp_path)
        path = tmp_path / f"stl10_{split}_images.npy.xz"
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert main([str(tmp_path), str(tmp_path / "out"), "--datasets", "stl10"]) == 1
    message = capsys.readouterr().err
    assert message.startswith("stl10: ")
    assert message.count("\n") == 1


def test_a_missing_source_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path), str(tmp_path / "out"), "--datasets", "stl10"]) == 1
    message = capsys.readouterr().err
    assert message.startswith("stl10: ")
    assert "stl10_test_images.npy.xz" in message
    assert message.count("\n") == 1
