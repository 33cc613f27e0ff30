"""Every test that takes ``device`` runs on every device that this machine has."""

import os
from collections.abc import Iterator
from contextlib import suppress

import pytest
import torch

from stochbatch.optim.kernels.build import library
from stochbatch.optim.kernels.fallback import UnavailableError
from tests.processes import Processes

if not torch.cuda.is_available():
    # Triton's functions then run in its interpreter, on the CPU. Read when Triton is imported.
    os.environ["TRITON_INTERPRET"] = "1"


def devices() -> list[str]:
    found = ["cpu"]
    if torch.cuda.is_available():
        found.append("cuda")
    if torch.backends.mps.is_available():
        found.append("mps")
    return found


@pytest.fixture(params=devices())
def device(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(autouse=True, scope="session")
def _native_step() -> None:
    """Build the native step, so that no test begins with eager steps while it is built."""
    with suppress(UnavailableError):
        library()


@pytest.fixture(autouse=True)
def _fixed_generator() -> None:
    """Random test data are the same in every run; the optimizer itself never looks here."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def two() -> Iterator[Processes]:
    """Two processes, which start when a test first wants them to run something."""
    processes = Processes(2)
    yield processes
    processes.stop()


@pytest.fixture(scope="session")
def four() -> Iterator[Processes]:
    """Four processes."""
    processes = Processes(4)
    yield processes
    processes.stop()
