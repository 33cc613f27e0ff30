"""Invariant: a study that was killed again and again ends with the report of one left alone."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from stochbatch.report import write_report
from stochbatch.studies import SCALES, Study, StudyResults, collect
from stochbatch.training.run_folder import read_metrics
from tests.forked import Forked

SEED = 20_200_413
KILLS = 6
TEXT = """
title = "Killed"
repetitions = 2
[base]
dataset = "digits"
epochs = 8
share = 0.25
width = 0.5
batch_size = 16
evaluate_every = 3
[[axes]]
name = "method"
points = [{ label = "SGD", method = "sgd" }, { label = "SBS", method = "sbs" }]
[[claims]]
axis = "method"
better = "SBS"
than = "SGD"
[tuning]
budget = 2
finalists = 1
seeds = 2
spaces.SGD.lr = { log = [0.01, 1] }
spaces.SBS.lr = { log = [0.01, 1] }
"""
PROGRAM = """
import os, runpy, sys
os.setsid()
sys.argv = "stochbatch study run killed.toml --workers 2 --quiet".split()
runpy.run_module("stochbatch", run_name="__main__", alter_sys=True)
"""


def study_run(folder: Path) -> Forked:
    """Start the command in a process group of its own."""
    return Forked(["python", "-c", PROGRAM], cwd=folder)


def finish(folder: Path) -> dict[str, bytes]:
    """Run a study to its end; return its report, the page without its times and machines."""
    done = study_run(folder).wait(400)
    assert done.returncode == 0, done.stderr
    write_report(results(folder), folder / "report")
    found = {path.name: path.read_bytes() for path in (folder / "report").rglob("*.*")}
    times = rb"<section id=\"times\">.*?</section>"
    found["index.html"], sections = re.subn(times, b"", found["index.html"], flags=re.S)
    assert sections == 1
    return found


def results(folder: Path) -> StudyResults:
    return collect(Study.from_text(TEXT, "killed"), SCALES["paper"], folder / "runs")


def kill(process: Forked) -> None:
    """Kill the whole group, and wait until nobody of it is left to hold a lock."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError("a process outlived its SIGKILL")


def epochs_done(folder: Path) -> int:
    """Return how many epochs all runs have written down."""
    return sum(len(read_metrics(path)) for path in (folder / "runs").glob("*"))


def kill_after(process: Forked, folder: Path, epochs: int) -> None:
    """Kill a study so many epochs from now, in the midst of whatever it does."""
    target = epochs_done(folder) + epochs
    until = time.monotonic() + 300
    try:
        while epochs_done(folder) < target and process.poll() is None:
            assert time.monotonic() < until, f"no {epochs} epochs in 300 s"
            time.sleep(0.02)
        assert process.poll() is None, process.stderr.read_text()
    finally:
        kill(process)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
def test_killed_at_random_moments_a_study_ends_with_the_same_report(tmp_path: Path) -> None:
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    for folder in (alone, killed):
        folder.mkdir()
        (folder / "killed.toml").write_text(TEXT)
    expected = finish(alone)

    generator = random.Random(SEED)
    finished = []
    for number in range(KILLS):
        # By epochs and not by the clock, so that a machine of any speed, busy or not, is in the
        # middle of it: at most 60 of the 80 epochs are done when the last kill is due.
        epochs = generator.randint(1, 10)
        kill_after(study_run(killed), killed, epochs)
        finished.append(len(list(killed.glob("runs/*/result.json"))))
        print(
            f"seed {SEED}, kill {number + 1}: {epochs} epochs after its start, "
            f"{epochs_done(killed)} epochs done, {finished[-1]} trials finished"
        )
        # A report of what is there so far leaves nothing behind that a later one has not.
        write_report(results(killed), killed / "report", figures=number == 0)
    assert finished == sorted(finished), "a finished trial was lost"
    assert finished[-1] < len(list(alone.glob("runs/*/result.json")))

    got = finish(killed)
    assert got.keys() == expected.keys()
    for name, content in expected.items():
        assert got[name] == content, name
    assert len([name for name in expected if name.endswith(".png")]) == 1
