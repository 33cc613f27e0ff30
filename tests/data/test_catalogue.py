"""Invariant: every data set is described completely, with a hash and an address for each file."""

from __future__ import annotations

import string
from dataclasses import replace

import pytest

from stochbatch import data

PUBLISHED = {
    "cifar10": (50_000, 10_000, (3, 32, 32), 1),
    "svhn": (73_257, 26_032, (3, 32, 32), 2),
    "stl10": (5_000, 8_000, (3, 96, 96), 1),
    "digits": (1_352, 445, (1, 8, 8), 0),
}


def test_an_entry_is_registered_under_its_own_name_alone() -> None:
    """Else its cache would be another's."""
    with pytest.raises(ValueError, match="'cifar10' cannot be registered as 'mine'"):
        data.DATASETS.add("mine", "Mine.", replace(data.DATASETS["cifar10"], shape=(1, 32, 32)))
    assert "mine" not in data.DATASETS


@pytest.mark.parametrize("name", data.DATASETS)
def test_counts_and_shapes_are_the_published_ones(name: str) -> None:
    entry = data.DATASETS[name]
    assert entry.name == name
    found = (entry.train.count, entry.test.count, entry.shape, len(entry.files))
    assert found == PUBLISHED[name]
    assert len(set(entry.classes)) == 10
    assert data.DATASETS.summary(name).startswith(f"{found[0]:,} + {found[1]:,}")
    padding, flip = entry.augmentation
    assert padding == entry.shape[1] // 8  # 4 pixels, of 96x96 images 12
    assert flip == (name in ("cifar10", "stl10"))  # never digits


def test_every_file_has_an_address_that_ends_in_its_name_and_a_hash_of_its_own() -> None:
    files = [file for entry in data.DATASETS.values() for file in entry.files]
    for file in files:
        assert file.url.startswith(("https://", "http://"))
        assert file.url.endswith("/" + file.name)
        assert file.size > 4_000
        assert len(file.sha256) == 64
        assert set(file.sha256) <= set(string.hexdigits.lower())
    assert len({file.sha256 for file in files}) == len(files)
