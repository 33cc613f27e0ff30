"""Invariant: the cut of the digits is fixed, balanced and complete."""

from __future__ import annotations

import numpy as np
import torch

from stochbatch import data
from stochbatch.data.digits import FILE

TRAIN_SHA256 = "f984d69d0d6054875e04021579e19ba64fdc1e3f2b71952fa8f4b35ae4e6e872"
TEST_SHA256 = "c7e2aedc0f05f96b8985273a2acf300e3c9b3eedd269ebcedf93dad2f156cf40"


def test_each_image_is_in_exactly_one_split_and_stands_upright() -> None:
    found = [
        (*image.flatten().tolist(), int(label))
        for split in ("train", "test")
        for image, label in zip(*data.load("digits", split=split), strict=True)
    ]
    with np.load(FILE, allow_pickle=False) as file:
        source = [
            (*(round(ink * 255 / 16) for ink in image.flatten().tolist()), int(label))
            for image, label in zip(file["images"], file["labels"], strict=True)
        ]
    assert len(found) == 1797
    assert sorted(found) == sorted(source)


def test_every_class_has_a_quarter_of_its_images_in_the_test_split() -> None:
    train, test = data.load("digits"), data.load("digits", split="test")
    for label in range(10):
        tested = int((test.labels == label).sum())
        assert tested == (tested + int((train.labels == label).sum())) // 4


def test_ink_covers_the_whole_range_of_a_byte() -> None:
    images, _ = data.load("digits")
    assert len(images.unique()) == 17
    assert (int(images.min()), int(images.max())) == (0, 255)
    assert images.dtype == torch.uint8


def test_the_content_is_the_same_on_every_machine() -> None:
    assert data.load("digits").sha256 == TRAIN_SHA256
    assert data.load("digits", split="test").sha256 == TEST_SHA256


def test_digits_are_official_and_need_no_file() -> None:
    assert data.load("digits", root="a/folder/that/is/not/there").official
    assert data.get("digits") == []
