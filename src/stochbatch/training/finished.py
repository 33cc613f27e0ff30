"""A run that is over: found, checked against the data that are there, cleared away."""

from __future__ import annotations

import math
from pathlib import Path

from stochbatch import data
from stochbatch.files import remove_forgotten
from stochbatch.training import checkpoint
from stochbatch.training.exceptions import RunError
from stochbatch.training.result import Result
from stochbatch.training.run_folder import METRICS, RESULT, WEIGHTS, read_result


def find(
    folder: Path, again: bool, data_root: str | Path | None, accept_hash: bool
) -> Result | None:
    """Return the result, if the run is over and is not wanted again."""
    remove_forgotten(folder, after=-math.inf)  # nobody else is at work here
    done = None if again else read_result(folder)
    if done is not None:
        checkpoint.remove_all(folder)  # which a kill after the result leaves behind
        _check_data(done, data_root, accept_hash)
    return done


def _check_data(done: Result, data_root: str | Path | None, accept_hash: bool) -> None:
    """Raise if a finished run was trained on other data than those that are asked for."""
    if not done.data.official and not accept_hash:
        raise RunError(
            f"{done.folder} was trained on files that are not the published ones: take it as it "
            "is (--accept-hash), or begin anew (--again)"
        )
    name = done.trial["dataset"]
    try:
        splits = [
            data.load(name, data_root, split, accept_hash=accept_hash)
            for split in ("train", "test")
        ]
    except data.MissingFileError:
        return  # nothing to compare with
    if [split.sha256 for split in splits] != [done.data.train_sha256, done.data.test_sha256]:
        raise RunError(
            f"{done.folder} was trained on other data than are there now: put the former data "
            "back, or begin anew (--again)"
        )


def clear(folder: Path) -> None:
    """Remove what a run left, over or under way, but its trial."""
    # The result first: without it, what is left is a run under way.
    for name in (RESULT, WEIGHTS, METRICS):
        (folder / name).unlink(missing_ok=True)
    checkpoint.remove_all(folder)
