"""Observers hear of every batch, so that a test can act at any of them."""

from collections.abc import Iterator

import pytest

from stochbatch.training import runner


@pytest.fixture(autouse=True, scope="module")
def _told_always() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "TOLD_EVERY", -1.0)
        yield
