"""Invariant: the cut of the digits is fixed, balanced and complete."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits

from stochbatch import data

TRAIN_SHA256 = "f984d69d"
TEST_SHA256 = "c7e2aedc"


def test_each_image_is_in_exactly_one_split() -> None:
    train, test = data.load("digits"), data.load("digits", split="test")
    rows = [tuple(image.flatten().tolist()) for image in torch.cat([train.images, test.images])]
    source = [tuple(round(ink * 255 / 16) for ink in row) for row in load_digits().data.tolist()]
    assert sorted(rows) == sorted(source)


def test_every_class_has_a_quarter_of_its_images_in_the_test_split() -> None:
    train, test = data.load("digits"), data.load("digits", split="test")
    for label in range(10):
        tested = int((test.labels == label).sum())
        assert tested == (tested + int((train.labels == label).sum())) // 4


def test_ink_covers_the_whole_range_of_a_byte() -> None:
    images, _ = data.load("digits")
    assert len(images.unique()) == 17
    assert (int(images.min()), int(images.max())) == (0, 255)


def test_images_stand_upright() -> None:
    images, labels = data.load("digits")
    source = load_digits()
    assert torch.equal(images[0, 0], (torch.tensor(source.images[0]) * 255 / 16).round().byte())
    assert labels[0] == source.target[0]


def test_the_content_is_the_same_on_every_machine() -> None:
    assert data.load("digits").sha256.startswith(TRAIN_SHA256)
    assert data.load("digits", split="test").sha256.startswith(TEST_SHA256)


def test_digits_are_official_and_need_no_file() -> None:
    assert data.load("digits", root="a/folder/that/is/not/there").official
    assert data.get("digits") == []
    assert data.check("digits") == []
