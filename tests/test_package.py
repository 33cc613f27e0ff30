"""Invariant: the optimizers need torch alone, and importing them imports nothing else."""

import subprocess
import sys
from importlib import metadata

import stochbatch

PROBE = """
import sys, torch
before = set(sys.modules)
import stochbatch
for name in stochbatch.__all__:  # which are looked up when they are asked for
    getattr(stochbatch, name)
import stochbatch.optim
new = {name.split(".")[0] for name in set(sys.modules) - before}
print(sorted(name for name in new if name not in sys.stdlib_module_names))
rooms = {name.split(".")[1] for name in sys.modules if name.startswith("stochbatch.")}
print(sorted(rooms))
"""


def test_import_brings_only_the_package_itself() -> None:
    output = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, check=True
    )
    assert output.stdout.splitlines() == ["['stochbatch']", "['checks', 'optim']"]


def test_torch_is_the_only_requirement() -> None:
    required = [r for r in metadata.requires("stochbatch") or [] if "extra ==" not in r]
    assert len(required) == 1
    assert required[0].startswith("torch>=")


def test_version() -> None:
    assert metadata.version("stochbatch") == stochbatch.__version__
