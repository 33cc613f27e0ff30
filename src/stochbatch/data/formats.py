"""The layouts of the published files, from bytes to arrays.

Each function returns images as uint8, N x C x H x W, and labels as int64 from 0 on; `where`
names the file in messages.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stochbatch.data.data_errors import FormatError
from stochbatch.optional import optional

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]
Arrays = tuple[Images, Labels]

CIFAR_SHAPE = (3, 32, 32)
SVHN_SHAPE = (3, 32, 32)
STL_SHAPE = (3, 96, 96)

IDX_IMAGES = 0x0803  # unsigned bytes, three dimensions
IDX_LABELS = 0x0801  # unsigned bytes, one dimension


def cifar_batch(content: bytes, where: str) -> Arrays:
    """Read records of one label byte and 3,072 pixel bytes: red, green, blue, row by row.

    Example:
        >>> from stochbatch.data.formats import cifar_batch
        >>> images, labels = cifar_batch(bytes([7] + 3072 * [255]), "example.bin")
        >>> images.shape, labels
        ((1, 3, 32, 32), array([7]))
    """
    records = _records(content, (1 + math.prod(CIFAR_SHAPE),), where)
    images: Images = records[:, 1:].reshape(-1, *CIFAR_SHAPE)
    return images, as_labels(records[:, 0], first=0, where=where)


def stl_images(content: bytes, where: str) -> Images:
    """Read images of 3 x 96 x 96 bytes, each channel column by column."""
    columns: Images = _records(content, STL_SHAPE, where).swapaxes(2, 3)
    return columns


def stl_labels(content: bytes, where: str) -> Labels:
    """Read label bytes 1 to 10."""
    return as_labels(np.frombuffer(content, np.uint8), first=1, where=where)


def svhn_mat(path: Path) -> Arrays:
    """Read a MATLAB file with ``X`` (32 x 32 x 3 x N bytes) and ``y`` (N x 1; 10 is digit 0)."""
    scipy_io = optional("scipy.io")
    # The kinds come first: a variable that would need Python objects is never read.
    kinds = {name: (shape, kind) for name, shape, kind in _mat(scipy_io.whosmat, path)}
    for name in ("X", "y"):
        if name not in kinds:
            raise FormatError(
                f"{path} has no variable {name}, only {sorted(kinds)}: "
                "it is cut short or another file; fetch it again"
            )
    shape, kind = kinds["X"]
    height, width, channels = SVHN_SHAPE[1], SVHN_SHAPE[2], SVHN_SHAPE[0]
    if len(shape) != 4 or shape[:3] != (height, width, channels) or kind != "uint8":
        raise FormatError(
            f"{path}: X must be uint8 of {height} x {width} x {channels} x N, "
            f"got {kind} of {_by(shape)}"
        )
    label_shape, label_kind = kinds["y"]
    if len(label_shape) != 2 or label_shape[1] != 1 or label_kind not in ("uint8", "double"):
        raise FormatError(
            f"{path}: y must be uint8 or double of N x 1, got {label_kind} of {_by(label_shape)}"
        )
    content = _mat(scipy_io.loadmat, path, variable_names=("X", "y"))
    labels = as_labels(content["y"][:, 0], first=1, where=f"{path}, y") + 1
    return content["X"].transpose(3, 2, 0, 1), labels % 10


def _mat(function: Any, path: Path, **options: Any) -> Any:
    try:
        with path.open("rb") as file:
            return function(file, **options)
    except Exception as error:  # scipy lets through whatever a damaged file makes happen
        raise FormatError(
            f"{path} is cut short, damaged or no MATLAB file that scipy reads "
            f"({type(error).__name__}: {error}); fetch it again"
        ) from error


def idx_images(path: Path) -> Images:
    """Read the compressed images of MNIST's layout, with one channel."""
    return _idx(path, IDX_IMAGES)[:, np.newaxis]


def idx_labels(path: Path) -> Labels:
    """Read the compressed labels of MNIST's layout."""
    return as_labels(_idx(path, IDX_LABELS), first=0, where=str(path))


def _idx(path: Path, magic: int) -> NDArray[np.uint8]:
    dimensions = magic & 0xFF
    try:
        with gzip.open(path) as file:
            header = file.read(4 * (1 + dimensions))
            if header[:4] != struct.pack(">I", magic):
                kind = "images" if magic == IDX_IMAGES else "labels"
                raise FormatError(
                    f"{path}: IDX {kind} start with the bytes {magic:08x}, "
                    f"this file starts with {header[:4].hex() or 'nothing'}"
                )
            if len(header) < 4 * (1 + dimensions):
                raise FormatError(f"{path} ends within its header, after {len(header)} bytes")
            shape = struct.unpack_from(f">{dimensions}I", header, 4)
            content = file.read()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FormatError(
            f"{path} is cut short, damaged or no .gz file ({error}); fetch it again"
        ) from error
    if len(content) != math.prod(shape):
        raise FormatError(
            f"{path}: the header says {_by(shape)} = {math.prod(shape):,} bytes, "
            f"{len(content):,} follow"
        )
    return np.frombuffer(content, np.uint8).reshape(shape)


def as_labels(raw: NDArray[Any], first: int, where: str) -> Labels:
    """Return ten classes that start at ``first`` as int64 from 0 on."""
    wrong = np.flatnonzero((raw < first) | (raw > first + 9) | (raw != np.floor(raw)))
    if wrong.size:
        raise FormatError(
            f"{where}: labels must be whole numbers from {first} to {first + 9}, "
            f"got {raw[wrong[0]]} at position {wrong[0]}"
        )
    return raw.astype(np.int64) - first


def _records(content: bytes, shape: tuple[int, ...], where: str) -> NDArray[np.uint8]:
    length = math.prod(shape)
    if len(content) % length:
        raise FormatError(
            f"{where}: {len(content):,} bytes are not a multiple of the record length {length:,}"
        )
    return np.frombuffer(content, np.uint8).reshape(-1, *shape)


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
