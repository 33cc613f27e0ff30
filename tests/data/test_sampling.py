"""Invariant: order, subset, crops and flips are functions of (seed, epoch, position)."""

import re
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from stochbatch.data.sampling import Augmentation, epoch_draws, epoch_order, subset


@given(seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 10**6), size=st.integers(0, 300))
def test_an_order_visits_every_sample_once(seed: int, epoch: int, size: int) -> None:
    assert sorted(epoch_order(seed, epoch, size).tolist()) == list(range(size))


def test_orders_differ_by_seed_and_by_epoch_and_by_nothing_else() -> None:
    first = epoch_order(1, 2, 1000)
    torch.manual_seed(5)
    assert torch.equal(epoch_order(1, 2, 1000), first)
    assert not torch.equal(epoch_order(1, 3, 1000), first)
    assert not torch.equal(epoch_order(2, 2, 1000), first)


def test_all_orders_are_equally_likely() -> None:
    """Chi-square over the 24 orders of four; a false alarm once in a thousand seeds."""
    orders = [tuple(epoch_order(3, epoch, 4).tolist()) for epoch in range(480)]
    counts = [orders.count(order) for order in sorted(set(orders))]
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 1e-3


@given(
    seed=st.integers(0, 2**32),
    size=st.integers(1, 200),
    share=st.sampled_from([1.0, 0.5, 0.25, 0.125, 1 / 3, Fraction(1, 8), 1e-9]),
)
def test_a_subset_is_in_order_and_of_the_size_asked(seed: int, size: int, share: float) -> None:
    chosen = subset(seed, size, share).tolist()
    assert chosen == sorted(set(chosen))
    assert set(chosen) <= set(range(size))
    assert len(chosen) == max(1, round(Fraction(share).limit_denominator(1 << 20) * size))


def test_shares_of_the_article_s_data_are_whole() -> None:
    assert [len(subset(0, 50_000, 1 / n)) for n in (1, 2, 4, 8)] == [50_000, 25_000, 12_500, 6_250]


def test_another_seed_draws_another_subset_and_every_sample_has_its_chance() -> None:
    """Each sample is in half of 200 subsets, within five standard deviations."""
    counts = torch.zeros(50)
    for seed in range(200):
        counts[subset(seed, 50, 0.5)] += 1
    assert (counts - 100).abs().max() < 36


def test_subset_and_order_are_independent() -> None:
    chosen = subset(0, 1000, 0.5)
    first = epoch_order(0, 0, 1000)[:500]
    shared = len(set(chosen.tolist()) & set(first.tolist()))
    assert 190 < shared < 310  # 250 with a standard deviation of 8


@pytest.mark.parametrize(
    ("share", "error", "message"),
    [
        (0, ValueError, "share must be in (0, 1], got 0"),
        (1.5, ValueError, "share must be in (0, 1], got 1.5"),
        (-0.5, ValueError, "share must be in (0, 1], got -0.5"),
        (float("nan"), ValueError, "share must be in (0, 1], got nan"),
        ("1/8", TypeError, "share must be a number, got str: '1/8'"),
        (True, TypeError, "share must be a number, got bool: True"),
    ],
)
def test_a_share_that_is_none(share: object, error: type, message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        subset(0, 10, share)


def test_crops_begin_everywhere_alike_and_half_of_the_images_are_flipped() -> None:
    """Chi-square over 81 places; a false alarm once in a thousand seeds."""
    draws = epoch_draws(0, 0, 81_000, Augmentation(4, flip=True))
    places = draws.rows * 9 + draws.columns
    counts = torch.bincount(places, minlength=81)
    assert len(counts) == 81
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3
    assert abs(draws.flips.double().mean() - 0.5) < 0.01


def test_rows_columns_and_flips_are_drawn_apart_and_anew_for_each_epoch_and_seed() -> None:
    """Of 81,000 pairs of independent draws a ninth agree (half of the flips): within 1 %."""
    augmentation = Augmentation(4, flip=True)
    first = epoch_draws(0, 0, 81_000, augmentation)
    assert abs((first.rows == first.columns).double().mean() - 1 / 9) < 0.01
    for seed, epoch in ((0, 1), (1, 0)):
        for one, other in zip(first, epoch_draws(seed, epoch, 81_000, augmentation), strict=True):
            expected = 1 / 2 if one.dtype == torch.bool else 1 / 9
            assert abs((one == other).double().mean() - expected) < 0.01


def test_without_augmentation_nothing_is_drawn() -> None:
    draws = epoch_draws(0, 0, 100, Augmentation())
    assert not draws.rows.any()
    assert not draws.columns.any()
    assert not draws.flips.any()
