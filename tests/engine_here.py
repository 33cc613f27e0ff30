"""An engine that trains in this process: a small trial takes a tenth of a second, not two."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stochbatch.studies.engine import Ended
from stochbatch.training import Trial, run


def run_trials(
    trials: Sequence[Trial],
    root: str | Path,
    *,
    data_root: str | Path | None = None,
    accept_hash: bool = False,
    **options: Any,
) -> list[Ended]:
    options = {"device": "cpu", "data_root": data_root, "accept_hash": accept_hash}
    return [Ended(trial, run(trial, root, **options).status, "") for trial in trials]


@pytest.fixture
def trains_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this machine's engine train in this process."""
    monkeypatch.setattr("stochbatch.studies.local_engine.run_trials", run_trials)
