"""Data of your own: folders of pictures, ``.npz`` files, tensors, data sets of torch.

They are read once, checked, and copied to ``<data root>/own/<hash>.safetensors``. The hash is of
the content, and the data set is called ``own:<hash>``: a trial that names it is trained on the same
pixels for ever, whatever becomes of the folder that they came from.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from stochbatch.data.cache import digest, opened, store
from stochbatch.data.catalogue import Augmentation, Dataset, Part
from stochbatch.data.data_errors import FormatError, MissingFileError
from stochbatch.data.folder import data_root
from stochbatch.data.formats import Arrays, Images, Labels, Shape, by
from stochbatch.data.pictures import facts_of, read_picture
from stochbatch.optional import optional
from stochbatch.registry import DATASETS

PREFIX = "own:"
DIGITS = 16
"""Hexadecimal digits of a hash in a name."""
SUFFIXES = frozenset(
    [".bmp", ".gif", ".jpg", ".jpeg", ".png", ".pgm", ".ppm", ".tif", ".tiff", ".webp"]
)
SIDES = (32, 64, 96)
"""What pictures are resized to, if they must be."""
TEST_SHARE = 0.2
"""Of data that come without a test part."""
MOST_BYTES = 4 << 30
"""Of all pixels together."""
FEWEST_CLASSES = 2

_roots: list[Path] = []


def remember(root: str | os.PathLike[str] | None) -> None:
    """Look for own data sets in this data folder too."""
    if root is not None and (folder := data_root(root).absolute()) not in _roots:
        _roots.append(folder)


def add(source: Any, root: str | os.PathLike[str] | None = None, *, test: Any = None) -> Dataset:
    """Take data of your own into the data folder; return the entry, whose name a trial takes.

    Args:
        source: a folder with a folder of pictures per class, or with two such folders called
            ``train`` and ``test``; an ``.npz`` file with ``images`` and ``labels`` (and
            ``test_images`` and ``test_labels``); a pair of tensors or arrays; or a data set of
            torch that yields such pairs.
        root: the folder of all data.
        test: the test part, of a pair or a data set of torch.

    Without a test part a fifth becomes one, chosen by a hash of each file or image, so that
    duplicates stay together. Images are uint8, square and of one size up to 96; others are resized
    so that their shorter side is 32, 64 or 96, the largest that is not above the median, and cut to
    the middle square.

    Raises:
        FormatError: the data cannot be trained on; nothing was written.
        MissingFileError: there is no such file or folder.

    Example:
        >>> import tempfile, torch
        >>> from stochbatch import data
        >>> images = torch.arange(20 * 64, dtype=torch.int64).remainder(251).to(torch.uint8)
        >>> labels = torch.arange(20) % 2
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     entry = data.add((images.reshape(20, 8, 8), labels), folder)
        >>> entry.name, entry.shape, entry.train.count + entry.test.count
        ('own:...', (1, 8, 8), 20)
    """
    if isinstance(source, str | os.PathLike):
        path = Path(source).expanduser()
        if not path.exists():
            raise MissingFileError(f"there is no {path}")
        where = str(path)
        train, tested, classes = _folder(path) if path.is_dir() else _npz(path)
    else:
        where = "the data"
        train, tested = _pair(source), None if test is None else _pair(test)
        classes = None
    if tested is None:
        train, tested = _split(*train)
    return _store(train, tested, classes, where, data_root(root))


def taken_in(dataset: Any, root: str | os.PathLike[str] | None = None) -> tuple[str, str]:
    """Return the name of a data set, and its path if it is one of your own that has one.

    Args:
        dataset: a name; a path; or anything else that `add` takes.
        root: the folder of all data.
    """
    remember(root)
    if isinstance(dataset, str) and dataset in DATASETS:
        return dataset, ""
    if isinstance(dataset, str):
        path = Path(dataset).expanduser()
        looks_so = path.suffix == ".npz" or path.name != dataset
        if not looks_so and not path.exists():
            DATASETS[dataset]  # raises, with the nearest name
    entry = add(dataset, root)
    return entry.name, str(dataset) if isinstance(dataset, str | os.PathLike) else ""


def bring(name: str, path: str, root: str | os.PathLike[str] | None = None) -> None:
    """Take in the data at a path again, if they are not in the data folder any more.

    Raises:
        FormatError: they have changed since.
    """
    remember(root)
    if name in DATASETS:
        return
    found = add(path, root)
    if found.name != name:
        raise FormatError(f"{path} has changed: it was {name}, now it is {found.name}")


def find(name: str) -> Dataset | None:
    """Return the entry of an own data set that was taken in before, or None."""
    if not name.startswith(PREFIX):
        return None
    for root in (data_root().absolute(), *_roots):
        path = root / "own" / f"{name.removeprefix(PREFIX)}.safetensors"
        if path.is_file():
            return _entry(path)
    return None


def names(root: str | os.PathLike[str] | None = None) -> list[str]:
    """Return the names of all own data sets in a data folder."""
    files = (data_root(root) / "own").glob(f"{'[0-9a-f]' * DIGITS}.safetensors")
    return sorted(f"{PREFIX}{file.stem}" for file in files)


def _entry(path: Path) -> Dataset:
    """Return the entry of a stored data set; its pixels are not read."""
    with _stored(path) as (_, facts):
        channels, height, width = map(int, facts["shape"])
        return Dataset(
            name=PREFIX + path.stem,
            shape=(channels, height, width),
            classes=tuple(map(str, facts["classes"])),
            train=Part(int(facts["train"])),
            test=Part(int(facts["test"])),
            read=partial(_read, path),
            augmentation=Augmentation(max(1, width // 8), flip=channels == 3),
        )


def _read(path: Path, paths: Sequence[Path], split: str, shape: Shape) -> Arrays:
    """Return a split of a stored data set, if its content is what its name says."""
    with _stored(path) as (file, facts):
        arrays = file.get_tensor(f"{split}_images"), file.get_tensor(f"{split}_labels")
        if digest(*arrays) != facts["sha256"][split] or _hash(facts) != path.stem:
            raise ValueError("it has changed since it was written")
    return arrays


@contextmanager
def _stored(path: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Open the file of a stored data set; yield it and what it says of itself."""
    try:
        with opened(path, "own") as stored:
            yield stored
    except FileNotFoundError:
        raise MissingFileError(f"{path} is gone: take the data in again") from None
    except FormatError as error:
        raise FormatError(f"{path}: {error}: take the data in again") from None


def _hash(facts: dict[str, Any]) -> str:
    """Return the name of a content: both parts and the names of the classes."""
    content = [facts["sha256"]["train"], facts["sha256"]["test"], *facts["classes"]]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:DIGITS]


def _store(
    train: Arrays, test: Arrays, classes: Sequence[str] | None, where: str, root: Path
) -> Dataset:
    classes = _checked_classes(train, test, classes, where)
    facts = {
        "train": len(train[1]),
        "test": len(test[1]),
        "shape": train[0].shape[1:],
        "classes": list(classes),
        "sha256": {"train": digest(*train), "test": digest(*test)},
    }
    path = root / "own" / f"{_hash(facts)}.safetensors"
    if not path.is_file():
        arrays = {
            f"{split}_{what}": np.ascontiguousarray(array)
            for split, pair in (("train", train), ("test", test))
            for what, array in zip(("images", "labels"), pair, strict=True)
        }
        store(path, arrays, "own", facts)
    remember(root)
    return DATASETS[PREFIX + path.stem]


def _checked_classes(
    train: Arrays, test: Arrays, classes: Sequence[str] | None, where: str
) -> Sequence[str]:
    """Return the names of the classes, or raise for the first reason why nothing can be trained."""
    if train[0].shape[1:] != test[0].shape[1:]:
        raise FormatError(
            f"{where}: training images are {by(train[0].shape[1:])}, "
            f"test images {by(test[0].shape[1:])}"
        )
    labels = np.concatenate([train[1], test[1]])
    if len(labels) and labels.min() < 0:
        raise FormatError(f"{where}: a label is {labels.min()}; they count from 0")
    most = int(labels.max()) + 1 if len(labels) else 0
    if classes is not None and most > len(classes):
        raise FormatError(f"{where}: a label is {most - 1}, but there are {len(classes)} classes")
    if classes is None:
        if most > len(labels):
            raise FormatError(f"{where}: a label is {most - 1}, of {len(labels):,} images in all")
        classes = [str(label) for label in range(most)]
    if len(classes) < FEWEST_CLASSES:
        raise FormatError(f"{where} has {len(classes)} class: two are needed to tell apart")
    for part, (_, found) in (("training", train), ("test", test)):
        counts = np.bincount(found, minlength=len(classes))
        if empty := [name for name, count in zip(classes, counts, strict=True) if not count]:
            raise FormatError(f"{where}: the class {empty[0]!r} has no {part} image")
    return classes


def _split(images: Images, labels: Labels, keys: Sequence[bytes] = ()) -> tuple[Arrays, Arrays]:
    """Return a training and a test part; equal keys, by default equal images, stay together."""
    keys = keys or [hashlib.sha256(image.tobytes()).digest() for image in images]
    tested = keys_for_testing(keys, labels.tolist())
    chosen = np.array([key in tested for key in keys], dtype=np.bool_)
    return (images[~chosen], labels[~chosen]), (images[chosen], labels[chosen])


def keys_for_testing(keys: Sequence[bytes], labels: Sequence[int]) -> set[bytes]:
    """Return the hashes of the test part: a fifth of all, and one of each class at least."""
    chosen = {key for key in keys if int.from_bytes(key[:8], "big") < TEST_SHARE * 2**64}
    by_class: dict[int, set[bytes]] = {}
    for key, label in zip(keys, labels, strict=True):
        by_class.setdefault(label, set()).add(key)
    classes = [there for _, there in sorted(by_class.items())]
    for there in classes:
        if there <= chosen and len(there) > 1:
            chosen.remove(max(there))
    for there in classes:
        if not there & chosen:
            chosen.add(min(there))
    return chosen


def _folder(path: Path) -> tuple[Arrays, Arrays | None, list[str]]:
    """Return the pictures of a folder of class folders, or of two of them."""
    parts = [path / "train", path / "test"]
    if all(part.is_dir() for part in parts):
        found = [_listed(part) for part in parts]
        if strange := sorted(found[1].keys() - found[0].keys()):
            raise FormatError(f"{parts[1]} has the class {strange[0]!r}, {parts[0]} has not")
    else:
        found = [_listed(path)]
    classes = sorted(found[0])
    facts = [facts_of(file) for part in found for files in part.values() for file in files]
    side = _side([(width, height) for width, height, _ in facts])
    grey = all(grey for *_, grey in facts)
    if len(facts) * (side or facts[0][0]) ** 2 * (1 if grey else 3) > MOST_BYTES:
        raise FormatError(f"{path} has {len(facts):,} pictures: more than {MOST_BYTES >> 30} GiB")
    arrays = []
    for part in found:
        files = [(file, label) for label, name in enumerate(classes) for file in part.get(name, ())]
        pictures = (read_picture(file, "L" if grey else "RGB") for file, _ in files)
        images = np.stack([_fitted(picture, side) for picture in pictures])
        arrays.append((images, np.array([label for _, label in files], dtype=np.int64)))
    if len(arrays) == 2:
        return arrays[0], arrays[1], classes
    keys = [hashlib.sha256(file.read_bytes()).digest() for file, _ in files]
    return *_split(*arrays[0], keys), classes


def _listed(folder: Path) -> dict[str, list[Path]]:
    """Return the pictures of each class folder, in the order of their names."""
    found = {}
    for each in sorted(folder.iterdir()):
        if each.is_dir() and not each.name.startswith("."):
            files = [file for file in sorted(each.rglob("*")) if file.suffix.lower() in SUFFIXES]
            found[each.name] = [file for file in files if not file.name.startswith(".")]
    if empty := [name for name, files in found.items() if not files]:
        raise FormatError(f"the class folder {folder / empty[0]} has no picture")
    if len(found) < FEWEST_CLASSES:
        raise FormatError(
            f"{folder} has {len(found)} class folder{'s' * (len(found) != 1)}: "
            "it needs two or more, each with the pictures of a class"
        )
    return found


def _side(sizes: Sequence[tuple[int, int]]) -> int | None:
    """Return the side that images are resized to, or None if they stay as they are."""
    first = sizes[0]
    if set(sizes) == {first} and first[0] == first[1] <= SIDES[-1]:
        return None
    median = statistics.median(min(size) for size in sizes)
    return max((side for side in SIDES if side <= median), default=SIDES[0])


def _fitted(picture: Any, side: int | None) -> Images:
    """Return a picture as uint8 of shape C x H x W, resized if it must be."""
    if side is not None:
        box = optional("PIL.Image").Resampling.BOX
        picture = optional("PIL.ImageOps").fit(picture, (side, side), box)
    pixels = np.asarray(picture, dtype=np.uint8)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _npz(path: Path) -> tuple[Arrays, Arrays | None, list[str] | None]:
    """Return what an ``.npz`` file holds; it is not unpacked if it would be too large."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(each.file_size for each in archive.infolist())
        if size > MOST_BYTES:
            raise ValueError(f"it holds {size >> 30} GiB, the limit is {MOST_BYTES >> 30} GiB")
        with np.load(path, allow_pickle=False) as file:
            held = {name: file[name] for name in file.files}
    except Exception as error:  # of zipfile, zlib, numpy, or whatever a damaged file makes happen
        why = " ".join(str(error).split())
        raise FormatError(f"{path} cannot be read as .npz: {why}") from None
    for images, labels, more in (
        ("images", "labels", ("test_images", "test_labels")),
        ("x_train", "y_train", ("x_test", "y_test")),
    ):
        if {images, labels} <= held.keys():
            train = _arrays(held[images], held[labels], str(path))
            there = set(more) <= held.keys()
            test = _arrays(held[more[0]], held[more[1]], str(path)) if there else None
            classes = [str(one) for one in held["classes"]] if "classes" in held else None
            return train, test, classes
    raise FormatError(
        f"{path} must have images and labels (or x_train and y_train), "
        f"it has: {', '.join(sorted(held)) or 'nothing'}"
    )


def _pair(source: Any) -> Arrays:
    """Return images and labels of a pair of tensors, or of a data set of torch."""
    if isinstance(source, tuple | list) and len(source) == 2 and hasattr(source[0], "shape"):
        return _arrays(np.asarray(source[0]), np.asarray(source[1]), "the data")
    if not hasattr(source, "__getitem__") or not hasattr(source, "__len__"):
        raise FormatError(
            "data are a path, a pair of images and labels, or a data set of torch, "
            f"got {type(source).__name__}"
        )
    images, labels = [], []
    for number in range(len(source)):
        image, label = source[number]
        images.append(np.asarray(image))
        labels.append(int(label))
    if len({image.shape for image in images}) > 1:
        raise FormatError("the data: images of a data set of torch must have one size")
    return _arrays(np.array(images), np.array(labels), "the data")


def _arrays(images: Images, labels: Labels, where: str) -> Arrays:
    """Return arrays as uint8 N x C x H x W and int64, whatever order the channels had."""
    if np.issubdtype(images.dtype, np.floating):
        low, high = (float(images.min()), float(images.max())) if images.size else (0.0, 0.0)
        if not (0 <= low <= high <= 1):
            raise FormatError(
                f"{where}: images must be uint8, or numbers from 0 to 1, got {low:g} to {high:g}"
            )
        images = np.rint(images * 255).astype(np.uint8)
    if images.dtype != np.uint8:
        raise FormatError(f"{where}: images must be uint8, got {images.dtype}")
    if not np.issubdtype(labels.dtype, np.integer) or labels.squeeze().ndim > 1:
        raise FormatError(f"{where}: labels must be a list of whole numbers, got {labels.dtype}")
    if len(images) != labels.size:
        raise FormatError(f"{where}: {len(images):,} images have {labels.size:,} labels")
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[1] not in (1, 3) and images.shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise FormatError(
            f"{where}: images must be N x H x W, N x C x H x W or N x H x W x C with one or three "
            f"channels, got {by(images.shape)}"
        )
    return _resized(np.ascontiguousarray(images)), labels.reshape(-1).astype(np.int64)


def _resized(images: Images) -> Images:
    height, width = images.shape[2:]
    side = _side([(width, height)])
    if side is None or not len(images):
        return images
    made = optional("PIL.Image").fromarray
    pixels: Iterable[Any] = (one[0] if len(one) == 1 else one.transpose(1, 2, 0) for one in images)
    return np.stack([_fitted(made(np.ascontiguousarray(one)), side) for one in pixels])
