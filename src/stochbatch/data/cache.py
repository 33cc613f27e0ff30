"""A split in one safetensors file, so that the second load is fast.

``<root>/<name>/cache/<split>.safetensors`` has the images, the labels, the digest of both, and
the SHA-256 of each source file, with the size and the time that the file had when it was hashed.
The digest is checked at every load.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stochbatch.data.data_errors import CacheWarning
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


def read(path: Path) -> Cached | None:
    """Return what is cached, or None; a damaged cache is a warning."""
    safetensors = optional("safetensors")
    try:
        with safetensors.safe_open(path, "np") as file:
            facts = json.loads(file.metadata()["split"])
            arrays = file.get_tensor("images"), file.get_tensor("labels")
        if digest(*arrays) != facts["sha256"]:
            raise ValueError("its content does not have the recorded SHA-256")
        sources = [Source(*source) for source in facts["sources"]]
    except FileNotFoundError:
        return None
    except Exception as error:  # of safetensors, JSON, or whatever a damaged file makes happen
        warnings.warn(
            f"the cache {path} is damaged and not used ({error}); the source is read again",
            CacheWarning,
            stacklevel=3,
        )
        return None
    return Cached(arrays, facts["sha256"], sources)


def write(path: Path, arrays: Arrays, sha256: str, sources: Sequence[Source]) -> None:
    """Store a split; a folder that cannot be written to is a warning."""
    images, labels = arrays
    facts = {"split": json.dumps({"sha256": sha256, "sources": sources})}
    content = optional("safetensors.numpy").save({"images": images, "labels": labels}, facts)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_forgotten(path.parent)
        write_atomically(path, lambda file: file.write(content))
    except OSError as error:
        warnings.warn(
            f"the cache {path} cannot be written ({error}); each load will read the source again",
            CacheWarning,
            stacklevel=3,
        )
