"""A split as plain arrays on the disk, so that the second load is fast.

``<root>/<name>/cache`` holds, for each split, two ``.npy`` files whose names contain the
digest of their content, and a ``.json`` that names this digest and the source files. The
``.json`` is renamed into its place last: until then, nothing refers to the new arrays. They
are checked against the digest whenever they are read, so what a killed process, a full disk
or another process left there is never believed.
"""

from __future__ import annotations

import hashlib
import json
import string
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from stochbatch.data.atomic import remove_forgotten, write_atomically
from stochbatch.data.catalogue import Part
from stochbatch.data.errors import CacheWarning
from stochbatch.data.formats import Arrays, Images, Labels

FORMAT = 1
KINDS = ("images", "labels")
_unwritable: set[Path] = set()


@dataclass(frozen=True)
class Source:
    """A source file as it was when it was read."""

    name: str
    size: int
    mtime_ns: int
    sha256: str

    def is_still(self, path: Path | None) -> bool:
        """Whether ``path`` has not changed since; a file that is gone has not."""
        if path is None:
            return True
        stat = path.stat()
        return (stat.st_size, stat.st_mtime_ns) == (self.size, self.mtime_ns)


@dataclass(frozen=True)
class Card:
    """What the ``.json`` of a cached split says."""

    sha256: str
    shape: tuple[int, ...]
    sources: tuple[Source, ...]

    def is_official(self, part: Part) -> bool:
        """Whether the sources are the published files of ``part``."""
        return [(source.name, source.sha256) for source in self.sources] == [
            (file.name, file.sha256) for file in part.files
        ]

    def is_of(self, paths: Sequence[Path | None]) -> bool:
        """Whether it was made from the files at ``paths``, as far as those are there."""
        return len(paths) == len(self.sources) and all(
            source.is_still(path) for source, path in zip(self.sources, paths, strict=True)
        )


def digest(images: Images, labels: Labels) -> str:
    """Return the SHA-256 of a split's content: its shape, its pixels, its labels.

    Example:
        >>> import numpy as np
        >>> from stochbatch.data.cache import digest
        >>> digest(np.zeros((1, 1, 2, 2), np.uint8), np.array([3]))[:16]
        'f72e80faa45e2fc3'
    """
    # The shape says where the pixels end, so no two contents give the same bytes.
    content = hashlib.sha256(json.dumps(["stochbatch split", *images.shape]).encode())
    content.update(np.ascontiguousarray(images).data)
    content.update(np.ascontiguousarray(labels, dtype="<i8").data)
    return content.hexdigest()


def read_card(folder: Path, split: str) -> Card | None:
    """Return what is known of a cached split, or None if there is none."""
    path = folder / f"{split}.json"
    try:
        facts = json.loads(path.read_bytes())
        return _card(facts) if facts["format"] == FORMAT else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        _warn_damaged(path, error)
        return None


def _card(facts: dict[str, Any]) -> Card:
    sources = tuple(Source(**source) for source in facts["sources"])
    sha256 = facts["sha256"]
    if len(sha256) != 64 or not set(sha256) <= set(string.hexdigits):
        raise ValueError(f"no SHA-256: {sha256!r}")  # it becomes part of a file name
    return Card(sha256, tuple(facts["shape"]), sources)


def read_arrays(folder: Path, split: str, card: Card) -> Arrays | None:
    """Return the arrays of a cached split, or None, with a warning, if they are damaged."""
    path = _array_path(folder, split, card.sha256, "images")
    try:
        images = np.load(path, allow_pickle=False)
        labels = np.load(_array_path(folder, split, card.sha256, "labels"), allow_pickle=False)
        if (images.shape, images.dtype) != (card.shape, np.uint8):
            raise ValueError(f"{images.dtype} of {images.shape}, expected uint8 of {card.shape}")
        if (labels.shape, labels.dtype) != (card.shape[:1], np.int64):
            raise ValueError(f"labels are {labels.dtype} of {labels.shape}")
        if digest(images, labels) != card.sha256:
            raise ValueError("its content does not have the recorded SHA-256")
    except Exception as error:  # numpy lets out whatever reading a broken header raised
        _warn_damaged(path, error)
        return None
    return images, labels


def _warn_damaged(path: Path, error: Exception) -> None:
    warnings.warn(
        f"the cache {path} is damaged and not used ({error}); the source is read again",
        CacheWarning,
        stacklevel=4,
    )


def write(folder: Path, split: str, card: Card, arrays: Arrays, official: bool) -> None:
    """Store a split; a folder that cannot be written to is a warning, once."""
    facts = {"format": FORMAT, **asdict(card), "official": official}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for kind, array in zip(KINDS, arrays, strict=True):
            path = _array_path(folder, split, card.sha256, kind)
            write_atomically(path, partial(_save, array))
        text = json.dumps(facts, indent=1).encode()
        write_atomically(folder / f"{split}.json", lambda file: file.write(text))
    except OSError as error:
        if folder not in _unwritable:
            _unwritable.add(folder)
            warnings.warn(
                f"the cache folder {folder} cannot be written to ({error}); "
                "each load will read the source again",
                CacheWarning,
                stacklevel=3,
            )
        return
    _remove_old(folder, split, card)


def _save(array: Any, file: BinaryIO) -> None:
    np.save(file, array, allow_pickle=False)


def _remove_old(folder: Path, split: str, card: Card) -> None:
    keep = {_array_path(folder, split, card.sha256, kind) for kind in KINDS}
    for path in set(folder.glob(f"{split}-*.npy")) - keep:
        with suppress(OSError):
            path.unlink()
    remove_forgotten(folder)


def _array_path(folder: Path, split: str, sha256: str, kind: str) -> Path:
    return folder / f"{split}-{sha256[:16]}-{kind}.npy"
