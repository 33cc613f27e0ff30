"""One function for each kind of source: from a split's files to its images and labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from stochbatch.data import formats
from stochbatch.data.archive import read_members
from stochbatch.data.formats import Arrays

CIFAR_MEMBERS = {
    "train": tuple(f"cifar-10-batches-bin/data_batch_{number}.bin" for number in range(1, 6)),
    "test": ("cifar-10-batches-bin/test_batch.bin",),
}


def read_cifar10(paths: Sequence[Path], split: str) -> Arrays:
    """Read the batches of a split from the binary version's archive."""
    (archive,) = paths
    members = read_members(archive, CIFAR_MEMBERS[split])
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
    members = read_members(archive, names)
    return (
        formats.stl_images(members[names[0]], f"{archive}, member {names[0]}"),
        formats.stl_labels(members[names[1]], f"{archive}, member {names[1]}"),
    )


def read_idx(paths: Sequence[Path], split: str) -> Arrays:
    """Read a file of images and a file of labels in MNIST's layout."""
    images, labels = paths
    return formats.idx_images(images), formats.idx_labels(labels)
