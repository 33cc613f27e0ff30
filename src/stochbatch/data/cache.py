"""A split in one safetensors file, so that the second load is fast.

``<root>/<name>/cache/<split>.safetensors`` has the images, the labels, the digest of both, whose
they are (data set and split), and the SHA-256 of each source file, with the size and the time that
the file had when it was hashed. A cache is used if all of it is as it should be.
"""

from __future__ import annotations

import hashlib
import json
import warnings
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


def read(path: Path, name: str, split: str) -> Cached | None:
    """Return what is cached of a split, or None; raise ValueError if it is damaged or another's."""
    safetensors = optional("safetensors")
    try:
        with safetensors.safe_open(path, "np") as file:
            facts = json.loads(file.metadata()["split"])
            arrays = file.get_tensor("images"), file.get_tensor("labels")
        sources = [Source(*source) for source in facts["sources"]]
        if digest(*arrays) != facts["sha256"]:
            raise ValueError("its content does not have the recorded SHA-256")
    except FileNotFoundError:
        return None
    except Exception as error:  # of safetensors, JSON, or whatever a damaged file makes happen
        raise ValueError(f"it is damaged: {error}") from error
    whose = facts.get("name"), facts.get("split")
    if whose != (name, split):
        raise ValueError(f"it is of {whose[0]}, {whose[1]}")
    return Cached(arrays, facts["sha256"], sources)


def write(path: Path, name: str, split: str, cached: Cached) -> None:
    """Store a split; a folder that cannot be written to is a warning."""
    (images, labels), sha256, sources = cached
    facts = {"name": name, "split": split, "sha256": sha256, "sources": sources}
    arrays = {"images": images, "labels": labels}
    content = optional("safetensors.numpy").save(arrays, {"split": json.dumps(facts)})
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
