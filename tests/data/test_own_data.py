"""Invariant: own data are checked as a whole, kept by their content, and never lost."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from stochbatch import data
from stochbatch.data import DATASETS, FormatError, MissingFileError
from stochbatch.data import own_data as own
from stochbatch.data.own_data import keys_for_testing
from stochbatch.training import Trial
from tests.training.test_predict import png

GENERATOR = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOCHBATCH_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(own, "_roots", [])
    monkeypatch.setattr(DATASETS, "_found", {})


def picture(path: Path, size: tuple[int, int] = (40, 32), mode: str = "RGB") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    Image.fromarray(GENERATOR.integers(0, 256, shape, dtype=np.uint8), mode).save(path)
    return path


def photos(folder: Path, **options: Any) -> Path:
    for name in ("cats", "dogs"):
        for number in range(12):
            picture(folder / name / f"{number}.png", **options)
    return folder


def test_a_folder_is_split_by_the_bytes_of_its_files(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    for number in range(5):  # duplicates, also in the other class
        shutil.copy(folder / "cats/0.png", folder / f"cats/again-{number}.png")
    shutil.copy(folder / "cats/0.png", folder / "dogs/a-cat.png")
    entry = data.add(folder)
    assert entry.classes == ("cats", "dogs")
    assert entry.shape == (3, 32, 32)
    assert entry.train.count + entry.test.count == 30
    train, test = (data.load(entry.name, split=split) for split in ("train", "test"))

    def contents(split: data.Split) -> set[bytes]:
        return {image.numpy().tobytes() for image in split.images}

    assert not contents(train) & contents(test)
    assert {*train.labels.tolist()} == {*test.labels.tolist()} == {0, 1}


def test_the_name_is_of_the_content_and_outlives_the_folder(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    entry = data.add(folder)
    before = data.load(entry.name).sha256
    shutil.move(folder, tmp_path / "elsewhere")
    assert data.add(tmp_path / "elsewhere").name == entry.name
    shutil.rmtree(tmp_path / "elsewhere")
    assert data.load(entry.name).sha256 == before
    trial = Trial(dataset=entry.name, epochs=1)
    assert trial.network == "vgg11"
    assert Trial.from_text(trial.to_json(), "json").hash == trial.hash


def test_another_process_finds_it_by_its_name(tmp_path: Path) -> None:
    entry = data.add(photos(tmp_path / "photos"))
    DATASETS._found.clear()
    found = DATASETS[entry.name]
    assert (found.shape, found.classes, found.train, found.test) == (
        *(entry.shape, entry.classes),
        *(entry.train, entry.test),
    )
    assert own.names() == [entry.name]


def test_train_and_test_folders_are_taken_as_they_are(tmp_path: Path) -> None:
    for part, count in (("train", 4), ("test", 3)):
        for name in ("a", "b"):
            for number in range(count):
                picture(tmp_path / "photos" / part / name / f"{number}.png", (32, 32))
    entry = data.add(tmp_path / "photos")
    assert (entry.train.count, entry.test.count) == (8, 6)


@pytest.mark.parametrize(
    ("sizes", "side"),
    [
        ([(28, 28)], 28),
        ([(96, 96)], 96),
        ([(97, 97)], 96),
        ([(40, 32)], 32),
        ([(20, 20), (22, 20)], 32),
        ([(70, 80), (90, 63), (200, 300)], 64),
        ([(500, 400), (300, 200)], 96),
    ],
)
def test_sizes_follow_the_stated_rule(
    sizes: list[tuple[int, int]], side: int, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        for number in range(6):
            picture(tmp_path / "photos" / name / f"{number}.png", sizes[number % len(sizes)])
    assert data.add(tmp_path / "photos").shape == (3, side, side)


def test_pictures_are_grey_if_all_are_and_stand_upright(tmp_path: Path) -> None:
    folder = photos(tmp_path / "grey", size=(16, 16), mode="L")
    assert data.add(folder).shape == (1, 16, 16)
    picture(folder / "cats/colour.png", (16, 16))
    assert data.add(folder).shape == (3, 16, 16)


def npz(path: Path, **arrays: Any) -> Path:
    np.savez_compressed(path, **arrays)
    return path


IMAGES = GENERATOR.integers(0, 256, (40, 8, 8), dtype=np.uint8)
LABELS = np.arange(40) % 2


def test_npz_pairs_and_datasets_of_torch_are_the_same_data(tmp_path: Path) -> None:
    entry = data.add(npz(tmp_path / "mine.npz", images=IMAGES, labels=LABELS))
    assert entry.shape == (1, 8, 8)
    images, labels = torch.from_numpy(IMAGES), torch.from_numpy(LABELS)
    assert data.add((images, labels)).name == entry.name
    assert data.add((images[..., None], labels)).name == entry.name  # channels last
    assert data.add((images[:, None], labels)).name == entry.name  # or first
    assert data.add((images / 255.0, labels)).name == entry.name  # from 0 to 1
    assert data.add(torch.utils.data.TensorDataset(images, labels)).name == entry.name
    keras = npz(tmp_path / "k.npz", x_train=IMAGES, y_train=LABELS, x_test=IMAGES, y_test=LABELS)
    assert data.add(keras).test.count == 40
    assert data.add((images, labels), test=(images, labels)).name == data.add(keras).name


def _strange(folder: Path) -> None:
    shutil.copytree(folder / "cats", folder / "train/cats")
    shutil.copytree(folder / "dogs", folder / "train/dogs")
    shutil.copytree(folder / "dogs", folder / "test/wolves")
    shutil.copytree(folder / "dogs", folder / "test/dogs")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: shutil.rmtree(folder / "dogs"), "has 1 class folder: it needs two"),
        (lambda folder: (folder / "birds").mkdir(), "birds has no picture"),
        (lambda folder: (folder / "cats/0.png").write_bytes(b""), "0.png cannot be read as a pic"),
        (
            lambda folder: (folder / "cats/0.png").write_bytes(png(9_000, 9_000, b"")),
            "it has 9,000 x 9,000 pixels, the limit is 50,000,000",
        ),
        (_strange, "has the class 'wolves', .*train has not"),
    ],
)
def test_a_folder_that_cannot_be_used_is_one_line_and_leaves_nothing(
    spoil: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    folder = photos(tmp_path / "photos")
    spoil(folder)
    with pytest.raises(FormatError, match=message) as caught:
        data.add(folder)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "must have images and labels"),
        ({"images": IMAGES}, "it has: images"),
        ({"images": IMAGES, "labels": LABELS[:-1]}, "40 images have 39 labels"),
        ({"images": IMAGES, "labels": LABELS - 1}, "a label is -1; they count from 0"),
        ({"images": IMAGES, "labels": LABELS * 99}, "a label is 99, of 40 images in all"),
        ({"images": IMAGES, "labels": LABELS * 2}, "the class '1' has no training image"),
        ({"images": IMAGES, "labels": LABELS * 0}, "has 1 class: two are needed"),
        ({"images": IMAGES, "labels": LABELS, "classes": ["a"]}, "a label is 1, but there are 1"),
        ({"images": IMAGES, "labels": LABELS / 2}, "labels must be a list of whole numbers"),
        ({"images": IMAGES * 1.0, "labels": LABELS}, "or numbers from 0 to 1, got 0 to 255"),
        ({"images": IMAGES.astype(int), "labels": LABELS}, "images must be uint8, got int64"),
        ({"images": IMAGES.reshape(-1, 64), "labels": LABELS}, "images must be N x H x W"),
        ({"images": np.array([None]), "labels": LABELS}, "cannot be read as .npz"),
    ],
)
def test_an_npz_that_cannot_be_used_is_one_line(
    arrays: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(FormatError, match=message) as caught:
        data.add(npz(tmp_path / "mine.npz", **arrays))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "data").exists()


def test_a_file_that_is_no_archive_or_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.npz").write_bytes(b"PK no")
    with pytest.raises(FormatError, match="cannot be read as .npz"):
        data.add(tmp_path / "mine.npz")
    monkeypatch.setattr(own, "MOST_BYTES", 100)
    with pytest.raises(FormatError, match="the limit is"):
        data.add(npz(tmp_path / "large.npz", images=IMAGES, labels=LABELS))
    with pytest.raises(FormatError, match="more than"):
        data.add(photos(tmp_path / "photos"))
    with pytest.raises(MissingFileError, match="there is no"):
        data.add(tmp_path / "nowhere")
    with pytest.raises(FormatError, match="got int"):
        data.add(3)


def test_what_vanishes_or_changes_later_is_said(tmp_path: Path) -> None:
    entry = data.add((IMAGES, LABELS))
    (file,) = (tmp_path / "data/own").iterdir()
    whole = file.read_bytes()
    spoilt = bytearray(whole)
    spoilt[-1] ^= 1
    file.write_bytes(bytes(spoilt))
    with pytest.raises(FormatError, match="has changed since it was written"):
        [data.load(entry.name, split=split) for split in ("train", "test")]
    other = file.with_name("0123456789abcdef.safetensors")
    other.write_bytes(whole)
    with pytest.raises(FormatError, match="has changed since it was written"):
        data.load("own:0123456789abcdef")
    file.write_bytes(whole[:50])
    with pytest.raises(FormatError, match="is damaged"):
        data.load(entry.name)
    file.unlink()
    with pytest.raises(MissingFileError, match="is gone"):
        data.load(entry.name)
    assert data.add((IMAGES, LABELS)).name == entry.name
    assert len(data.load(entry.name)) == entry.train.count


def test_a_study_s_data_are_brought_again_unless_they_changed(tmp_path: Path) -> None:
    path = npz(tmp_path / "mine.npz", images=IMAGES, labels=LABELS)
    name, at = own.taken_in(str(path))
    assert at == str(path)
    shutil.rmtree(tmp_path / "data")
    DATASETS._found.clear()
    own.bring(name, at)
    assert len(data.load(name)) > 0
    npz(path, images=IMAGES[::-1], labels=LABELS)
    shutil.rmtree(tmp_path / "data")
    DATASETS._found.clear()
    with pytest.raises(FormatError, match=f"mine.npz has changed: it was {name}, now it is own:"):
        own.bring(name, at)


def test_names_are_taken_before_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    photos(tmp_path / "digits")
    assert own.taken_in("digits") == ("digits", "")
    assert own.taken_in("digits/")[0].startswith("own:")
    with pytest.raises(LookupError, match="did you mean 'cifar10'"):
        own.taken_in("cifar11")
    with pytest.raises(MissingFileError, match="there is no photos"):
        own.taken_in("photos/")


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3)), min_size=1, max_size=60))
def test_every_class_is_in_both_parts_where_it_can_be(pairs: list[tuple[int, int]]) -> None:
    keys = [hashlib.sha256(bytes([number])).digest() for number, _ in pairs]
    labels = [label for _, label in pairs]
    chosen = keys_for_testing(keys, labels)
    for label in set(labels):
        its = {key for key, other in zip(keys, labels, strict=True) if other == label}
        assert its & chosen
    assert chosen <= set(keys)
    assert json.dumps(sorted(key.hex() for key in chosen)) == json.dumps(
        sorted(key.hex() for key in keys_for_testing(keys[::-1], labels[::-1]))
    )
