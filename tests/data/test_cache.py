"""Invariant: a cache is used only when it is whole, of the same source, and allowed."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from stochbatch import data
from stochbatch.data.cache import digest
from tests.data import official

NAME = "svhn"  # the quickest to write


@pytest.fixture
def entry(tmp_path: Path) -> data.Dataset:
    """A data set whose files in ``tmp_path`` are the published ones."""
    return official.published(NAME, official.write(NAME, tmp_path))


def cache_of(root: Path) -> Path:
    return root / NAME / "cache" / "train.safetensors"


def source(root: Path) -> Path:
    return root / NAME / "train_32x32.mat"


def unreadable(entry: data.Dataset) -> data.Dataset:
    """The same data set, whose source cannot be read: only the cache can answer."""

    def read(paths: object, split: str) -> None:
        raise AssertionError("the source was read")

    return replace(entry, read=read)


def test_the_second_load_does_not_read_the_source(entry: data.Dataset, tmp_path: Path) -> None:
    first = data.load(entry, tmp_path)
    for _ in ("source there", "source gone"):
        second = data.load(unreadable(entry), tmp_path)
        assert torch.equal(first.images, second.images)
        assert torch.equal(first.labels, second.labels)
        assert first.sha256 == second.sha256
        assert second.official
        source(tmp_path).unlink(missing_ok=True)
    assert [path.name for path in cache_of(tmp_path).parent.iterdir()] == ["train.safetensors"]


def test_a_changed_source_is_read_again(entry: data.Dataset, tmp_path: Path) -> None:
    first = data.load(entry, tmp_path, accept_hash=True)
    shutil.copy(tmp_path / NAME / "test_32x32.mat", source(tmp_path))
    second = data.load(entry, tmp_path, accept_hash=True)
    assert (len(first), len(second)) == (official.TRAIN, official.TEST)
    assert not second.official


def test_a_source_of_the_same_size_and_another_time_is_hashed_again(
    entry: data.Dataset, tmp_path: Path
) -> None:
    data.load(entry, tmp_path)
    content = bytearray(source(tmp_path).read_bytes())
    content[10] ^= 1  # in the text of the header: the pixels stay
    source(tmp_path).write_bytes(content)
    os.utime(source(tmp_path), ns=(0, 0))
    with pytest.raises(data.HashError):
        data.load(entry, tmp_path)


def test_the_cache_of_an_accepted_file_is_never_used_instead_of_the_published_one(
    tmp_path: Path,
) -> None:
    official.write(NAME, tmp_path)
    data.load(NAME, tmp_path, accept_hash=True)
    with pytest.raises(data.HashError):
        data.load(NAME, tmp_path)
    source(tmp_path).unlink()
    for accept_hash in (False, True):
        with pytest.raises(data.MissingFileError):
            data.load(NAME, tmp_path, accept_hash=accept_hash)


def test_the_published_file_replaces_the_cache_of_an_accepted_one(
    entry: data.Dataset, tmp_path: Path
) -> None:
    published = source(tmp_path).read_bytes()
    shutil.copy(tmp_path / NAME / "test_32x32.mat", source(tmp_path))
    data.load(entry, tmp_path, accept_hash=True)
    source(tmp_path).write_bytes(published)
    assert data.load(entry, tmp_path).official
    assert data.load(unreadable(entry), tmp_path).official


def test_a_cache_is_not_for_an_entry_that_was_corrected(
    entry: data.Dataset, tmp_path: Path
) -> None:
    data.load(entry, tmp_path)
    for other in (
        replace(entry, shape=(1, 2, 3)),
        replace(entry, train=replace(entry.train, count=1)),
    ):
        with pytest.raises(data.FormatError, match="expected"):
            data.load(other, tmp_path)
    data.load(unreadable(entry), tmp_path)


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def forget_the_source(path: Path) -> None:
    save_file(load_file(path), path)


@pytest.mark.parametrize("damage", [flip_a_bit, cut, empty, forget_the_source])
def test_a_damaged_cache_is_ignored_and_written_again(
    damage: Callable[[Path], None], entry: data.Dataset, tmp_path: Path
) -> None:
    first = data.load(entry, tmp_path)
    damage(cache_of(tmp_path))
    with pytest.warns(data.CacheWarning, match="train.safetensors is damaged") as caught:
        assert data.load(entry, tmp_path).sha256 == first.sha256
    assert caught[0].filename == __file__
    assert data.load(unreadable(entry), tmp_path).sha256 == first.sha256


def test_temporary_files_of_killed_processes_are_removed_in_time(
    entry: data.Dataset, tmp_path: Path
) -> None:
    folder = cache_of(tmp_path).parent
    folder.mkdir()
    old, young = (folder / f".train.safetensors.{name}.tmp" for name in ("4567", "89ab"))
    for path in (old, young):
        path.write_bytes(b"half")
    two_days_ago = time.time() - 2 * 24 * 3600
    os.utime(old, (two_days_ago, two_days_ago))
    data.load(entry, tmp_path)
    assert not old.exists()
    assert young.exists()


def test_a_folder_that_cannot_be_written_to_is_a_warning(
    entry: data.Dataset, tmp_path: Path
) -> None:
    (tmp_path / NAME / "cache").write_text("a file where the folder should be")
    with pytest.warns(data.CacheWarning, match="cannot be written"):
        assert len(data.load(entry, tmp_path)) == official.TRAIN


def test_a_full_disk_leaves_no_half_written_file(
    entry: data.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(data.CacheWarning, match="No space left on device"):
        assert len(data.load(entry, tmp_path)) == official.TRAIN
    assert list(cache_of(tmp_path).parent.iterdir()) == []


@pytest.mark.filterwarnings("ignore::stochbatch.data.CacheWarning")
def test_processes_that_load_and_delete_at_once_agree(tmp_path: Path) -> None:
    official.write(NAME, tmp_path)
    expected = data.load(NAME, tmp_path, accept_hash=True).sha256
    code = (
        "import sys, shutil, stochbatch.data as data\n"
        "for _ in range(20):\n"
        "    print(data.load('svhn', sys.argv[1], accept_hash=True).sha256)\n"
        "    shutil.rmtree(sys.argv[1] + '/svhn/cache', ignore_errors=True)\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        while other.poll() is None:
            assert data.load(NAME, tmp_path, accept_hash=True).sha256 == expected
        assert other.stdout.read().split() == 20 * [expected]


def test_the_digest_is_that_of_the_documented_bytes() -> None:
    images, labels = np.arange(8, dtype=np.uint8).reshape(2, 1, 2, 2), np.array([3, 9])
    content = b'["stochbatch split", 2, 1, 2, 2]' + bytes(range(8))
    content += (3).to_bytes(8, "little") + (9).to_bytes(8, "little")
    assert digest(images, labels) == hashlib.sha256(content).hexdigest()
