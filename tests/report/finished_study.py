"""A small study, really run once for all tests that look at one."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from stochbatch.studies import Published, Scale, Study, StudyResults, collect
from stochbatch.training import run

STUDY = Study.from_text(
    """
    title = "Two <methods> & one batch size"
    caption = "Test accuracy (%) of SGD and SBS."
    published = "comparison"
    figure = "Accuracy over the epochs."
    [base]
    dataset = "digits"
    epochs = 2
    share = 0.1
    width = 0.25
    [[axes]]
    name = "batch size"
    field = "batch_size"
    values = [16, 32]
    [[axes]]
    name = "method"
    points = [{ label = "SGD", method = "sgd" }, { label = "SBS", method = "sbs" }]
    [[claims]]
    axis = "method"
    better = "SBS"
    than = "SGD"
    """,
    "small",
)
SCALE = Scale("tiny", "A tenth of the digits for 2 epochs, 3 trials.", repetitions=3)
ONLY = {"batch size": ["16"]}


@cache
def _root() -> Path:
    root = Path(tempfile.mkdtemp(prefix="stochbatch-tests-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return root


@cache
def finished_study() -> StudyResults:
    """Return the results of 2 methods with 3 seeds; do not write into their folders."""
    for trial in STUDY.trials(STUDY.cells(SCALE, ONLY), SCALE.repetitions):
        run(trial, _root(), device="cpu")
    return collect(STUDY, SCALE, _root(), only=ONLY)


def begun_study() -> StudyResults:
    """Return the same study with its second batch size, of which nothing has been run."""
    finished_study()
    return collect(STUDY, SCALE, _root())


def comparable_study() -> StudyResults:
    """Return the results as if they were comparable, and the article had 99.99 everywhere."""
    finished_study()
    found = collect(STUDY, Scale("paper", "As published.", 3, comparable=True), _root(), only=ONLY)
    for cell in found.cells:
        object.__setattr__(cell.cell, "published", Published(99.99, 99.99))
    return found
