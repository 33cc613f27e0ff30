"""One function for each kind of source: from a split's files to its images and labels."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from stochbatch.data import formats
from stochbatch.data.data_errors import FormatError
from stochbatch.data.formats import Arrays

BUFFER = 1 << 20

CIFAR_MEMBERS = {
    "train": tuple(f"cifar-10-batches-bin/data_batch_{number}.bin" for number in range(1, 6)),
    "test": ("cifar-10-batches-bin/test_batch.bin",),
}


def read_cifar10(paths: Sequence[Path], split: str) -> Arrays:
    """Read the batches of a split from the binary version's archive."""
    (archive,) = paths
    members = _read_members(archive, CIFAR_MEMBERS[split])
    batches = [
        formats.cifar_batch(members[name], f"{archive}, member {name}")
        for name in CIFAR_MEMBERS[split]
    ]
    images, labels = zip(*batches, strict=True)
    return np.concatenate(images), np.concatenate(labels)


def read_svhn(paths: Sequence[Path], split: str) -> Arrays:
    """Read a MATLAB file; each split has its own."""
    (path,) = paths
    return formats.svhn_mat(path)


def read_stl10(paths: Sequence[Path], split: str) -> Arrays:
    """Read the labelled images of a split; the unlabelled ones are never decompressed."""
    (archive,) = paths
    names = (f"stl10_binary/{split}_X.bin", f"stl10_binary/{split}_y.bin")
    members = _read_members(archive, names)
    return (
        formats.stl_images(members[names[0]], f"{archive}, member {names[0]}"),
        formats.stl_labels(members[names[1]], f"{archive}, member {names[1]}"),
    )


def read_idx(paths: Sequence[Path], split: str) -> Arrays:
    """Read a file of images and a file of labels in MNIST's layout."""
    images, labels = paths
    return formats.idx_images(images), formats.idx_labels(labels)


def _read_members(path: Path, names: Sequence[str]) -> dict[str, bytes]:
    """Return members of a ``.tar.gz`` by name, without unpacking anything to the disk.

    Reading stops at the last member that was asked for.
    """
    found: dict[str, bytes] = {}
    try:
        # A stream, since going back in a compressed file means to decompress it again.
        with (
            gzip.open(path) as plain,
            tarfile.open(fileobj=plain, mode="r|", bufsize=BUFFER) as archive,
        ):
            for member in archive:
                if member.isreg() and member.name in names:
                    found[member.name] = archive.extractfile(member).read()  # type: ignore[union-attr]
                if len(found) == len(names):
                    break
    except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
        raise FormatError(
            f"{path} is cut short, damaged or no .tar.gz archive ({error}); fetch it again"
        ) from error
    missing = [name for name in names if name not in found]
    if missing:
        raise FormatError(f"{path} has no member {', '.join(missing)}; fetch it again")
    return found
