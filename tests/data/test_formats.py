"""Invariant: a file that does not have its layout is an error that names the file and the fault.

Every case goes through `load` with ``accept_hash=True``, which forgives a hash, never a format.
"""

from __future__ import annotations

import io
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from stochbatch import data
from stochbatch.data import formats
from tests.data import official


def refused(name: str, root: Path, match: str, split: str = "train") -> str:
    with pytest.raises(data.FormatError, match=match) as caught:
        data.load(name, root, split, accept_hash=True)
    assert not (root / name / "cache").exists()
    return str(caught.value)


def archive(name: str, root: Path, members: dict[str, bytes]) -> Path:
    (root / name).mkdir()
    path = root / name / data.DATASETS[name].files[0].name
    official.tar(path, members)
    return path


@pytest.mark.parametrize("portion", [0.02, 0.5, 0.9])
@pytest.mark.parametrize("name", official.WRITERS)
def test_a_truncated_file_is_named(name: str, portion: float, tmp_path: Path) -> None:
    path = official.write(name, tmp_path) / data.DATASETS[name].train.files[0].name
    if path.suffixes == [".tar", ".gz"]:  # without what lies behind the members asked for
        path.unlink()
        members = official.cifar_members() if name == "cifar10" else official.stl_members()
        wanted = {key: members[key] for key in sorted(members) if "train" in key or "data_" in key}
        official.tar(path, wanted)
    path.write_bytes(path.read_bytes()[: int(portion * path.stat().st_size)])
    assert str(path) in refused(name, tmp_path, "is cut short")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *((name, content) for name in official.WRITERS for content in (b"", b"<html>404</html>")),
        ("svhn", None),
    ],
)
def test_a_file_of_another_kind_or_without_its_last_byte_is_named(
    name: str, content: bytes | None, tmp_path: Path
) -> None:
    folder = official.write(name, tmp_path)
    path = folder / data.DATASETS[name].train.files[0].name
    path.write_bytes(path.read_bytes()[:-1] if content is None else content)
    assert str(path) in refused(name, tmp_path, "is cut short")


@pytest.mark.parametrize(
    ("name", "members", "member"),
    [
        ("cifar10", official.cifar_members, "cifar-10-batches-bin/data_batch_3.bin"),
        ("stl10", official.stl_members, "stl10_binary/train_X.bin"),
    ],
)
def test_a_missing_member_and_a_wrong_record_length_are_named(
    name: str, members: Callable[[], dict[str, bytes]], member: str, tmp_path: Path
) -> None:
    content = members()
    rest = {key: part for key, part in content.items() if key != member}
    path = archive(name, tmp_path, rest)
    assert str(path) in refused(name, tmp_path, f"has no member {member}")
    official.tar(path, {**rest, member: content[member] + b"\0"})
    refused(name, tmp_path, f"member {member}: .* not a multiple of the record length")


@pytest.mark.parametrize(
    ("name", "member", "content", "message"),
    [
        (
            "cifar10",
            "cifar-10-batches-bin/data_batch_1.bin",
            lambda old: old[:3073] + b"\x0a" + old[3074:],
            "from 0 to 9, got 10 at position 1",
        ),
        ("stl10", "stl10_binary/train_y.bin", b"\1\0" + b"\1" * 8, "from 1 to 10, got 0 at "),
        ("stl10", "stl10_binary/train_y.bin", b"\1\13" + b"\1" * 8, "from 1 to 10, got 11 at "),
        ("stl10", "stl10_binary/train_y.bin", b"\1\2\3", "10 images, but 3 labels"),
    ],
)
def test_wrong_labels_are_refused(
    name: str, member: str, content: Any, message: str, tmp_path: Path
) -> None:
    members = official.cifar_members() if name == "cifar10" else official.stl_members()
    members[member] = content(members[member]) if callable(content) else content
    archive(name, tmp_path, members)
    refused(name, tmp_path, message)


def test_the_unlabelled_images_are_not_reached_and_nothing_is_unpacked(tmp_path: Path) -> None:
    members = official.stl_members()
    members["stl10_binary/unlabeled_X.bin"] = np.random.default_rng(0).bytes(1 << 21)
    path = archive("stl10", tmp_path, members)
    path.write_bytes(path.read_bytes()[: -(1 << 19)])
    assert len(data.load("stl10", tmp_path, accept_hash=True)) == official.TRAIN
    assert {file.name for file in path.parent.iterdir()} == {"stl10_binary.tar.gz", "cache"}


GOOD = official.svhn_variables(range(3))


@pytest.mark.parametrize(
    ("variables", "match"),
    [
        ({"y": GOOD["y"]}, r"has no variable X, only \['y'\]"),
        ({"X": GOOD["X"]}, "has no variable y"),
        ({**GOOD, "X": GOOD["X"].astype(np.float64)}, "X must be uint8 .* got double"),
        ({**GOOD, "X": GOOD["X"][:31]}, "X must be .* 32 x 32 x 3 x N, got .* 31 x 32 x 3 x 3"),
        ({**GOOD, "X": GOOD["X"][..., 0]}, "X must be .* got uint8 of 32 x 32 x 3$"),
        ({**GOOD, "X": np.array([[1, "a"]], dtype=object)}, "X must be uint8 .* got cell"),
        ({**GOOD, "y": GOOD["y"].T}, "y must be .* N x 1, got uint8 of 1 x 3"),
        ({**GOOD, "y": np.array([["a"], ["b"], ["c"]])}, "y must be .* got char"),
        ({**GOOD, "y": np.array([[1.0], [2.5], [3.0]])}, "got 2.5 at position 1"),
        ({**GOOD, "y": np.array([[1.0], [np.nan], [3.0]])}, "got nan at position 1"),
        ({**GOOD, "y": np.uint8([[1], [2], [0]])}, "y: labels .* from 1 to 10, got 0"),
        ({**GOOD, "y": np.uint8([[1], [11], [3]])}, "y: labels .* from 1 to 10, got 11"),
        ({**GOOD, "y": GOOD["y"][:2]}, "3 images, but 2 labels"),
        ({**GOOD, "y": np.array([[1], [2], [3 + 1j]])}, "y: labels .* got .3.1j. at position 2"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_matlab_file_with_other_variables_is_refused(
    variables: dict[str, np.ndarray], match: str, tmp_path: Path
) -> None:
    (tmp_path / "svhn").mkdir()
    savemat(tmp_path / "svhn" / "train_32x32.mat", variables)
    assert "train_32x32.mat" in refused("svhn", tmp_path, match)


def test_matlab_labels_may_be_doubles(tmp_path: Path) -> None:
    (tmp_path / "svhn").mkdir()
    variables = {**GOOD, "y": np.array([[10.0], [1.0], [9.0]])}
    savemat(tmp_path / "svhn" / "train_32x32.mat", variables)
    assert data.load("svhn", tmp_path, accept_hash=True).labels.tolist() == [0, 1, 9]


def ends(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How much of each archive is decompressed from now on."""
    places: list[int] = []

    class Noting(formats._Bounded):
        def close(self) -> None:
            places.append(self.tell())
            super().close()

    monkeypatch.setattr(formats, "_Bounded", Noting)
    return places


ZEROS = bytes(1 << 22)
"""What small compressed files expand to; few images are expected."""


def test_a_bomb_in_an_archive_is_not_decompressed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = dict.fromkeys(reversed(official.cifar_members()), ZEROS)
    entry = official.published("cifar10", archive("cifar10", tmp_path, members).parent)
    places = ends(monkeypatch)
    with pytest.raises(data.FormatError, match="batch.*bin': 4,194,304 bytes, expected 30,730 at"):
        data.load(entry, tmp_path)
    assert places[0] < 1 << 16


def test_members_together_have_no_more_bytes_than_the_images(tmp_path: Path) -> None:
    members = {name: 3 * content for name, content in official.cifar_members().items()}
    entry = official.published("cifar10", archive("cifar10", tmp_path, members).parent)
    with pytest.raises(data.FormatError, match="18,438 bytes, expected 12,292 at"):
        data.load(entry, tmp_path, accept_hash=True)


def test_an_archive_has_a_limit_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "ARCHIVE_LIMIT", len(ZEROS))
    archive("cifar10", tmp_path, {"another": ZEROS, **official.cifar_members()})
    places = ends(monkeypatch)
    refused("cifar10", tmp_path, "member 'another': 4,194,304 bytes, expected 4,194,304 at")
    assert places[0] < 1 << 16


def test_a_long_header_of_an_archive_is_not_read(tmp_path: Path) -> None:
    """`tarfile` would read such a name whole, which may have gigabytes."""
    (tmp_path / "cifar10").mkdir()
    with tarfile.open(tmp_path / "cifar10" / "cifar-10-binary.tar.gz", "w:gz") as file:
        info = tarfile.TarInfo("long")
        info.type, info.size = tarfile.GNUTYPE_LONGNAME, len(ZEROS)
        file.addfile(info, io.BytesIO(ZEROS))
    entry = official.published("cifar10", tmp_path / "cifar10")
    tracemalloc.start()
    try:
        with pytest.raises(data.FormatError, match="[0-9]+ bytes at once"):
            data.load(entry, tmp_path)
        assert tracemalloc.get_traced_memory()[1] < len(ZEROS)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("which", ["X", "y", "z"])
@pytest.mark.parametrize("compressed", [True, False])
def test_a_bomb_in_a_matlab_file_is_not_decompressed(
    which: str, compressed: bool, tmp_path: Path
) -> None:
    path = official.write("svhn", tmp_path) / "train_32x32.mat"
    shape = {"X": (32, 32, 3, 4000), "y": (1 << 22, 1), "z": (1 << 22, 1)}[which]
    bomb = {**GOOD, which: np.zeros(shape, np.uint8)}
    savemat(path, bomb, do_compression=compressed)
    entry = official.published("svhn", path.parent)
    tracemalloc.start()
    try:
        with pytest.raises(data.FormatError, match="train_32x32.mat: more than the 96,336 bytes"):
            data.load(entry, tmp_path, accept_hash=True)
        assert tracemalloc.get_traced_memory()[1] < 3 << 20  # blocks of one, hashed and inflated
    finally:
        tracemalloc.stop()


def test_a_matlab_variable_that_says_more_than_it_has_is_refused(tmp_path: Path) -> None:
    (tmp_path / "svhn").mkdir()
    path = tmp_path / "svhn" / "train_32x32.mat"
    savemat(path, GOOD)
    content = path.read_bytes()
    tag = (2).to_bytes(4, "little") + GOOD["X"].size.to_bytes(4, "little")
    path.write_bytes(content.replace(tag, tag[:4] + b"\0\0\0\x70", 1))
    refused("svhn", tmp_path, "is cut short, damaged or not a MATLAB file")


def test_the_first_of_two_matlab_variables_is_the_one_that_is_checked(tmp_path: Path) -> None:
    """It is the one that scipy reads."""
    (tmp_path / "svhn").mkdir()
    path = tmp_path / "svhn" / "train_32x32.mat"
    with path.open("wb") as file:
        savemat(file, {"X": np.array([[1, "a"]], dtype=object)})
    first = path.read_bytes()
    savemat(path, GOOD)
    path.write_bytes(first + path.read_bytes()[128:])
    refused("svhn", tmp_path, "X must be uint8 .* got cell")
