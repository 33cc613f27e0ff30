"""Invariant: files are looked for where they should be, and never taken for what they are not."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from stochbatch import data
from stochbatch.data.folder import BLOCK, find, sha256_of
from tests.data import official


@pytest.mark.parametrize(
    ("root", "variables", "expected"),
    [
        ("mine", {"STOCHBATCH_DATA": "other"}, "mine"),
        (None, {"STOCHBATCH_DATA": "~/data", "XDG_CACHE_HOME": "elsewhere"}, "~/data"),
        (None, {"XDG_CACHE_HOME": "elsewhere"}, "elsewhere/stochbatch/data"),
        (None, {"STOCHBATCH_DATA": ""}, "~/.cache/stochbatch/data"),
    ],
)
def test_the_argument_goes_before_the_variable_and_that_before_the_cache_folder(
    root: str | None, variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("STOCHBATCH_DATA", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert data.data_root(root) == Path(expected).expanduser()


def test_the_variable_is_used_by_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    official.write("svhn", tmp_path)
    monkeypatch.setenv("STOCHBATCH_DATA", str(tmp_path))
    assert len(data.load("svhn", accept_hash=True)) == official.TRAIN


def test_the_folder_of_the_data_set_goes_before_the_root(tmp_path: Path) -> None:
    entry = data.DATASETS["cifar10"]
    official.write_cifar10(tmp_path)
    assert find(entry, entry.files[0], tmp_path) == tmp_path / entry.files[0].name
    folder = official.write("cifar10", tmp_path)
    assert find(entry, entry.files[0], tmp_path) == folder / entry.files[0].name


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
def test_the_hash_is_over_the_whole_file(size: int, tmp_path: Path) -> None:
    content = bytes(range(251)) * (size // 251 + 1)
    (tmp_path / "file").write_bytes(content[:size])
    assert sha256_of(tmp_path / "file") == hashlib.sha256(content[:size]).hexdigest()
