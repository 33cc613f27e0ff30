"""Invariant: what the data room finds out is shown, and told by the exit code."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from stochbatch import data
from stochbatch.data.catalogue import Part, SourceFile
from tests.cli.command import assert_one_clear_line, call

CONTENT = b"published"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> str:
    """A data set of one small file that cannot be downloaded."""
    digest = hashlib.sha256(CONTENT).hexdigest()
    file = SourceFile("small.bin", "file:///none/small.bin", len(CONTENT), digest)
    entry = replace(data.DATASETS["svhn"], train=Part(1, (file,)), test=Part(1, (file,)))
    monkeypatch.setattr(data.DATASETS._entries["svhn"], "thing", replace(entry, name="svhn"))
    return "svhn"


def put(root: Path, content: bytes) -> Path:
    path = root / "svhn" / "small.bin"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return path


def test_digits_need_no_download() -> None:
    assert call("data", "get", "digits").out == "digits needs no download.\n"


def test_get_prints_where_the_files_are(tmp_path: Path, small: str) -> None:
    path = put(tmp_path, CONTENT)
    outcome = call("data", "get", small, "--data-root", tmp_path, "--quiet")
    assert (outcome.code, outcome.out) == (0, f"{path}\n")


def test_a_wrong_file_is_not_replaced(tmp_path: Path, small: str) -> None:
    path = put(tmp_path, b"another")
    outcome = call("data", "get", small, "--data-root", tmp_path)
    assert_one_clear_line(outcome, 1, f"{path} is not the published file")


def test_a_name_that_does_not_exist_is_one_line() -> None:
    assert_one_clear_line(call("data", "get", "cifar"), 1, "did you mean 'cifar10'?")


def test_list_says_what_is_there(tmp_path: Path, small: str) -> None:
    put(tmp_path, CONTENT)
    outcome = call("data", "list", "--data-root", tmp_path)
    rows = {line.split()[0]: line for line in outcome.out.splitlines() if line.split()}
    assert "1 of 1 files" in rows["svhn"]
    assert "0 of 1 files" in rows["cifar10"]
    assert "no files needed" in rows["digits"]
    assert outcome.out.endswith(f"The data folder is {tmp_path}\n")
