"""The layouts of the published files: one reader per layout, from a split's files to arrays.

A reader is given the files of a split, the split's name, and the shape [N, C, H, W] that its images
should have. It returns images as uint8, [N, C, H, W], and labels as int64 from 0 on. There may be
fewer than N images, never more: no reader decompresses more bytes than N images have.
"""

from __future__ import annotations

import gzip
import math
import os
import struct
import tarfile
import warnings
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from stochbatch.data.data_errors import FormatError
from stochbatch.optional import optional

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]
Arrays = tuple[Images, Labels]
Shape = tuple[int, int, int, int]

BLOCK = 1 << 20
ARCHIVE_LIMIT = 4 << 30
"""How many bytes of an archive are decompressed at most; STL-10 has 3.1e9."""

CIFAR_MEMBERS = {
    "train": tuple(f"cifar-10-batches-bin/data_batch_{number}.bin" for number in range(1, 6)),
    "test": ("cifar-10-batches-bin/test_batch.bin",),
}

MAT_COMPRESSED = 15
MAT_HEADERS = 1 << 16
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
    _check_mat_size(path, math.prod(shape) + 8 * count + MAT_HEADERS)
    scipy_io = optional("scipy.io")
    # The kinds come first: a variable that would need Python objects is never read.
    listed = _mat(scipy_io.whosmat, path)
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
    content = _mat(scipy_io.loadmat, path, variable_names=("X", "y"))
    labels = _labels(content["y"][:, 0], first=1, where=f"{path}, y") + 1
    return content["X"].transpose(3, 2, 0, 1), labels % 10


def _read_members(path: Path, names: Sequence[str], most: int) -> dict[str, bytes]:
    """Return members of a ``.tar.gz`` by name, without unpacking anything to the disk.

    Reading stops at the last member that was asked for. Headers of tar's extensions are passed
    over: the published files have none, and `tarfile` would read one of any size.

    Args:
        path: the archive.
        names: the members.
        most: how many bytes they have together at most.
    """
    found: dict[str, bytes] = {}
    total = 0
    try:
        with gzip.open(path) as plain:
            while len(found) < len(names) and (block := plain.read(tarfile.BLOCKSIZE)):
                if not any(block):
                    continue  # as at the end of an archive
                member = tarfile.TarInfo.frombuf(block, tarfile.ENCODING, "surrogateescape")
                padded = -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
                total += tarfile.BLOCKSIZE + padded
                wanted = member.isreg() and member.name in names and member.name not in found
                if member.size < 0 or total > ARCHIVE_LIMIT or (wanted and member.size > most):
                    raise FormatError(
                        f"{path}, member {member.name!r}: {member.size:,} bytes, "
                        f"expected {most if wanted else ARCHIVE_LIMIT:,} at most"
                    )
                if wanted:
                    found[member.name] = _exactly(plain, member.size)
                    most -= member.size
                    padded -= member.size
                _skip(plain, padded)
    except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
        raise FormatError(
            f"{path} is cut short, damaged or no .tar.gz archive ({error}); fetch it again"
        ) from error
    missing = [name for name in names if name not in found]
    if missing:
        raise FormatError(
            f"{path} has no member {', '.join(missing)}: it is cut short or another file; "
            "fetch it again"
        )
    return found


def _exactly(file: BinaryIO | gzip.GzipFile, size: int) -> bytes:
    content = file.read(size)
    if len(content) < size:
        raise EOFError(f"{len(content):,} bytes where {size:,} are announced")
    return content


def _skip(file: BinaryIO | gzip.GzipFile, size: int) -> None:
    while size:
        size -= len(_exactly(file, min(size, BLOCK)))


def _check_mat_size(path: Path, most: int) -> None:
    """Raise if the variables of a MATLAB file (version 5) have more bytes than ``most``.

    What is inside of a variable is then bounded too, whatever it says of itself.
    """
    try:
        with path.open("rb") as file:
            order = {b"IM": "<", b"MI": ">"}.get(file.read(128)[126:])
            if order is None:
                raise EOFError("it has no header of MATLAB 5")
            left = most
            while tag := file.read(8):
                kind, size = struct.unpack(f"{order}II", tag)
                if kind == MAT_COMPRESSED:
                    left -= _plain_size(file, size, left)
                else:
                    left -= size
                    file.seek(size, os.SEEK_CUR)
                if left < 0:
                    raise FormatError(f"{path}: more than the {most:,} bytes that are expected")
    except (EOFError, struct.error, zlib.error) as error:
        raise _no_mat(path, error) from error


def _plain_size(file: BinaryIO, size: int, most: int) -> int:
    """Return how many bytes the next ``size`` bytes decompress to, or some number above."""
    inflate, plain = zlib.decompressobj(), 0
    while size and plain <= most:
        block = _exactly(file, min(size, BLOCK))
        size -= len(block)
        while block and plain <= most:
            plain += len(inflate.decompress(block, BLOCK))
            block = inflate.unconsumed_tail
    return plain


def _mat(function: Any, path: Path, **options: Any) -> Any:
    try:
        with path.open("rb") as file, warnings.catch_warnings():
            warnings.simplefilter("error")  # such as that of a variable that cannot be read
            return function(file, **options)
    except Exception as error:  # scipy lets through whatever a damaged file makes happen
        raise _no_mat(path, error) from error


def _no_mat(path: Path, error: Exception) -> FormatError:
    return FormatError(
        f"{path} is cut short, damaged or no MATLAB file that scipy reads "
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
