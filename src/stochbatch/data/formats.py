"""The layouts of the published files: one reader per layout, from a split's files to arrays.

A reader is given the files of a split, the split's name, and the shape [N, C, H, W] that its images
should have. It returns images as uint8, [N, C, H, W], and labels as int64 from 0 on. There may be
fewer than N images, never more: no reader decompresses more bytes than N images have.
"""

from __future__ import annotations

import gzip
import io
import math
import os
import struct
import tarfile
import warnings
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stochbatch.data.data_errors import FormatError
from stochbatch.optional import optional

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]
Arrays = tuple[Images, Labels]
Shape = tuple[int, int, int, int]

ARCHIVE_LIMIT = 4 << 30
"""How many bytes of an archive are decompressed at most; STL-10 has 3.1e9."""

CIFAR_MEMBERS = {
    "train": tuple(f"cifar-10-batches-bin/data_batch_{number}.bin" for number in range(1, 6)),
    "test": ("cifar-10-batches-bin/test_batch.bin",),
}

MAT_COMPRESSED = 15
MAT_HEADER = 128
MAT_EXTRA = 1 << 16
"""Bytes of a MATLAB file that are neither pixels nor labels, at most."""


def read_cifar10(paths: Sequence[Path], split: str, shape: Shape) -> Arrays:
    """Read records of one label byte and the pixel bytes: red, green, blue, row by row."""
    (archive,) = paths
    count, *image = shape
    names = CIFAR_MEMBERS[split]
    members = _read_members(archive, names, count * (1 + math.prod(image)))
    images, labels = [], []
    for name in names:
        where = f"{archive}, member {name}"
        records = _records(members[name], (1 + math.prod(image),), where)
        images.append(records[:, 1:].reshape(-1, *image))
        labels.append(_labels(records[:, 0], first=0, where=where))
    return np.concatenate(images), np.concatenate(labels)


def read_stl10(paths: Sequence[Path], split: str, shape: Shape) -> Arrays:
    """Read images, each channel column by column, and label bytes 1 to 10.

    The unlabelled images are never decompressed.
    """
    (archive,) = paths
    count, *image = shape
    names = (f"stl10_binary/{split}_X.bin", f"stl10_binary/{split}_y.bin")
    members = _read_members(archive, names, count * (math.prod(image) + 1))
    pixels, labels = (members[name] for name in names)
    columns: Images = _records(pixels, tuple(image), f"{archive}, member {names[0]}")
    where = f"{archive}, member {names[1]}"
    return columns.swapaxes(2, 3), _labels(np.frombuffer(labels, np.uint8), first=1, where=where)


def read_svhn(paths: Sequence[Path], split: str, shape: Shape) -> Arrays:
    """Read a MATLAB file with ``X`` (H x W x C x N bytes) and ``y`` (N x 1; 10 is digit 0)."""
    (path,) = paths
    count, channels, height, width = shape
    plain = _plain_mat(path, math.prod(shape) + 8 * count + MAT_EXTRA)
    scipy_io = optional("scipy.io")
    # The kinds come first: a variable that would need Python objects is never read.
    listed = _mat(scipy_io.whosmat, path, plain)
    kinds = {name: (shape, kind) for name, shape, kind in reversed(listed)}  # scipy reads the first
    for name in ("X", "y"):
        if name not in kinds:
            raise FormatError(
                f"{path} has no variable {name}, only {sorted(kinds)}: "
                "it is cut short or another file; fetch it again"
            )
    found, kind = kinds["X"]
    if len(found) != 4 or found[:3] != (height, width, channels) or kind != "uint8":
        raise FormatError(
            f"{path}: X must be uint8 of {height} x {width} x {channels} x N, "
            f"got {kind} of {by(found)}"
        )
    label_shape, label_kind = kinds["y"]
    if len(label_shape) != 2 or label_shape[1] != 1 or label_kind not in ("uint8", "double"):
        raise FormatError(
            f"{path}: y must be uint8 or double of N x 1, got {label_kind} of {by(label_shape)}"
        )
    content = _mat(scipy_io.loadmat, path, plain, variable_names=("X", "y"))
    labels = _labels(content["y"][:, 0], first=1, where=f"{path}, y") + 1
    return content["X"].transpose(3, 2, 0, 1), labels % 10


def _read_members(path: Path, names: Sequence[str], most: int) -> dict[str, bytes]:
    """Return members of a ``.tar.gz`` by name, without unpacking anything to the disk.

    Reading stops at the last member that was asked for.

    Args:
        path: the archive.
        names: the members.
        most: how many bytes they have together at most.
    """
    found: dict[str, bytes] = {}
    try:
        with _Bounded(path, most) as plain, tarfile.open(fileobj=plain, mode="r:") as archive:
            for member in archive:
                wanted = member.isreg() and member.name in names and member.name not in found
                left = most - sum(map(len, found.values())) if wanted else ARCHIVE_LIMIT
                if member.size > left or member.offset_data + member.size > ARCHIVE_LIMIT:
                    raise FormatError(
                        f"{path}, member {member.name!r}: {member.size:,} bytes, "
                        f"expected {left:,} at most"
                    )
                if wanted:
                    found[member.name] = archive.extractfile(member).read()  # type: ignore[union-attr]
                if len(found) == len(names):
                    return found
    except FormatError:
        raise
    except Exception as error:  # of gzip, zlib, tarfile, or whatever a damaged file makes happen
        raise FormatError(
            f"{path} is cut short, damaged or not a .tar.gz archive ({error}); fetch it again"
        ) from error
    missing = ", ".join(name for name in names if name not in found)
    raise FormatError(
        f"{path} has no member {missing}: it is cut short or another file; fetch it again"
    )


class _Bounded(gzip.GzipFile):
    """Refuses to read more at once than it should: `tarfile` reads headers of any size."""

    def __init__(self, path: Path, most: int) -> None:
        super().__init__(path)
        self.most = max(most, tarfile.BLOCKSIZE)

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= self.most:
            raise ValueError(f"{size} bytes at once")
        return super().read(size)


def _plain_mat(path: Path, most: int) -> io.BytesIO:
    """Return a MATLAB file (version 5) decompressed; raise if variables have more bytes than that.

    What is inside of a variable is then bounded too, whatever it says of itself.
    """
    with path.open("rb") as file:
        plain = io.BytesIO(file.read(MAT_HEADER))
        order = {b"IM": "<", b"MI": ">"}.get(plain.getvalue()[-2:])
        if order is None:
            raise _no_mat(path, ValueError("it has no header of MATLAB 5"))
        plain.seek(0, os.SEEK_END)
        while len(tag := file.read(8)) == 8:
            kind, size = struct.unpack(f"{order}II", tag)
            left = MAT_HEADER + most - plain.tell()
            content = file.read(min(size, left + 1))
            if kind == MAT_COMPRESSED:
                inflate = zlib.decompressobj()
                try:
                    content = inflate.decompress(content, left + 1)
                    if len(content) <= left and not inflate.eof:
                        raise zlib.error("a variable has no end")
                except zlib.error as error:
                    raise _no_mat(path, error) from error
            else:
                plain.write(tag)
            plain.write(content)
            if plain.tell() > MAT_HEADER + most or size > left:
                raise FormatError(f"{path}: more than the {most:,} bytes that are expected")
    return plain


def _mat(function: Any, path: Path, content: io.BytesIO, **options: Any) -> Any:
    content.seek(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # such as that of a variable that cannot be read
            return function(content, **options)
    except Exception as error:  # scipy lets through whatever a damaged file makes happen
        raise _no_mat(path, error) from error


def _no_mat(path: Path, error: Exception) -> FormatError:
    return FormatError(
        f"{path} is cut short, damaged or not a MATLAB file that scipy reads "
        f"({type(error).__name__}: {' '.join(str(error).split())}); fetch it again"
    )


def _labels(raw: NDArray[Any], first: int, where: str) -> Labels:
    """Return ten classes that start at ``first`` as int64 from 0 on."""
    wrong = np.flatnonzero(~np.isin(raw, np.arange(first, first + 10)))
    if wrong.size:
        raise FormatError(
            f"{where}: labels must be whole numbers from {first} to {first + 9}, "
            f"got {raw[wrong[0]]} at position {wrong[0]}"
        )
    return raw.real.astype(np.int64) - first


def _records(content: bytes, shape: tuple[int, ...], where: str) -> NDArray[np.uint8]:
    length = math.prod(shape)
    if len(content) % length:
        raise FormatError(
            f"{where}: {len(content):,} bytes are not a multiple of the record length {length:,}"
        )
    return np.frombuffer(content, np.uint8).reshape(-1, *shape)


def by(shape: Sequence[int]) -> str:
    """Return a shape as text."""
    return " x ".join(map(str, shape))
