"""Invariant: the optimizers need torch alone, and importing them imports nothing else."""

import subprocess
import sys
from importlib import import_module, metadata

import pytest

import stochbatch
from tests.optim.cast import CAST

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


WITHOUT_NUMPY = """
import io, sys

class WithoutNumpy:
    finders = list(sys.meta_path)

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "numpy":
            return None
        found = (finder.find_spec(name, path, target) for finder in self.finders)
        return next((spec for spec in found if spec is not None), None)

sys.meta_path[:] = [WithoutNumpy()]
import torch
import stochbatch
from stochbatch.optim.article.algorithm2 import Algorithm2
from tests.optim.cast import CAST, Problem, Row, make_plainly

def masked(params):
    return stochbatch.Masked(torch.optim.AdamW(params))

rows = {
    **CAST,
    "Algorithm2": Row(Algorithm2, ({},), ()),
    "Masked": Row(stochbatch.Masked, ({},), (), own_make=make_plainly(masked)),
}
for name, row in rows.items():
    problem = Problem()
    optimizer = row.make(problem, **row.good[0])
    row.train(problem, optimizer, range(2))
    saved = io.BytesIO()
    torch.save(optimizer.state_dict(), saved)
    saved.seek(0)
    other = row.make(problem, **row.good[0])
    other.load_state_dict(torch.load(saved, weights_only=True))
    row.train(problem, other, range(2, 3))
    print(name)
assert "numpy" not in sys.modules
"""


def test_every_optimizer_works_without_numpy() -> None:
    ignored = "ignore:Failed to initialize NumPy"  # which torch says itself
    command = [sys.executable, "-W", "error", "-W", ignored, "-c", WITHOUT_NUMPY]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [*CAST, "Algorithm2", "Masked"]


@pytest.mark.parametrize("room", ["data", "nets", "optim", "report", "studies", "training"])
def test_every_public_name_of_a_room_is_there(room: str) -> None:
    package = import_module(f"stochbatch.{room}")
    for name in package.__all__:  # some are imported when they are first used
        assert getattr(package, name) is not None


def test_torch_is_the_only_requirement() -> None:
    required = [r for r in metadata.requires("stochbatch") or [] if "extra ==" not in r]
    assert len(required) == 1
    assert required[0].startswith("torch>=")


def test_version() -> None:
    assert metadata.version("stochbatch") == stochbatch.__version__
