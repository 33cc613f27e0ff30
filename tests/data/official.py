"""Tiny files in the published layouts, written pixel by pixel, with none of the library's code.

No two neighbouring pixels, channels or images are alike, so a swap of axes shows.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from scipy.io import savemat

from stochbatch.data import DATASETS, Dataset, Part, SourceFile

TRAIN, TEST = 10, 5  # five batches of two images, so that CIFAR's order shows


def pixel(image: int, channel: int, row: int, column: int) -> int:
    return (image * 41 + channel * 101 + row * 7 + column * 3) % 251


def label(image: int) -> int:
    return (3 * image + 7) % 10


def images(shape: tuple[int, int, int], numbers: range) -> torch.Tensor:
    channels, height, width = shape
    return torch.tensor(
        [
            [
                [[pixel(n, c, h, w) for w in range(width)] for h in range(height)]
                for c in range(channels)
            ]
            for n in numbers
        ],
        dtype=torch.uint8,
    )


def labels(numbers: range) -> torch.Tensor:
    return torch.tensor([label(n) for n in numbers])


def numbers_of(split: str) -> range:
    return range(TRAIN) if split == "train" else range(TRAIN, TRAIN + TEST)


def tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def cifar_members() -> dict[str, bytes]:
    return dict(_cifar_members())


@cache
def _cifar_members() -> dict[str, bytes]:
    def batch(numbers: range) -> bytes:
        return b"".join(
            bytes([label(n)])
            + bytes(pixel(n, c, h, w) for c in range(3) for h in range(32) for w in range(32))
            for n in numbers
        )

    members = {f"data_batch_{k}.bin": batch(range(2 * k - 2, 2 * k)) for k in range(1, 6)}
    members["test_batch.bin"] = batch(numbers_of("test"))
    members["readme.html"] = b"<html>"
    # Not in the order of the batches: the archive's order must not matter.
    return {f"cifar-10-batches-bin/{name}": members[name] for name in sorted(members, reverse=True)}


def stl_members() -> dict[str, bytes]:
    return dict(_stl_members())


@cache
def _stl_members() -> dict[str, bytes]:
    members = {}
    for split in ("test", "train"):
        members[f"stl10_binary/{split}_X.bin"] = b"".join(
            bytes(pixel(n, c, h, w) for c in range(3) for w in range(96) for h in range(96))
            for n in numbers_of(split)
        )
        members[f"stl10_binary/{split}_y.bin"] = bytes(label(n) + 1 for n in numbers_of(split))
    members["stl10_binary/unlabeled_X.bin"] = b"not a multiple of anything"
    return members


@cache
def svhn_variables(numbers: range) -> dict[str, np.ndarray]:
    pixels = np.zeros((32, 32, 3, len(numbers)), np.uint8)
    for position, n in enumerate(numbers):
        for h in range(32):
            for w in range(32):
                pixels[h, w, :, position] = [pixel(n, c, h, w) for c in range(3)]
    classes = np.array([[label(n) or 10] for n in numbers], np.uint8)
    return {"X": pixels, "y": classes}


def write_cifar10(folder: Path) -> None:
    tar(folder / "cifar-10-binary.tar.gz", cifar_members())


def write_stl10(folder: Path) -> None:
    tar(folder / "stl10_binary.tar.gz", stl_members())


def write_svhn(folder: Path) -> None:
    for split in ("train", "test"):
        variables = svhn_variables(numbers_of(split))
        savemat(folder / f"{split}_32x32.mat", variables, do_compression=split == "train")


WRITERS: dict[str, Callable[[Path], None]] = {
    "cifar10": write_cifar10,
    "svhn": write_svhn,
    "stl10": write_stl10,
}


def write(name: str, root: Path) -> Path:
    """Write the tiny files of a data set into its folder under ``root``."""
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    WRITERS[name](folder)
    return folder


def published(name: str, folder: Path, base: str = "http://127.0.0.1:9/") -> Dataset:
    """Return an entry for which the files in ``folder`` are the published ones."""

    def part(of: Part, count: int) -> Part:
        files = []
        for file in of.files:
            content = (folder / file.name).read_bytes()
            sha256 = hashlib.sha256(content).hexdigest()
            files.append(SourceFile(file.name, base + file.name, len(content), sha256))
        return Part(count, tuple(files))

    entry = DATASETS[name]
    return replace(entry, train=part(entry.train, TRAIN), test=part(entry.test, TEST))
