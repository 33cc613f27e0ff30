"""From a name to images and labels."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from stochbatch.data import cache
from stochbatch.data.catalogue import Dataset, Part, SourceFile, entry_of
from stochbatch.data.data_errors import CacheWarning, FormatError, MissingFileError
from stochbatch.data.folder import data_root, find, hash_error, sha256_of
from stochbatch.data.formats import Arrays


@dataclass(frozen=True, eq=False, repr=False)
class Split:
    """Images and labels of a part of a data set.

    Args:
        images: uint8, N x C x H x W.
        labels: int64 of shape N, from 0 on.
        name: name of the data set.
        split: ``"train"`` or ``"test"``.
        classes: names of the classes.
        official: whether the source files were the published ones.
        sha256: digest of shape, pixels and labels: equal if and only if the content is.

    Example:
        >>> from stochbatch import data
        >>> digits = data.load("digits")
        >>> digits
        Split('digits', 'train', 1,352 images of 1x8x8, official, sha256 f984d69d...)
        >>> images, labels = digits
        >>> images.dtype, labels[:5].tolist()
        (torch.uint8, [0, 1, 2, 3, 4])
    """

    images: Tensor
    labels: Tensor
    name: str
    split: str
    classes: tuple[str, ...]
    official: bool
    sha256: str

    def __iter__(self) -> Iterator[Tensor]:
        """Yield the images, then the labels."""
        yield self.images
        yield self.labels

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.images.shape[1:]))
        origin = "official" if self.official else "not official"
        return (
            f"Split({self.name!r}, {self.split!r}, {len(self):,} images of {shape}, "
            f"{origin}, sha256 {self.sha256[:8]}...)"
        )


def load(
    name: str | Dataset,
    root: str | os.PathLike[str] | None = None,
    split: str = "train",
    *,
    accept_hash: bool = False,
) -> Split:
    """Load a split of a data set whose files are there; `get` fetches them.

    Args:
        name: name of the data set, or an entry like those in `DATASETS`.
        root: the folder of all data, see `data_root`. A data set's files lie in the folder
            of its name there, or in ``root`` itself.
        split: ``"train"`` or ``"test"``.
        accept_hash: take files that are not the published ones, and that may have fewer images
            than those. The split then says ``official=False``.

    Returns:
        The split, which unpacks into images and labels.

    Raises:
        MissingFileError: a file is not there.
        HashError: a file is not the published one.
        FormatError: a file is damaged or has another layout.

    Example:
        >>> from stochbatch import data
        >>> images, labels = data.load("digits", split="test")
        >>> images.shape, labels.shape
        (torch.Size([445, 1, 8, 8]), torch.Size([445]))
    """
    entry = entry_of(name)
    part, folder = entry.part(split), data_root(root)
    paths = [find(entry, file, folder) for file in part.files]
    store = folder / entry.name / "cache" / f"{split}.safetensors"
    cached = _cached(store, entry, split, paths, accept_hash) if part.files else None
    if cached is None:
        there = [path for path in paths if path is not None]
        if len(there) < len(paths):
            raise _missing(entry, part, paths, folder)
        sources = [_verified(*pair, accept_hash) for pair in zip(part.files, there, strict=True)]
        where = " and ".join(map(str, there)) or entry.name
        read = entry.read(there, split, (part.count, *entry.shape))
        arrays = _checked(read, where, entry, split, accept_hash)
        cached = cache.Cached(arrays, cache.digest(*arrays), sources)
        if part.files:
            cache.write(store, entry.name, split, cached)
    images, labels = map(torch.from_numpy, cached.arrays)
    official = _is_official(cached, part)
    return Split(images, labels, entry.name, split, entry.classes, official, cached.sha256)


def _is_official(cached: cache.Cached, part: Part) -> bool:
    return [source.sha256 for source in cached.sources] == [file.sha256 for file in part.files]


def _cached(
    store: Path, entry: Dataset, split: str, paths: Sequence[Path | None], accept_hash: bool
) -> cache.Cached | None:
    """Return the cache of the files at ``paths``, or of published ones now gone.

    A cache of something else is a warning, and not used.
    """
    try:
        cached = cache.read(store, entry.name, split)
        part = entry.part(split)
        if cached is None or not (accept_hash or _is_official(cached, part)):
            return None
        every = zip(part.files, paths, cached.sources, strict=True)
        if not all(_as_it_was(*each) for each in every):
            return None
        arrays = _checked(cached.arrays, "its arrays", entry, split, accept_hash)
    except (ValueError, FormatError) as error:
        warnings.warn(
            f"the cache {store} is not used ({error}); the source is read instead",
            CacheWarning,
            stacklevel=3,
        )
        return None
    return cached._replace(arrays=arrays)


def _as_it_was(file: SourceFile, path: Path | None, before: cache.Source) -> bool:
    """Return whether a source has kept its size and time; if it is gone, if it was published."""
    return before.sha256 == file.sha256 if path is None else _stamp(path) == before[1:]


def _stamp(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


def _missing(
    entry: Dataset, part: Part, paths: Sequence[Path | None], folder: Path
) -> MissingFileError:
    files = [file for file, path in zip(part.files, paths, strict=True) if path is None]
    return MissingFileError(
        f"{', '.join(file.name for file in files)} of {entry.name} is neither in "
        f"{folder / entry.name} nor in {folder}. Fetch it (stochbatch data get {entry.name} "
        f"--data-root {folder}), or put it there by hand, "
        f"from {', '.join(file.url for file in files)}"
    )


def _verified(file: SourceFile, path: Path, accept_hash: bool) -> cache.Source:
    stamp = _stamp(path)  # before the hash: a change while it is computed is seen next time
    found = sha256_of(path)
    if found != file.sha256 and not accept_hash:
        raise hash_error(
            file,
            path,
            found,
            "Fetch it again, or use it as it is (--accept-hash; accept_hash=True in Python); "
            "the result is then marked as not official.",
        )
    return cache.Source(found, *stamp)


def _checked(arrays: Arrays, where: str, entry: Dataset, split: str, accept_hash: bool) -> Arrays:
    """Return images and labels as torch takes them, if they are what the entry says."""
    images, labels = arrays
    if images.shape[1:] != entry.shape:
        raise FormatError(f"{where}: images of {images.shape[1:]}, expected {entry.shape}")
    if labels.shape != images.shape[:1]:
        raise FormatError(f"{where}: {len(images):,} images, but {labels.size:,} labels")
    count, expected = len(images), entry.part(split).count
    if not 0 < count <= expected or (count < expected and not accept_hash):
        raise FormatError(f"{where}: {count:,} images in the {split} part, expected {expected:,}")
    if images.dtype != np.uint8:
        raise FormatError(f"{where}: pixels of {images.dtype}, expected uint8 from 0 to 255")
    classes = len(entry.classes)
    if not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0 or labels.max() >= classes:
        raise FormatError(f"{where}: labels must be integers from 0 to {classes - 1}")
    # Arrays made from bytes are read-only, which torch tensors cannot be.
    return np.require(images, np.uint8, ["C", "W"]), np.require(labels, np.int64, ["C", "W"])
