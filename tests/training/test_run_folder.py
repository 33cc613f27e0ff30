"""Invariant: the weights of a run are a file that others load, and a damaged one is refused."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save
from torch import nn

from stochbatch.nets import NETWORKS
from stochbatch.training import Interrupted, RunError, Trial, read_run, run
from stochbatch.training.builders import build_network
from stochbatch.training.distributed import ALONE
from stochbatch.training.run_folder import locked
from tests.trained import copied, trained


class Tied(nn.Module):
    """A network that uses one linear layer under two names."""

    def __init__(self, classes: int, channels: int, width: float) -> None:
        super().__init__()
        self.first = nn.Linear(channels * 64, classes)
        self.second = self.first

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.first(images.flatten(1)) + self.second(images.flatten(1))


def test_weights_with_two_names_are_saved_under_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NETWORKS, "_entries", dict(NETWORKS._entries))
    NETWORKS.add("tied", "One layer, used twice.", Tied)
    trial = Trial(network="tied", epochs=1, share=0.1)
    assert run(trial, tmp_path).status == "finished"
    read = read_run(tmp_path / trial.folder)
    assert {"first.weight", "second.weight"} <= read.weights().keys()
    read.network()


def test_an_error_in_a_folder_that_vanished_is_not_hidden(tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def work() -> None:
        with locked(folder, False, ALONE):
            shutil.rmtree(folder)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    with locked(folder, False, ALONE):  # it was released
        pass


def test_an_interruption_reaches_another_process() -> None:
    copy = pickle.loads(pickle.dumps(Interrupted(15, Path("runs/x"))))
    assert (copy.signal_number, copy.folder) == (15, Path("runs/x"))


def test_other_programs_load_the_weights() -> None:
    read = trained()
    path = read.folder / "weights.safetensors"
    network = build_network(read.trial)
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
    with pytest.raises(RunError, match="weights.safetensors is missing"):
        read_run(folder).weights()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff" * 99, "weights.safetensors cannot be read as safetensors"),
        (save({"odd": torch.ones(3)}), "has the weights of another network"),
    ],
)
def test_weights_of_something_else_are_named(content: bytes, message: str, tmp_path: Path) -> None:
    """Even if the result has their hash."""
    read = copied(trained(), tmp_path)
    (read.folder / "weights.safetensors").write_bytes(content)
    path = read.folder / "result.json"
    result = {
        **json.loads(path.read_bytes()),
        "weights_sha256": hashlib.sha256(content).hexdigest(),
    }
    path.write_text(json.dumps(result))
    with pytest.raises(RunError, match=message) as caught:
        read_run(read.folder).network()
    assert "\n" not in str(caught.value)


def test_an_error_is_one_line_whatever_a_file_has_in_it(tmp_path: Path) -> None:
    path = copied(trained(), tmp_path).folder / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "odd\n\x85name": 1}))
    with pytest.raises(RunError, match="odd  ?name") as caught:
        read_run(path.parent).result  # noqa: B018
    assert len(str(caught.value).splitlines()) == 1
