"""A split in one safetensors file, so that the second load is fast.

``<root>/<name>/cache/<split>.safetensors`` has the images, the labels, the digest of both, whose
they are (data set and split), and the SHA-256 of each source file, with the size and the time that
the file had when it was hashed. A cache is used if all of it is as it should be.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stochbatch.data.data_errors import CacheWarning, FormatError
from stochbatch.data.formats import Arrays, Images, Labels
from stochbatch.files import remove_forgotten, write_atomically
from stochbatch.optional import optional


class Source(NamedTuple):
    """A source file as it was when it was hashed."""

    sha256: str
    size: int
    mtime_ns: int


class Cached(NamedTuple):
    """A split, the digest of its content, and the files it was read from."""

    arrays: Arrays
    sha256: str
    sources: list[Source]


def digest(images: Images, labels: Labels) -> str:
    """Return the SHA-256 of a split's content: its shape, its pixels, its labels."""
    # The shape says where the pixels end, so no two contents give the same bytes.
    content = hashlib.sha256(json.dumps(["stochbatch split", *images.shape]).encode())
    content.update(np.ascontiguousarray(images).data)
    content.update(np.ascontiguousarray(labels, dtype="<i8").data)
    return content.hexdigest()


def read(path: Path, name: str, split: str) -> Cached | None:
    """Return what is cached of a split, or None; raise FormatError if it is not that."""
    try:
        with opened(path, "split") as (file, facts):
            arrays = file.get_tensor("images"), file.get_tensor("labels")
            sources = [Source(*source) for source in facts["sources"]]
            if (whose := (facts["name"], facts["split"])) != (name, split):
                raise ValueError(f"it is of {', '.join(whose)}")
            if digest(*arrays) != facts["sha256"]:
                raise ValueError("its content does not have the recorded SHA-256")
    except FileNotFoundError:
        return None
    return Cached(arrays, facts["sha256"], sources)


def write(path: Path, name: str, split: str, cached: Cached) -> None:
    """Store a split; a folder that cannot be written to is a warning."""
    (images, labels), sha256, sources = cached
    facts = {"name": name, "split": split, "sha256": sha256, "sources": sources}
    try:
        store(path, {"images": images, "labels": labels}, "split", facts)
    except OSError as error:
        warnings.warn(
            f"the cache {path} cannot be written ({error}); each load will read the source again",
            CacheWarning,
            stacklevel=3,
        )


def store(path: Path, arrays: dict[str, NDArray[Any]], key: str, facts: dict[str, Any]) -> None:
    """Write arrays to a safetensors file, and what is to be said of them under a key."""
    content = optional("safetensors.numpy").save(arrays, {key: json.dumps(facts)})
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_forgotten(path.parent)
    write_atomically(path, lambda file: file.write(content))


@contextmanager
def opened(path: Path, key: str) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Open what `store` wrote; yield it and what it says of itself.

    Raises:
        FileNotFoundError: it is not there.
        FormatError: it is damaged.
    """
    try:
        with optional("safetensors").safe_open(path, "np") as file:
            yield file, json.loads(file.metadata()[key])
    except FileNotFoundError:
        raise
    except Exception as error:  # of safetensors, JSON, or whatever a damaged file makes happen
        raise FormatError(f"it is damaged ({' '.join(str(error).split())})") from error
