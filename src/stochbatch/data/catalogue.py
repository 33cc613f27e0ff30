"""The data sets: their files, where those come from, and what is in them.

Sizes and SHA-256 sums are those that TensorFlow Datasets publishes for the same addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from stochbatch.data import formats
from stochbatch.data.digits import read_digits
from stochbatch.registry import DATASETS, UnknownNameError


class Augmentation(NamedTuple):
    """Random crops after padding with black, and random flips from left to right.

    The default changes nothing.
    """

    padding: int = 0
    flip: bool = False


NO_AUGMENTATION = Augmentation()


@dataclass(frozen=True)
class SourceFile:
    """A published file: its name, address, number of bytes and SHA-256."""

    name: str
    url: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Part:
    """What a split is made of: its files, and how many images are in them."""

    count: int
    files: tuple[SourceFile, ...] = ()


@dataclass(frozen=True)
class Dataset:
    """An entry of the catalogue.

    Args:
        name: name of the data set and of its folder.
        shape: channels, height and width of an image.
        classes: names of the classes, in the order of their labels.
        train: the training part.
        test: the test part.
        read: from the files of a part, in their order, the split's name, and the shape
            [N, C, H, W] of its images (N is their largest number) to arrays.
        augmentation: the crops and flips that training images usually get.

    Example:
        >>> from stochbatch import data
        >>> data.DATASETS["svhn"].test.files[0].name
        'test_32x32.mat'
    """

    name: str
    shape: tuple[int, int, int]
    classes: tuple[str, ...]
    train: Part
    test: Part
    read: Callable[[Sequence[Path], str, formats.Shape], formats.Arrays]
    augmentation: Augmentation = NO_AUGMENTATION

    def part(self, split: str) -> Part:
        """Return the part of a split, ``"train"`` or ``"test"``."""
        if split not in ("train", "test"):
            raise UnknownNameError(f"{self.name} has no split {split!r}. There are: train, test")
        return self.train if split == "train" else self.test

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """All files, each once."""
        return tuple(dict.fromkeys(self.train.files + self.test.files))


DIGITS = tuple("0123456789")


def _classes(names: str) -> tuple[str, ...]:
    return tuple(names.split(", "))


_CIFAR10 = SourceFile(
    "cifar-10-binary.tar.gz",
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    170_052_171,
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)
DATASETS.provide(
    "cifar10",
    Dataset(
        name="cifar10",
        shape=(3, 32, 32),
        classes=_classes("airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck"),
        train=Part(50_000, (_CIFAR10,)),
        test=Part(10_000, (_CIFAR10,)),
        read=formats.read_cifar10,
        augmentation=Augmentation(4, flip=True),
    ),
)

_SVHN_TRAIN = SourceFile(
    "train_32x32.mat",
    "http://ufldl.stanford.edu/housenumbers/train_32x32.mat",
    182_040_794,
    "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
)
_SVHN_TEST = SourceFile(
    "test_32x32.mat",
    "http://ufldl.stanford.edu/housenumbers/test_32x32.mat",
    64_275_384,
    "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
)
DATASETS.provide(
    "svhn",
    Dataset(
        name="svhn",
        shape=(3, 32, 32),
        classes=DIGITS,
        train=Part(73_257, (_SVHN_TRAIN,)),
        test=Part(26_032, (_SVHN_TEST,)),
        read=formats.read_svhn,
        augmentation=Augmentation(4),
    ),
)

_STL10 = SourceFile(
    "stl10_binary.tar.gz",
    "http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
    2_640_397_119,
    "f31fd99273a1acb8609c8db427cebb1de3f71de77758cdc0e22956e1289b9866",
)
DATASETS.provide(
    "stl10",
    Dataset(
        name="stl10",
        shape=(3, 96, 96),
        classes=_classes("airplane, bird, car, cat, deer, dog, horse, monkey, ship, truck"),
        train=Part(5_000, (_STL10,)),
        test=Part(8_000, (_STL10,)),
        read=formats.read_stl10,
        augmentation=Augmentation(12, flip=True),
    ),
)

DATASETS.provide(
    "digits",
    Dataset(
        name="digits",
        shape=(1, 8, 8),
        classes=DIGITS,
        train=Part(1_352),
        test=Part(445),
        read=read_digits,
        augmentation=Augmentation(1),
    ),
)


def entry_of(name: str | Dataset) -> Dataset:
    """Return the entry called ``name``; an entry is returned as it is."""
    return name if isinstance(name, Dataset) else DATASETS[name]
