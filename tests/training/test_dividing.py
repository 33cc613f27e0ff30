"""Invariant: the parts of a batch are the batch, and their gradients its gradient."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stochbatch.data import Batches
from stochbatch.training.dividing import LEAST, Part, Parts


def parts_of(count: int, images: int, batch_size: int, number: int) -> list[Part]:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (images, 1, 2, 2), dtype=torch.uint8, generator=generator)
    labels = torch.arange(images)
    return [
        Parts(Batches(pixels, labels, batch_size, rank=rank, ranks=count)).part(3, number)
        for rank in range(count)
    ]


@settings(max_examples=60, deadline=None)
@given(count=st.integers(1, 5), images=st.integers(2, 40), size=st.integers(1, 40), data=st.data())
def test_the_mean_gradient_is_that_of_the_whole_batch(count, images, size, data) -> None:
    number = data.draw(st.integers(0, -(-images // size) - 1))
    (whole,) = parts_of(1, images, size, number)
    parts = parts_of(count, images, size, number)
    expected = whole.images.double().mean(0)
    means = [part.images.double().mean(0) * part.weight for part in parts]
    torch.testing.assert_close(torch.stack(means).mean(0), expected)
    counted = torch.cat([part.labels for part in parts if part.counted])
    assert torch.equal(counted, whole.labels)
    for part in parts:
        assert part.divided == (count > 1 and len(whole.labels) >= LEAST * count)
        assert len(part.labels) >= (LEAST if part.divided else 1)


def test_one_process_has_whole_batches_that_count() -> None:
    (part,) = parts_of(1, 10, 4, 0)
    assert (len(part.labels), part.weight, part.divided, part.counted) == (4, 1.0, False, True)


def test_the_images_are_in_memory_once() -> None:
    pixels = torch.zeros(4, 1, 2, 2, dtype=torch.uint8)
    batches = Batches(pixels, torch.arange(4), 4, rank=1, ranks=2)
    parts = Parts(batches)
    assert parts._whole._pixels.data_ptr() == batches._pixels.data_ptr()
    assert (batches.rank, batches.ranks) == (1, 2)
