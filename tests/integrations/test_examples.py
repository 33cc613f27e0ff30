"""Invariant: in every framework a run resumed in mid-epoch has the weights of one never stopped."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "integrations"
NEEDS = {
    "plain_torch": "torch",
    "hf_trainer": "transformers",
    "accelerate_loop": "accelerate",
    "lightning_module": "lightning",
}

# Warnings of other packages are not ours to mend.
pytestmark = [pytest.mark.integrations, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(params=["sbs", "masked-adamw"])
def optimizer(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("name", NEEDS)
def test_a_resumed_run_has_the_same_weights(
    name: str, optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(NEEDS[name])
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.chdir(tmp_path)
    main = importlib.import_module(name).main
    given = ["--optimizer", optimizer, "--folder", str(tmp_path / "run")]
    whole = main(given)
    assert main([*given, "--resume"]) == whole


def test_loops_with_the_same_batches_have_the_same_weights(
    optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither Lightning nor accelerate changes a step: their orders of batches are the same."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.chdir(tmp_path)
    found = set()
    for name in ("accelerate_loop", "lightning_module"):
        pytest.importorskip(NEEDS[name])
        main = importlib.import_module(name).main
        found.add(main(["--optimizer", optimizer, "--folder", str(tmp_path / name)]))
    assert len(found) == 1


def _by_two_processes(folder: Path, *options: str) -> str:
    """Run the example of several processes; return the line it prints."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += [str(EXAMPLES / "sharded.py"), "--folder", str(folder), *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip().splitlines()[-1]


def test_ddp_and_fsdp2_resume_to_the_same_weights(optimizer: str, tmp_path: Path) -> None:
    found = set()
    for layout in ([], ["--shard"]):
        folder = tmp_path / "".join(["run", *layout])
        folder.mkdir()
        given = ["--optimizer", optimizer, *layout]
        found.add(_by_two_processes(folder, *given))
        found.add(_by_two_processes(folder, *given, "--resume"))
    assert len(found) == 1, found
