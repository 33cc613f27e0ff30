"""Invariant: a network of one's own is known by its source, and trains like any other."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stochbatch.registry import NETWORKS
from stochbatch.training import Trial, TrialError, read_run, run

SOURCE = """
from torch import nn

def plain(classes, channels):
    return nn.Sequential(nn.Flatten(), nn.Linear(64 * channels, classes))

def any_options(classes, channels, **others):
    return plain(classes, channels)

number = 3
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "my_nets", raising=False)
    monkeypatch.setattr(NETWORKS, "_found", {})
    Path("my_nets.py").write_text(SOURCE)


@pytest.mark.parametrize("name", ["plain", "any_options"])
def test_it_is_trained_and_read_by_its_hash(name: str, tmp_path: Path) -> None:
    trial = Trial(network=f"my_nets:{name}", epochs=1, share=0.1)
    reference, at, digits = trial.network.partition("@")
    assert (reference, at, len(digits)) == (f"my_nets:{name}", "@", 12)
    assert Trial(network=trial.network, epochs=1, share=0.1).hash == trial.hash
    run(trial, tmp_path / "runs")
    assert read_run(tmp_path / "runs" / trial.folder).trial == trial


def test_another_source_is_another_network(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Trial(network="my_nets:plain").network
    Path("my_nets.py").write_text(f"{SOURCE}# changed\n")
    monkeypatch.delitem(sys.modules, "my_nets")
    NETWORKS._found.clear()
    assert Trial(network="my_nets:plain").network != before
    with pytest.raises(TrialError, match="the network my_nets:plain has changed: its file has"):
        Trial(network=before)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ("no_nets:plain", "the network no_nets:plain cannot be imported: No module named"),
        ("my_nets:plane", "the network my_nets:plane cannot be imported: .*plane"),
        ("my_nets:number", "the network my_nets:number is not a function"),
        ("sys:exit", "the network sys:exit has no source file"),
    ],
)
def test_what_is_no_network_is_one_line(network: str, message: str) -> None:
    with pytest.raises(TrialError, match=message):
        Trial(network=network)


def test_a_width_that_it_does_not_have_is_refused() -> None:
    with pytest.raises(TrialError, match=r"the network my_nets:plain has no width, got 0\.5"):
        Trial(network="my_nets:plain", width=0.5)
