"""Invariant: the weights of a run are a file that others load, and a damaged one is refused."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from stochbatch.training import RunError, read_run
from tests.trained import copied, trained


def test_other_programs_load_the_weights() -> None:
    read = trained()
    path = read.folder / "weights.safetensors"
    network = read.trial.build_network()
    network.load_state_dict(load_file(path))
    for name, tensor in read.network().state_dict().items():
        assert torch.equal(network.state_dict()[name], tensor)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == read.result.weights_sha256


def test_damaged_and_missing_weights_are_named(tmp_path: Path) -> None:
    folder = copied(trained(), tmp_path).folder
    path = folder / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RunError, match="weights.safetensors is damaged"):
        read_run(folder).weights()
    path.unlink()
    with pytest.raises(RunError, match="weights.safetensors cannot be read"):
        read_run(folder).weights()
