"""An engine that trains in this process: a small trial takes a tenth of a second, not two."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stochbatch.studies.engine import Count
from stochbatch.training import Trial, run


def run_trials(
    trials: Sequence[Trial],
    root: str | Path,
    *,
    data_root: str | Path | None = None,
    accept_hash: bool = False,
    **options: Any,
) -> Count:
    count = Count()
    for trial in trials:
        result = run(trial, root, device="cpu", data_root=data_root, accept_hash=accept_hash)
        count.add(trial, result.status, "")
    return count


@pytest.fixture
def trains_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this machine's engine train in this process."""
    monkeypatch.setattr("stochbatch.studies.local_engine.run_trials", run_trials)
