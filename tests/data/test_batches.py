"""Invariant: a batch is a function of (seed, epoch, number), right in every pixel."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stochbatch.data import Augmentation, Batches, Normalisation
from stochbatch.data.sampling import epoch_draws, epoch_order

IDENTITY = Normalisation((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


def images(count: int = 20, height: int = 6, width: int = 5, channels: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(4)
    shape = (count, channels, height, width)
    return torch.randint(256, shape, generator=generator, dtype=torch.uint8)


def labels(count: int = 20) -> Tensor:
    return torch.arange(count)


def make(batch_size: int = 8, count: int = 20, **options: object) -> Batches:
    return Batches(images(count), labels(count), batch_size, **options)


def by_hand(source: Tensor, row: int, column: int, flip: bool, padding: int) -> Tensor:
    """One image at a time, as a transform of a picture would do it."""
    padded = torch.nn.functional.pad(source, (padding,) * 4)
    cut = padded[:, row : row + source.shape[1], column : column + source.shape[2]]
    return cut.flip(2) if flip else cut


@pytest.mark.parametrize(
    "augmentation", [Augmentation(), Augmentation(2), Augmentation(3, flip=True)]
)
def test_every_pixel_is_where_the_draws_put_it(augmentation: Augmentation) -> None:
    source = images()
    batches = make(seed=9, augmentation=augmentation, normalisation=IDENTITY)
    order = epoch_order(9, 3, 20)
    draws = epoch_draws(9, 3, 20, augmentation)
    position = 0
    for pixels, targets in batches.epoch(3):
        for pixel, target in zip(pixels, targets, strict=True):
            assert target == order[position]
            where = (int(draws.rows[position]), int(draws.columns[position]))
            expected = by_hand(source[target], *where, bool(draws.flips[position]), augmentation[0])
            assert torch.equal(pixel, expected.float())
            position += 1
    assert position == 20


def test_pixels_are_normalised_by_channel() -> None:
    source = images(500)
    batches = Batches(source, labels(500), 500)
    pixels, _ = batches.batch(0, 0)
    torch.testing.assert_close(pixels.mean((0, 2, 3)), torch.zeros(3), rtol=0, atol=1e-5)
    torch.testing.assert_close(pixels.std((0, 2, 3), unbiased=False), torch.ones(3))
    double = source.double()
    found = Normalisation.of(source)
    torch.testing.assert_close(found.mean, tuple(double.mean((0, 2, 3)).tolist()))
    spread = double.std((0, 2, 3), unbiased=False)
    torch.testing.assert_close(found.std, tuple(spread.tolist()))


def test_black_padding_is_black_before_normalisation() -> None:
    white = torch.full((1, 3, 4, 4), 255, dtype=torch.uint8)
    norm = Normalisation((100.0, 50.0, 20.0), (10.0, 10.0, 10.0))
    seen = set()
    batches = Batches(white, labels(1), 1, augmentation=Augmentation(2), normalisation=norm)
    for epoch in range(20):
        pixels, _ = batches.batch(epoch, 0)
        seen |= set(pixels[0, 0].unique().tolist())
    assert seen == {-10.0, 15.5}


def test_a_channel_without_spread_is_not_divided_by_zero() -> None:
    flat = torch.full((3, 1, 2, 2), 7, dtype=torch.uint8)
    pixels, _ = Batches(flat, labels(3), 3).batch(0, 0)
    assert torch.equal(pixels, torch.zeros(3, 1, 2, 2))


def test_batches_are_the_same_in_any_order_and_after_a_resume() -> None:
    options = {"seed": 2, "augmentation": Augmentation(1, flip=True)}
    whole = [batch for epoch in range(3) for batch in make(**options).epoch(epoch)]
    again = make(**options)
    for epoch, number in ((2, 1), (0, 2), (1, 0), (0, 0)):
        pixels, targets = again.batch(epoch, number)
        assert torch.equal(pixels, whole[3 * epoch + number][0])
        assert torch.equal(targets, whole[3 * epoch + number][1])


def test_no_generator_is_read_or_advanced() -> None:
    before = torch.get_rng_state()
    make(augmentation=Augmentation(2, flip=True)).batch(0, 0)
    assert torch.equal(torch.get_rng_state(), before)


@settings(deadline=None, max_examples=40)
@given(
    size=st.integers(1, 40),
    batch=st.integers(1, 50),
    ranks=st.integers(1, 5),
    drop=st.booleans(),
)
def test_ranks_together_see_what_one_process_sees(
    size: int, batch: int, ranks: int, drop: bool
) -> None:
    options = {"drop_single": drop, "augmentation": Augmentation(1, flip=True), "seed": 1}
    one = make(batch, size, **options)
    parts = [make(batch, size, rank=rank, ranks=ranks, **options) for rank in range(ranks)]
    for number in range(len(one)):
        pixels, targets = one.batch(4, number)
        shares = [part.batch(4, number) for part in parts]
        assert torch.equal(torch.cat([share[0] for share in shares]), pixels)
        assert torch.equal(torch.cat([share[1] for share in shares]), targets)
        sizes = [len(share[1]) for share in shares]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("count", "batch", "drop", "sizes"),
    [
        (20, 8, False, [8, 8, 4]),
        (16, 8, True, [8, 8]),
        (17, 8, False, [8, 8, 1]),
        (17, 8, True, [8, 8]),
        (3, 8, True, [3]),
        (2, 1, False, [1, 1]),
    ],
)
def test_the_last_batch_is_smaller_and_counts(count, batch, drop: bool, sizes: list) -> None:
    batches = make(batch, count, drop_single=drop)
    assert [len(targets) for _, targets in batches.epoch(0)] == sizes
    assert len(batches) == len(sizes)


def test_without_shuffling_images_come_as_they_are() -> None:
    targets = torch.cat([targets for _, targets in make(shuffle=False).epoch(5)])
    assert torch.equal(targets, labels())


def test_images_are_channels_last_in_memory(device: str) -> None:
    pixels, targets = make(device=device).batch(0, 0)
    assert pixels.is_contiguous(memory_format=torch.channels_last)
    assert pixels.dtype == torch.float32
    assert targets.dtype == torch.int64
    assert pixels.device.type == targets.device.type == device


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"batch_size": 0}, ValueError, "batch_size must be 1 or more, got 0"),
        ({"batch_size": 2.0}, TypeError, "batch_size must be an int, got float: 2.0"),
        ({"seed": -1}, ValueError, "seed must be in [0, 2**64), got -1"),
        ({"ranks": 0}, ValueError, "ranks must be 1 or more, got 0"),
        ({"rank": 2, "ranks": 2}, ValueError, "rank must be in [0, 2), got 2"),
        ({"augmentation": Augmentation(-1)}, ValueError, "padding must be 0 or more, got -1"),
        (
            {"images": images().float()},
            ValueError,
            "images must be uint8 of shape N x C x H x W, got torch.float32",
        ),
        ({"images": images()[0]}, ValueError, "got torch.uint8 of shape (3, 6, 5)"),
        ({"images": images(0)}, ValueError, "at least one image, got shape (0, 3, 6, 5)"),
        ({"labels": labels(19)}, ValueError, "there are 20 images but 19 labels"),
        ({"labels": labels().float()}, ValueError, "labels must be one integer per image, got"),
    ],
)
def test_bad_input(options: dict, error: type, message: str) -> None:
    given_options = {"images": images(), "labels": labels(), "batch_size": 4, **options}
    with pytest.raises(error, match=re.escape(message)):
        Batches(**given_options)


def test_a_batch_that_is_not_there() -> None:
    with pytest.raises(IndexError, match="an epoch has batches 0 to 2, got 3"):
        make().batch(0, 3)
