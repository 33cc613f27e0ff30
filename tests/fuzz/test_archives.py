"""Invariant: a file of data is read as what it is, or refused by one line, and stays as it was."""

from __future__ import annotations

import gzip
import tempfile
from functools import cache
from pathlib import Path

import hypothesis.strategies as st

from stochbatch import data
from tests.data import official
from tests.fuzz.mutations import contents, fuzz, mutated_bytes, used_or_refused


@cache
def good(name: str) -> tuple[data.Dataset, dict[str, bytes]]:
    """Return an entry and its published files."""
    with tempfile.TemporaryDirectory() as root:
        folder = official.write(name, Path(root))
        return official.published(name, folder), contents(folder)


def check(name: str, file: str, content: bytes) -> None:
    entry, files = good(name)
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root, name)
        folder.mkdir()
        for other, there in files.items():
            (folder / other).write_bytes(content if other == file else there)
        before = contents(folder)
        split = used_or_refused(
            lambda: data.load(entry, root, accept_hash=True), data.FormatError, data.HashError
        )
        after = contents(folder)
        assert {key: after[key] for key in before} == before
        assert len(after) == len(before) + (split is not None)
        if split is None:
            return
        assert split.images.shape[1:] == entry.shape
        assert 0 < len(split.images) == len(split.labels) <= entry.train.count
        assert 0 <= int(split.labels.min()) <= int(split.labels.max()) < len(entry.classes)
        assert split.official == (content == files[file])
        assert data.load(entry, root, accept_hash=True).sha256 == split.sha256


def inside(name: str, file: str) -> st.SearchStrategy[bytes]:
    """Mutations of what is in a compressed file, which is whole itself."""
    plain = gzip.decompress(good(name)[1][file])
    return mutated_bytes(plain, head=512).map(lambda content: gzip.compress(content, 1, mtime=0))


CIFAR, STL = "cifar-10-binary.tar.gz", "stl10_binary.tar.gz"
MAT = "train_32x32.mat"


@fuzz(25, content=mutated_bytes(good("cifar10")[1][CIFAR]))
def test_archives(content: bytes) -> None:
    check("cifar10", CIFAR, content)


@fuzz(25, cifar=inside("cifar10", CIFAR), stl=inside("stl10", STL))
def test_members(cifar: bytes, stl: bytes) -> None:
    check("cifar10", CIFAR, cifar)
    check("stl10", STL, stl)


@fuzz(75, name=st.sampled_from([MAT, "test_32x32.mat"]), drawn=st.data())
def test_matlab_files(name: str, drawn: st.DataObject) -> None:
    """The test part is not compressed, so that mutations reach what is inside."""
    check("svhn", MAT, drawn.draw(mutated_bytes(good("svhn")[1][name], head=256)))


def test_the_examples_are_good() -> None:
    for name, file in (("cifar10", CIFAR), ("stl10", STL), ("svhn", MAT)):
        check(name, file, good(name)[1][file])
