"""Invariant: every pixel and every label of the published layouts arrives in its place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from stochbatch import data
from stochbatch.registry import UnknownNameError
from tests.data import official

SPLITS = ("train", "test")


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", official.WRITERS)
def test_pixels_and_labels_are_in_their_places(name: str, split: str, tmp_path: Path) -> None:
    official.write(name, tmp_path)
    numbers = official.numbers_of(split)
    for _ in ("from the source", "from the cache"):
        found = data.load(name, tmp_path, split, accept_hash=True)
        assert torch.equal(found.images, official.images(data.DATASETS[name].shape, numbers))
        assert torch.equal(found.labels, official.labels(numbers))
        assert (found.images.dtype, found.labels.dtype) == (torch.uint8, torch.int64)
        assert found.images.is_contiguous()
        found.images[0, 0, 0, 0] += 1  # they can be written to, and nothing else changes


def test_all_ten_classes_occur_in_the_tiny_files() -> None:
    assert set(official.labels(official.numbers_of("train")).tolist()) == set(range(10))


@pytest.mark.parametrize("name", official.WRITERS)
def test_the_published_hash_makes_a_split_official(name: str, tmp_path: Path) -> None:
    entry = official.published(name, official.write(name, tmp_path))
    for _ in ("from the source", "from the cache"):
        assert data.load(entry, tmp_path).official
        assert data.load(entry, tmp_path, accept_hash=True).official


def test_another_hash_is_refused_by_name(tmp_path: Path) -> None:
    folder = official.write("svhn", tmp_path)
    found = official.published("svhn", folder).train.files[0].sha256
    with pytest.raises(data.HashError) as caught:
        data.load("svhn", tmp_path)
    message = str(caught.value)
    assert str(folder / "train_32x32.mat") in message
    assert found in message
    assert data.DATASETS["svhn"].train.files[0].sha256 in message
    assert "accept_hash=True" in message


def test_only_the_files_of_the_asked_split_are_needed(tmp_path: Path) -> None:
    folder = official.write("svhn", tmp_path)
    (folder / "train_32x32.mat").unlink()
    assert len(data.load("svhn", tmp_path, "test", accept_hash=True)) == official.TEST
    with pytest.raises(data.MissingFileError, match="train_32x32.mat of svhn is neither in"):
        data.load("svhn", tmp_path, "train", accept_hash=True)


def test_a_missing_file_comes_with_its_address_and_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        data.load("cifar10", tmp_path)
    assert isinstance(caught.value, data.DataError)
    for part in (
        "stochbatch data get cifar10",
        str(tmp_path / "cifar10"),
        "https://www.cs.toronto.edu",
    ):
        assert part in str(caught.value)


def test_a_wrong_number_of_images_is_refused(tmp_path: Path) -> None:
    entry = official.published("cifar10", official.write("cifar10", tmp_path))
    wrong = replace(entry, train=replace(entry.train, count=11))
    with pytest.raises(data.FormatError, match="10 images in the train part, expected 11"):
        data.load(wrong, tmp_path)


@pytest.mark.parametrize(
    ("kind", "labels", "message"),
    [
        (np.float32, np.zeros(4, np.int64), "pixels of float32, expected"),
        (np.uint8, np.full(4, 10), "labels must be integers from 0 to 9"),
        (np.uint8, np.full(4, -1), "labels must be integers from 0 to 9"),
        (np.uint8, np.zeros(4), "labels must be integers from 0 to 9"),
    ],
)
def test_what_a_reader_must_not_return(
    kind: type, labels: np.ndarray, message: str, tmp_path: Path
) -> None:
    official.write("svhn", tmp_path)
    images = np.zeros((4, 3, 32, 32), kind)
    entry = replace(data.DATASETS["svhn"], read=lambda *_: (images, labels))
    with pytest.raises(data.FormatError, match=message):
        data.load(entry, tmp_path, accept_hash=True)


def test_labels_of_a_reader_may_be_small_integers(tmp_path: Path) -> None:
    images, labels = np.zeros((4, 3, 32, 32), np.uint8), np.arange(4, dtype=np.uint8)
    entry = replace(data.DATASETS["svhn"], read=lambda *_: (images, labels))
    official.write("svhn", tmp_path)
    for _ in range(2):  # from the file, and from the cache without a warning
        split = data.load(entry, tmp_path, accept_hash=True)
        assert split.labels.tolist() == [0, 1, 2, 3]


def test_no_images_at_all_are_refused_even_if_accepted(tmp_path: Path) -> None:
    members = dict.fromkeys(official.cifar_members(), b"")
    (tmp_path / "cifar10").mkdir()
    official.tar(tmp_path / "cifar10" / "cifar-10-binary.tar.gz", members)
    with pytest.raises(data.FormatError, match="0 images in the train part"):
        data.load("cifar10", tmp_path, accept_hash=True)


def test_an_unknown_name_is_named() -> None:
    with pytest.raises(UnknownNameError, match="digits has no split 'dev'. There are: train, test"):
        data.load("digits", split="dev")
    with pytest.raises(UnknownNameError, match="did you mean 'cifar10'"):
        data.load("cifar-10")


def test_the_digest_tells_contents_apart(tmp_path: Path) -> None:
    splits = []
    for name in ("stl10", "cifar10"):
        official.write(name, tmp_path)
        splits += [data.load(name, tmp_path, split, accept_hash=True) for split in SPLITS]
    assert len({split.sha256 for split in splits}) == 4


def test_the_representation_is_one_short_line(tmp_path: Path) -> None:
    official.write_svhn(tmp_path)  # files may lie in the root itself
    for _ in ("from the source", "from the cache"):
        split = data.load("svhn", tmp_path, accept_hash=True)
        assert not split.official
    text = repr(split)
    assert text.startswith("Split('svhn', 'train', 10 images of 3x32x32, not official, sha256 ")
    assert len(text) < 100
