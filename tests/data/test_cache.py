"""Invariant: a cache is believed only when it is whole, of the same source, and allowed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from stochbatch import data
from stochbatch.data import cache
from stochbatch.data.cache import digest
from tests.data import official

NAME = "svhn"  # the quickest to write


@pytest.fixture
def entry(tmp_path: Path) -> data.Dataset:
    """A data set whose files in ``tmp_path`` are the published ones."""
    return official.published(NAME, official.write(NAME, tmp_path))


def cache_of(root: Path) -> Path:
    return root / NAME / "cache"


def source(root: Path) -> Path:
    return root / NAME / "train_32x32.mat"


def unreadable(entry: data.Dataset) -> data.Dataset:
    """The same data set, whose source cannot be read: only the cache can answer."""

    def read(paths: object, split: str) -> None:
        raise AssertionError("the source was read")

    return replace(entry, read=read)


def test_the_second_load_does_not_read_the_source(entry: data.Dataset, tmp_path: Path) -> None:
    first = data.load(entry, tmp_path)
    second = data.load(unreadable(entry), tmp_path)
    assert torch.equal(first.images, second.images)
    assert torch.equal(first.labels, second.labels)
    assert first.sha256 == second.sha256


def test_the_cache_stands_in_for_a_source_that_is_gone(entry: data.Dataset, tmp_path: Path) -> None:
    first = data.load(entry, tmp_path)
    source(tmp_path).unlink()
    assert data.load(entry, tmp_path).sha256 == first.sha256


def test_a_changed_source_is_read_again(entry: data.Dataset, tmp_path: Path) -> None:
    first = data.load(entry, tmp_path, accept_hash=True)
    shutil.copy(tmp_path / NAME / "test_32x32.mat", source(tmp_path))
    second = data.load(entry, tmp_path, accept_hash=True)
    assert (len(first), len(second)) == (official.TRAIN, official.TEST)
    assert not second.official


def test_a_source_of_the_same_size_and_another_time_is_read_again(
    entry: data.Dataset, tmp_path: Path
) -> None:
    data.load(entry, tmp_path)
    content = bytearray(source(tmp_path).read_bytes())
    content[10] ^= 1  # in the text of the header: the pixels stay
    source(tmp_path).write_bytes(content)
    os.utime(source(tmp_path), ns=(0, 0))
    with pytest.raises(data.HashError):
        data.load(entry, tmp_path)


def test_the_arrays_of_an_old_source_are_removed(entry: data.Dataset, tmp_path: Path) -> None:
    data.load(entry, tmp_path, accept_hash=True)
    shutil.copy(tmp_path / NAME / "test_32x32.mat", source(tmp_path))
    data.load(entry, tmp_path, accept_hash=True)
    assert len(list(cache_of(tmp_path).glob("train-*.npy"))) == 2


def test_an_unofficial_cache_is_not_for_a_strict_caller(tmp_path: Path) -> None:
    official.write(NAME, tmp_path)
    data.load(NAME, tmp_path, accept_hash=True)
    with pytest.raises(data.HashError):
        data.load(NAME, tmp_path)


def test_an_unofficial_cache_without_its_source_is_not_for_a_strict_caller(tmp_path: Path) -> None:
    official.write(NAME, tmp_path)
    data.load(NAME, tmp_path, accept_hash=True)
    source(tmp_path).unlink()
    with pytest.raises(data.MissingFileError, match="accept_hash=True uses it"):
        data.load(NAME, tmp_path)
    assert not data.load(NAME, tmp_path, accept_hash=True).official


def test_a_cache_cannot_call_itself_official(tmp_path: Path) -> None:
    official.write(NAME, tmp_path)
    data.load(NAME, tmp_path, accept_hash=True)
    card = cache_of(tmp_path) / "train.json"
    card.write_text(card.read_text().replace('"official": false', '"official": true'))
    with pytest.raises(data.HashError):
        data.load(NAME, tmp_path)


def test_a_strict_load_after_a_fetch_replaces_an_unofficial_cache(
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
    first = data.load(entry, tmp_path)
    for other in (
        replace(entry, shape=(1, 2, 3)),
        replace(entry, train=replace(entry.train, count=1)),
    ):
        with pytest.raises(data.FormatError, match="expected"):
            data.load(other, tmp_path)
    assert torch.equal(data.load(unreadable(entry), tmp_path).images, first.images)


def test_no_bit_of_a_header_can_stop_a_load(tmp_path: Path) -> None:
    images, labels = np.zeros((2, 1, 2, 2), np.uint8), np.zeros(2, np.int64)
    card = cache.Card(digest(images, labels), images.shape, ())
    cache.write(tmp_path, "train", card, (images, labels), False)
    (path,) = tmp_path.glob("train-*-images.npy")
    content = path.read_bytes()
    for bit in range(8 * 128):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = cache.read_arrays(tmp_path, "train", card)
        if found is None:
            assert [warning.category for warning in caught] == [data.CacheWarning]
        else:  # one of the spaces that fill it up
            assert np.array_equal(found[0], images)


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def pickle_in(path: Path) -> None:
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)


def archive_in(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, a=np.zeros(3))


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("kind", ["images", "labels"])
@pytest.mark.parametrize("damage", [flip_a_bit, cut, pickle_in, archive_in, empty, Path.unlink])
def test_damaged_arrays_are_ignored_and_written_again(
    damage: Callable[[Path], None], kind: str, entry: data.Dataset, tmp_path: Path
) -> None:
    first = data.load(entry, tmp_path)
    (path,) = cache_of(tmp_path).glob(f"train-*-{kind}.npy")
    damage(path)
    with pytest.warns(data.CacheWarning, match="is damaged and not used") as caught:
        assert data.load(entry, tmp_path).sha256 == first.sha256
    assert caught[0].filename == __file__
    assert data.load(unreadable(entry), tmp_path).sha256 == first.sha256


class Bomb:
    """Leaves a file behind if it is ever unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.trace,)


@pytest.mark.parametrize("kind", ["images", "labels"])
def test_a_pickle_in_a_cache_is_never_run(kind: str, entry: data.Dataset, tmp_path: Path) -> None:
    data.load(entry, tmp_path)
    (path,) = cache_of(tmp_path).glob(f"train-*-{kind}.npy")
    np.save(path, np.array([Bomb(tmp_path / "trace")], dtype=object), allow_pickle=True)
    with pytest.warns(data.CacheWarning, match="is damaged and not used"):
        data.load(entry, tmp_path)
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"format": 1}', '{"format": 1, "sources": 3}', "\udcff"]
)
def test_a_damaged_card_is_ignored_and_written_again(
    text: str, entry: data.Dataset, tmp_path: Path
) -> None:
    data.load(entry, tmp_path)
    (cache_of(tmp_path) / "train.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.warns(data.CacheWarning, match="train.json is damaged") as caught:
        data.load(entry, tmp_path)
    assert caught[0].filename == __file__
    data.load(unreadable(entry), tmp_path)


def test_a_card_cannot_point_out_of_its_folder(entry: data.Dataset, tmp_path: Path) -> None:
    data.load(entry, tmp_path)
    card = cache_of(tmp_path) / "train.json"
    facts = json.loads(card.read_text())
    card.write_text(json.dumps({**facts, "sha256": "../" * 21 + "x"}))
    with pytest.warns(data.CacheWarning, match="no SHA-256"):
        data.load(entry, tmp_path)


def test_a_card_of_another_version_is_passed_over(entry: data.Dataset, tmp_path: Path) -> None:
    data.load(entry, tmp_path)
    card = cache_of(tmp_path) / "train.json"
    card.write_text(json.dumps({"format": 0}))
    data.load(entry, tmp_path)
    assert json.loads(card.read_text())["format"] == 1


class Killed(BaseException):
    """Stands for the end of the process: nothing below `BaseException` may swallow it."""


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_a_kill_between_two_renames_leaves_nothing_that_is_believed(
    renames: int, entry: data.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename, done = os.replace, []

    def dying(old: object, new: object) -> None:
        if len(done) == renames:
            raise Killed
        done.append(new)
        rename(old, new)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", dying)
        with pytest.raises(Killed):
            data.load(entry, tmp_path)
    assert not (cache_of(tmp_path) / "train.json").exists()
    assert len(data.load(entry, tmp_path)) == official.TRAIN


def test_a_kill_while_a_new_source_is_cached_leaves_the_old_card_harmless(
    entry: data.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data.load(entry, tmp_path, accept_hash=True)
    shutil.copy(tmp_path / NAME / "test_32x32.mat", source(tmp_path))

    def dying(old: object, new: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", dying)
        with pytest.raises(Killed):
            data.load(entry, tmp_path, accept_hash=True)
    assert len(data.load(entry, tmp_path, accept_hash=True)) == official.TEST


def test_temporary_files_of_killed_processes_are_removed_in_time(
    entry: data.Dataset, tmp_path: Path
) -> None:
    cache_of(tmp_path).mkdir()
    old = cache_of(tmp_path) / ".train-0123-images.npy.4567.tmp"
    young = cache_of(tmp_path) / ".train-0123-images.npy.89ab.tmp"
    for path in (old, young):
        path.write_bytes(b"half")
    two_days_ago = time.time() - 2 * 24 * 3600
    os.utime(old, (two_days_ago, two_days_ago))
    data.load(entry, tmp_path)
    assert not old.exists()
    assert young.exists()


def test_a_cache_leaves_no_temporary_file(entry: data.Dataset, tmp_path: Path) -> None:
    data.load(entry, tmp_path)
    kinds = sorted(path.suffix for path in cache_of(tmp_path).iterdir())
    assert kinds == [".json", ".npy", ".npy"]


def test_a_folder_that_cannot_be_written_to_warns_once(entry: data.Dataset, tmp_path: Path) -> None:
    cache_of(tmp_path).write_text("a file where the folder should be")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            assert len(data.load(entry, tmp_path)) == official.TRAIN
    unwritable = [w for w in caught if "cannot be written to" in str(w.message)]
    assert [w.category for w in unwritable] == [data.CacheWarning]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root writes anywhere")
def test_a_read_only_root_can_be_loaded_from(entry: data.Dataset, tmp_path: Path) -> None:
    folder = tmp_path / NAME
    folder.chmod(0o555)
    try:
        with pytest.warns(data.CacheWarning, match="cannot be written to"):
            assert len(data.load(entry, tmp_path)) == official.TRAIN
    finally:
        folder.chmod(0o755)


def test_a_full_disk_leaves_no_half_written_file(
    entry: data.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(data.CacheWarning, match="No space left on device"):
        assert len(data.load(entry, tmp_path)) == official.TRAIN
    assert list(cache_of(tmp_path).iterdir()) == []


def test_threads_that_load_at_once_agree(entry: data.Dataset, tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        splits = list(pool.map(lambda _: data.load(entry, tmp_path), range(16)))
    assert len({split.sha256 for split in splits}) == 1
    data.load(unreadable(entry), tmp_path)


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


def test_the_digest_covers_shape_pixels_and_labels() -> None:
    images, labels = np.zeros((2, 1, 4, 6), np.uint8), np.array([0, 1])
    one = images.copy()
    one[1, 0, 3, 5] = 1
    variants = [
        (images, labels),
        (images.reshape(2, 1, 6, 4), labels),
        (one, labels),
        (images, labels[::-1]),
    ]
    assert len({digest(*variant) for variant in variants}) == 4


def test_the_digest_is_that_of_the_documented_bytes() -> None:
    images, labels = np.arange(8, dtype=np.uint8).reshape(2, 1, 2, 2), np.array([3, 9])
    content = b'["stochbatch split", 2, 1, 2, 2]' + bytes(range(8))
    content += (3).to_bytes(8, "little") + (9).to_bytes(8, "little")
    assert digest(images, labels) == hashlib.sha256(content).hexdigest()
