"""Invariant: exported weights are the run's, and a file is written whole or not at all."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import BinaryIO

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from stochbatch.training import Trial
from stochbatch.training import export as module
from stochbatch.training.export import ExportError, export
from tests.trained import trained


def assert_weights_of_the_run(weights: dict[str, torch.Tensor]) -> None:
    expected = trained().network().state_dict()
    assert weights.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(weights[name], tensor)


def test_safetensors_have_the_weights(tmp_path: Path) -> None:
    path = export(trained(), tmp_path / "weights.safetensors")
    assert_weights_of_the_run(load_file(path))


def test_safetensors_say_what_they_are(tmp_path: Path) -> None:
    read = trained()
    with safe_open(export(read, tmp_path / "a.safetensors"), "pt") as file:
        facts = file.metadata()
    assert Trial.from_text(facts["trial"], "json") == read.trial
    assert json.loads(facts["classes"]) == list("0123456789")
    assert json.loads(facts["normalisation"]) == {
        "mean": list(read.normalisation.mean),
        "std": list(read.normalisation.std),
    }


@pytest.mark.parametrize("name", ["weights.pt", "weights.pth"])
def test_a_state_dict_loads_with_weights_only(tmp_path: Path, name: str) -> None:
    path = export(trained(), tmp_path / name)
    assert_weights_of_the_run(torch.load(path, weights_only=True))


def test_the_form_that_is_given_goes_before_the_name(tmp_path: Path) -> None:
    path = export(trained(), tmp_path / "weights.pt", "safetensors")
    assert_weights_of_the_run(load_file(path))


def test_a_file_that_is_there_is_replaced_by_force_only(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    path.write_bytes(b"precious")
    with pytest.raises(ExportError, match="weights.pt is there already"):
        export(trained(), path)
    assert path.read_bytes() == b"precious"
    export(trained(), path, force=True)
    assert_weights_of_the_run(torch.load(path, weights_only=True))


def test_a_write_that_fails_leaves_the_former_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "weights.pt"
    path.write_bytes(b"precious")

    def fails(weights: object, facts: object, form: object, file: BinaryIO) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(module, "_save", fails)
    with pytest.raises(ExportError, match="cannot write .*weights.pt: no space left"):
        export(trained(), path, force=True)
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [
        ("weights.pt", b"precious")
    ]


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="is a folder"):
        export(trained(), tmp_path, force=True)
    with pytest.raises(ExportError, match="there is no folder"):
        export(trained(), tmp_path / "none" / "weights.pt")


def test_an_unknown_form_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="one of safetensors, state_dict, got 'onnx'"):
        export(trained(), tmp_path / "weights.onnx", "onnx")
