"""Invariant: a cache is used only when it is whole, of the same source, and allowed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from stochbatch import data
from stochbatch.data.cache import digest
from tests.data import official
from tests.forked import Forked

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

    def read(*_: object) -> None:
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
    with pytest.raises(data.MissingFileError):
        data.load(NAME, tmp_path)
    with pytest.raises(data.MissingFileError):
        data.load(NAME, tmp_path, accept_hash=True)


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
        with (
            pytest.raises(data.FormatError, match="must|expected"),
            pytest.warns(data.CacheWarning),
        ):
            data.load(other, tmp_path)
    data.load(unreadable(entry), tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\xff"),
        lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
        lambda path: path.write_bytes(b""),
        lambda path: save_file(load_file(path), path),  # without what it says of its source
    ],
)
def test_a_damaged_cache_is_ignored_and_written_again(
    damage: Callable[[Path], None], entry: data.Dataset, tmp_path: Path
) -> None:
    first = data.load(entry, tmp_path)
    damage(cache_of(tmp_path))
    with pytest.warns(data.CacheWarning, match="not used .it is damaged") as caught:
        assert data.load(entry, tmp_path).sha256 == first.sha256
    assert caught[0].filename == __file__
    assert data.load(unreadable(entry), tmp_path).sha256 == first.sha256


def test_a_source_with_another_time_is_read_again_and_cached_again(
    entry: data.Dataset, tmp_path: Path
) -> None:
    data.load(entry, tmp_path)
    os.utime(source(tmp_path), ns=(0, 0))
    assert data.load(entry, tmp_path).official
    assert data.load(unreadable(entry), tmp_path).official


def forge(path: Path, facts: dict[str, object] | None = None, **arrays: np.ndarray) -> None:
    """Write a cache with some of its arrays and facts replaced, and the right digest."""
    with safe_open(path, "np") as file:
        recorded = json.loads(file.metadata()["split"])
    arrays = {**load_file(path), **arrays}
    recorded |= {"sha256": digest(arrays["images"], arrays["labels"]), **(facts or {})}
    save_file(arrays, path, {"split": json.dumps(recorded)})


IMAGES, LABELS = np.zeros((10, 3, 32, 32), np.uint8), np.arange(10)


@pytest.mark.parametrize(
    ("arrays", "why"),
    [
        ({"images": IMAGES[:9], "labels": LABELS[:9]}, "9 images in the train part, expected 10"),
        ({"images": np.repeat(IMAGES, 2, 0), "labels": np.repeat(LABELS, 2)}, "20 images"),
        ({"labels": LABELS[:9]}, "10 images, but 9 labels"),
        ({"labels": LABELS[:, None]}, "10 images, but 10 labels"),
        ({"labels": np.array(3)}, "10 images, but 1 labels"),
        ({"labels": LABELS + 1}, "labels must be integers from 0 to 9"),
        ({"labels": LABELS / 2}, "labels must be integers"),
        ({"images": IMAGES[:, :1]}, r"images of \(1, 32, 32\), expected"),
        ({"images": IMAGES.astype(np.float32)}, "pixels of float32"),
        ({"images": np.array(0, np.uint8)}, r"images of \(\), expected"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_cache_of_other_arrays_than_the_catalogue_declares_is_refused(
    arrays: dict[str, np.ndarray], why: str, entry: data.Dataset, tmp_path: Path
) -> None:
    first = data.load(entry, tmp_path)
    forge(cache_of(tmp_path), **arrays)
    with pytest.warns(data.CacheWarning, match=f"is not used .*{why}") as caught:
        assert data.load(entry, tmp_path).sha256 == first.sha256
    assert len(caught) == 1
    forge(cache_of(tmp_path), **arrays)
    source(tmp_path).unlink()
    with pytest.raises(data.MissingFileError), pytest.warns(data.CacheWarning, match=why):
        data.load(entry, tmp_path)


def test_a_cache_of_more_images_than_there_are_is_refused_even_if_accepted(
    entry: data.Dataset, tmp_path: Path
) -> None:
    data.load(entry, tmp_path, accept_hash=True)
    forge(cache_of(tmp_path), images=np.repeat(IMAGES, 2, 0), labels=np.repeat(LABELS, 2))
    with pytest.warns(data.CacheWarning, match="20 images in the train part, expected 10"):
        assert len(data.load(entry, tmp_path, accept_hash=True)) == 10


def test_a_cache_of_the_other_split_is_refused(tmp_path: Path) -> None:
    """Both parts of CIFAR-10 come from one file, so that its hash does not tell."""
    official.write("cifar10", tmp_path)
    first = data.load("cifar10", tmp_path, "test", accept_hash=True)
    data.load("cifar10", tmp_path, "train", accept_hash=True)
    folder = tmp_path / "cifar10" / "cache"
    shutil.copy(folder / "train.safetensors", folder / "test.safetensors")
    with pytest.warns(data.CacheWarning, match="it is of cifar10, train"):
        assert data.load("cifar10", tmp_path, "test", accept_hash=True).sha256 == first.sha256


@pytest.mark.parametrize("accept_hash", [False, True])
def test_a_cache_of_another_data_set_or_number_of_files_is_refused(
    accept_hash: bool, entry: data.Dataset, tmp_path: Path
) -> None:
    """Even if its files are the same, with the same sizes and times."""
    data.load(entry, tmp_path)
    shutil.copytree(tmp_path / NAME, tmp_path / "other")
    other = replace(entry, name="other")
    with pytest.warns(data.CacheWarning, match="it is of svhn, train"):
        assert data.load(other, tmp_path, accept_hash=accept_hash).official
    forge(cache_of(tmp_path), {"sources": []}, images=IMAGES, labels=LABELS)
    with pytest.warns(data.CacheWarning, match="is not used") if accept_hash else nullcontext():
        assert data.load(entry, tmp_path, accept_hash=accept_hash).images.any()


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
        "import sys, shutil, warnings, stochbatch.data as data\n"
        "warnings.simplefilter('ignore')\n"
        "for _ in range(10):\n"
        "    print(data.load('svhn', sys.argv[1], accept_hash=True).sha256, flush=True)\n"
        "    shutil.rmtree(sys.argv[1] + '/svhn/cache', ignore_errors=True)\n"
    )
    other = Forked(["python", "-c", code, tmp_path])
    while other.poll() is None and not other.stdout.stat().st_size:
        time.sleep(0.01)
    while other.poll() is None:
        assert data.load(NAME, tmp_path, accept_hash=True).sha256 == expected
    assert other.wait(10).stdout.split() == 10 * [expected]


def test_the_digest_is_that_of_the_documented_bytes() -> None:
    images, labels = np.arange(8, dtype=np.uint8).reshape(2, 1, 2, 2), np.array([3, 9])
    content = b'["stochbatch split", 2, 1, 2, 2]' + bytes(range(8))
    content += (3).to_bytes(8, "little") + (9).to_bytes(8, "little")
    assert digest(images, labels) == hashlib.sha256(content).hexdigest()
