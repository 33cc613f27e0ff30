"""Official file layouts from packed arrays: ``python -m benchmarks.official_files SOURCE TARGET``.

SOURCE is a folder with ``<set>_<split>_images.npy.xz`` and ``<set>_<split>_labels.npy`` (the
training images of CIFAR-10 in five files, ``cifar10_train1`` to ``cifar10_train5``). TARGET
gets the files that `stochbatch.data` reads, one folder a data set:

* ``cifar10/cifar-10-binary.tar.gz``; each member is compared with the SHA-1 of the original,
* ``svhn/train_32x32.mat`` and ``svhn/test_32x32.mat``,
* ``stl10/stl10_binary.tar.gz``, without the unlabelled images.

Compression and file headers are not those of the originals, so the hashes of the files are
others (``accept_hash=True`` loads them); the same arrays always give the same bytes.

How the images are packed. An image's bytes are hard to compress, the changes from pixel to
pixel are not. So of the bytes of red and blue the byte of green at the same place is taken
away; then of each row the row above it, and of each pixel the pixel to its left; everything
modulo 256, so nothing is lost and the way back is a running sum over columns and rows, then
green added to red and blue. The channels are the first axis, which keeps equal statistics
together; the array is written as ``.npy`` inside of xz.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import lzma
import sys
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from stochbatch.data.atomic import write_atomically

Bytes = NDArray[np.uint8]

MAT_HEADER = b"MATLAB 5.0 MAT-file, written by stochbatch"
MAT_HEADER_LENGTH = 116  # the rest of the 128 bytes is for readers, not for people

CIFAR_SHA1 = {
    "data_batch_1.bin": "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
    "data_batch_2.bin": "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
    "data_batch_3.bin": "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
    "data_batch_4.bin": "aab85764eb3584312d3c7f65fd2fd016e36a258e",
    "data_batch_5.bin": "26e2849e66a845b7f1e4614ae70f4889ae604628",
    "test_batch.bin": "67eb016db431130d61cd03c7ad570b013799c88c",
}


class SourceError(Exception):
    """The packed arrays are not what they should be."""


def unpack(path: Path) -> Bytes:
    """Return packed images as N x C x H x W."""
    with lzma.open(path) as file:
        channels = np.load(file, allow_pickle=False)
    for axis in (2, 3):
        np.cumsum(channels, axis=axis, dtype=np.uint8, out=channels)
    red, green, blue = channels
    red += green
    blue += green
    images: Bytes = channels.swapaxes(0, 1)
    return images


def images_and_labels(source: Path, dataset: str, split: str) -> tuple[Bytes, Bytes]:
    """Return a split's unpacked images, and its labels from 0 on."""
    images = unpack(source / f"{dataset}_{split}_images.npy.xz")
    return images, np.load(source / f"{dataset}_{split}_labels.npy", allow_pickle=False)


def write_archive(members: dict[str, bytes], file: BinaryIO) -> None:
    """Write a ``.tar.gz`` that depends on nothing but its members."""
    with (
        gzip.GzipFile("", "wb", compresslevel=1, fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for name, content in members.items():
            member = tarfile.TarInfo(name)  # no owner, mtime 0
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def cifar_records(images: Bytes, labels: Bytes) -> bytes:
    """Return a label byte and the pixels of each image, one after the other."""
    return np.concatenate([labels[:, None], images.reshape(len(images), -1)], axis=1).tobytes()


def make_cifar10(source: Path, target: Path) -> list[Path]:
    labels = np.load(source / "cifar10_train_labels.npy", allow_pickle=False)
    members = {}
    for number, some in enumerate(np.split(labels, 5), start=1):
        images = unpack(source / f"cifar10_train{number}_images.npy.xz")
        members[f"data_batch_{number}.bin"] = cifar_records(images, some)
    members["test_batch.bin"] = cifar_records(*images_and_labels(source, "cifar10", "test"))
    for name, content in members.items():
        found = hashlib.sha1(content, usedforsecurity=False).hexdigest()
        if found != CIFAR_SHA1[name]:
            raise SourceError(f"{name} has SHA-1 {found}, the original has {CIFAR_SHA1[name]}")
    path = target / "cifar-10-binary.tar.gz"
    named = {f"cifar-10-batches-bin/{name}": content for name, content in members.items()}
    write_atomically(path, partial(write_archive, named))
    return [path]


def write_mat(images: Bytes, labels: Bytes, file: BinaryIO) -> None:
    """Write SVHN's variables; the text at the start, which has the date, is replaced."""
    from scipy.io import savemat

    variables = {
        "X": images.transpose(2, 3, 1, 0),
        "y": np.where(labels == 0, 10, labels).astype(np.uint8)[:, None],
    }
    savemat(file, variables, do_compression=True)
    file.seek(0)
    file.write(MAT_HEADER.ljust(MAT_HEADER_LENGTH))


def make_svhn(source: Path, target: Path) -> list[Path]:
    paths = []
    for split in ("train", "test"):
        paths.append(target / f"{split}_32x32.mat")
        write = partial(write_mat, *images_and_labels(source, "svhn", split))
        write_atomically(paths[-1], write)
    return paths


def make_stl10(source: Path, target: Path) -> list[Path]:
    members = {}
    for split in ("test", "train"):
        images, labels = images_and_labels(source, "stl10", split)
        members[f"stl10_binary/{split}_X.bin"] = images.swapaxes(2, 3).tobytes()
        members[f"stl10_binary/{split}_y.bin"] = (labels + 1).astype(np.uint8).tobytes()
    path = target / "stl10_binary.tar.gz"
    write_atomically(path, partial(write_archive, members))
    return [path]


MAKERS: dict[str, Callable[[Path, Path], list[Path]]] = {
    "cifar10": make_cifar10,
    "svhn": make_svhn,
    "stl10": make_stl10,
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.official_files", description=(__doc__ or "").split(":")[0]
    )
    parser.add_argument("source", type=Path, help="folder of packed arrays")
    parser.add_argument("target", type=Path, help="folder of all data, for stochbatch.data.load")
    parser.add_argument("--datasets", nargs="+", choices=MAKERS, default=list(MAKERS))
    options = parser.parse_args(arguments)
    for name in options.datasets:
        folder = options.target / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for path in MAKERS[name](options.source, folder):
                print(f"{path}  {path.stat().st_size:,} bytes", flush=True)
        except (OSError, ValueError, TypeError, EOFError, lzma.LZMAError, SourceError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
