"""A network trained once for all tests that look at one."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from stochbatch.training import RunFolder, Trial, read_run, run


@cache
def _root() -> Path:
    root = Path(tempfile.mkdtemp(prefix="stochbatch-tests-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return root


@cache
def trained(method: str = "sgd", epochs: int = 10) -> RunFolder:
    """Return a finished run on digits; do not write into its folder, see `copied`."""
    trial = Trial(method=method, epochs=epochs, batch_size=64)
    return read_run(run(trial, _root(), device="cpu").folder)


def copied(read: RunFolder, root: Path) -> RunFolder:
    """Return the same run in another folder of runs, where a test may do what it likes."""
    return read_run(shutil.copytree(read.folder, root / read.folder.name))
