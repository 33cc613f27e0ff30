from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.processes import Processes


@pytest.fixture(scope="package")
def two() -> Iterator[Processes]:
    processes = Processes(2)
    yield processes
    processes.stop()


@pytest.fixture(scope="package")
def four() -> Iterator[Processes]:
    processes = Processes(4)
    yield processes
    processes.stop()
