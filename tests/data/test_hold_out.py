"""Validation images: never trained on, drawn from all classes, another draw for every seed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stochbatch.data import hold_out, subset


@given(
    seed=st.integers(0, 2**64 - 1),
    size=st.integers(20, 300),
    classes=st.integers(1, 5),
    share=st.sampled_from([1.0, 0.75, 0.5, 0.1]),
    part=st.floats(0.05, 0.4),
)
def test_no_image_is_trained_and_validated_on(
    seed: int, size: int, classes: int, share: float, part: float
) -> None:
    labels = torch.arange(size) % classes
    used = subset(seed, size, share)
    unused = size - len(used)
    # Half of each class may be held out, so up to that half of one image per class less.
    count = max(1, int(part * len(used)) - classes) if unused < 10 else min(unused, 10)
    train, held = hold_out(seed, labels, used, count)
    assert len(held) == count
    assert not set(train.tolist()) & set(held.tolist())
    assert set(train.tolist()) <= set(used.tolist())
    outside = unused >= count
    assert set(train.tolist()) == set(used.tolist()) if outside else len(train) + count == len(used)


def test_unused_images_are_taken_if_there_are_enough() -> None:
    labels = torch.arange(100) % 2
    used = torch.arange(60)
    assert torch.equal(hold_out(0, labels, used, 40)[0], used)
    assert min(hold_out(0, labels, used, 40)[1].tolist()) >= 60


def test_used_images_are_held_out_if_too_few_are_unused() -> None:
    train, held = hold_out(0, torch.arange(100) % 2, torch.arange(90), 20)
    assert (len(train), len(held)) == (70, 20)
    assert max(held.tolist()) < 90


def test_classes_are_drawn_from_in_proportion() -> None:
    labels = torch.tensor([0] * 800 + [1] * 200)
    held = hold_out(3, labels, torch.arange(1000), 200)[1]
    assert (labels[held] == 1).sum().item() in range(35, 50)


def test_small_classes_have_ten_images_or_half_of_theirs() -> None:
    labels = torch.tensor([0] * 960 + [1] * 30 + [2] * 10)
    held = labels[hold_out(3, labels, torch.arange(1000), 100)[1]]
    assert [(held == label).sum().item() for label in range(3)][1:] == [10, 5]


def test_another_seed_holds_out_others() -> None:
    labels = torch.zeros(100, dtype=torch.int64)
    first, second = (hold_out(seed, labels, torch.arange(100), 20)[1] for seed in (0, 1))
    assert not torch.equal(first, second)


def test_too_many_are_refused() -> None:
    with pytest.raises(ValueError, match="6 validation samples are too many for 10 that are used"):
        hold_out(0, torch.zeros(10, dtype=torch.int64), torch.arange(10), 6)
