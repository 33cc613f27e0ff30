"""Invariant: a study that was killed again and again ends with the report of one left alone."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from stochbatch.report import write_report
from stochbatch.studies import SCALES, Study, collect
from stochbatch.training.run_folder import read_metrics
from tests.cli.command import ENVIRONMENT, SCRIPT

SEED = 20_200_413
KILLS = 6
TEXT = """
title = "Killed"
repetitions = 3
[base]
dataset = "digits"
epochs = 16
share = 0.25
width = 0.5
batch_size = 16
evaluate_every = 3
[[axes]]
name = "method"
points = [{ label = "SGD", method = "sgd" }, { label = "SBS", method = "sbs" }]
[claim]
axis = "method"
better = "SBS"
than = "SGD"
"""
OPTIONS = ["killed.toml", "--scale", "paper"]


def command(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start the command in a process group of its own."""
    with (folder / "said").open("wb") as said:
        return subprocess.Popen(
            [str(SCRIPT), *words],
            cwd=folder,
            env=ENVIRONMENT,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def study_run(folder: Path) -> subprocess.Popen[bytes]:
    return command(folder, "study", "run", *OPTIONS, "--workers", "2", "--quiet")


def finish(process: subprocess.Popen[bytes], folder: Path) -> None:
    try:
        code = process.wait(timeout=400)
    finally:
        kill(process)
    assert code == 0, (folder / "said").read_text()


def kill(process: subprocess.Popen[bytes]) -> None:
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


def report(folder: Path) -> dict[str, bytes]:
    """Return the files of the report, the page without its section of times and machines."""
    finish(command(folder, "report", *OPTIONS), folder)
    found = {}
    for path in sorted((folder / "reports").rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            if path.name == "index.html":
                content, sections = re.subn(
                    rb"<section id=\"times\">.*?</section>", b"", content, flags=re.S
                )
                assert sections == 1
            found[path.relative_to(folder).as_posix()] = content
    return found


def epochs_done(folder: Path) -> int:
    """Return how many epochs all runs have written down."""
    return sum(len(read_metrics(path)) for path in (folder / "runs").glob("*"))


def kill_after(process: subprocess.Popen[bytes], folder: Path, epochs: int) -> None:
    """Kill a study so many epochs from now, in the midst of whatever it does."""
    target = epochs_done(folder) + epochs
    until = time.monotonic() + 300
    try:
        while epochs_done(folder) < target and process.poll() is None:
            assert time.monotonic() < until, f"no {epochs} epochs in 300 s"
            time.sleep(0.02)
        assert process.poll() is None, (folder / "said").read_text()
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
    finish(study_run(alone), alone)

    generator = random.Random(SEED)
    study, scale = Study.from_text(TEXT, "killed"), SCALES["paper"]
    missing = []
    for number in range(KILLS):
        # By epochs and not by the clock, so that a machine of any speed, busy or not, is in the
        # middle of it: at most 60 of the 96 epochs are done when the last kill is due.
        epochs = generator.randint(0, 10)
        kill_after(study_run(killed), killed, epochs)
        results = collect(study, scale, killed / "runs")
        missing.append(len(results.missing))
        print(
            f"seed {SEED}, kill {number + 1}: {epochs} epochs after its start, "
            f"{epochs_done(killed)} epochs done, {missing[-1]} trials missing"
        )
        # A report of what is there so far leaves nothing behind that a later one has not.
        write_report(results, killed / "reports" / "killed-paper")
    assert missing == sorted(missing, reverse=True), "a finished trial was lost"
    assert missing[-1] > 0

    finish(study_run(killed), killed)
    expected, got = report(alone), report(killed)
    assert got.keys() == expected.keys()
    for name, content in expected.items():
        assert got[name] == content, name
    assert len([name for name in expected if name.endswith(".png")]) == 3
