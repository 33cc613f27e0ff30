"""Invariant: an engine runs what is missing, and neither a failure nor a kill disturbs the rest."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import filelock
import pytest
import torch

from stochbatch.studies import SCALES, Study, collect, local_engine
from stochbatch.studies.engine import StudyStopped, StudyWatcher, train
from stochbatch.studies.local_engine import default_workers, devices, run_trials
from stochbatch.training import Trial
from tests.cli.command import ENVIRONMENT, SCRIPT
from tests.training.runs import lasting, small_trial

TEXT = """
title = "small"
[base]
dataset = "digits"
network = "vgg_tiny"
epochs = 2
share = 0.1
width = 0.25
batch_size = 32
[[axes]]
name = "method"
field = "method"
values = ["sgd", "sbs"]
"""


class Log(StudyWatcher):
    def __init__(self) -> None:
        self.ended: list[tuple[int, str, str]] = []
        self.epochs: list[tuple[int, int]] = []
        self.closed = False

    def epoch(self, trial: Trial, done: int) -> None:
        self.epochs.append((trial.seed, done))

    def end_of(self, trial: Trial, status: str, text: str) -> None:
        self.ended.append((trial.seed, status, text))

    def close(self) -> None:
        self.closed = True


def test_what_others_are_at_work_on_comes_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, free = (small_trial(epochs=1, seed=seed) for seed in range(2))
    (tmp_path / held.folder).mkdir()
    lock = filelock.FileLock(tmp_path / held.folder / "lock")
    lock.acquire()

    class Releasing(Log):
        notes = ""

        def note(self, text: str) -> None:
            self.notes += text

        def end_of(self, trial: Trial, status: str, text: str) -> None:
            super().end_of(trial, status, text)
            lock.release()

    watcher = Releasing()
    assert run_trials([held, free], tmp_path, watcher=watcher).finished == 2
    assert [seed for seed, *_ in watcher.ended] == [1, 0]
    assert "at work on some of these trials: they come last" in watcher.notes


class Broken(Log):
    """Its terminal was closed."""

    def end_of(self, trial: Trial, status: str, text: str) -> None:
        super().end_of(trial, status, text)
        raise BrokenPipeError


def test_a_watcher_that_cannot_write_any_more_does_not_end_a_study(tmp_path: Path) -> None:
    watcher = Broken()
    assert run_trials([small_trial(epochs=1)], tmp_path, watcher=watcher).finished == 1
    assert len(watcher.ended) == 1
    assert watcher.closed


def test_a_process_whose_device_may_be_broken_is_replaced_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU that is not there stands for one that is broken: every trial on it fails."""
    places: list[int] = []
    hire = local_engine._Engine._hire
    monkeypatch.setattr(
        local_engine._Engine, "_hire", lambda self, place: (places.append(place), hire(self, place))
    )
    trials = [small_trial(dataset="cifar10", network="vgg11"), small_trial(epochs=1)]
    options = {"data_root": tmp_path / "empty"}
    assert run_trials(trials, tmp_path / "sound", device="cpu", **options).failed == 1
    assert places == [0]
    monkeypatch.setattr(local_engine, "devices", lambda device: ["cuda:77"])
    assert run_trials(trials, tmp_path / "broken", **options).failed == 2
    assert places == [0, 0, 0]


def test_what_is_missing_is_run_and_what_is_done_is_not(tmp_path: Path) -> None:
    study, scale = Study.from_text(TEXT, "small"), SCALES["paper"]
    results = collect(study, scale, tmp_path, repetitions=2)
    assert len(results.missing) == 4
    log = Log()
    count = run_trials(results.missing, tmp_path, workers=2, watcher=log)
    assert (count.finished, count.diverged, count.failed) == (4, 0, 0)
    assert log.closed
    assert {seed for seed, *_ in log.ended} == {0, 1}
    after = collect(study, scale, tmp_path, repetitions=3)
    assert [trial.seed for trial in after.missing] == [2, 2]
    assert all(outcome.status == "finished" for outcome in after.cells[0].outcomes[:2])
    assert after.cells[0].outcomes[2].status == "missing"
    again = collect(study, scale, tmp_path, repetitions=2)
    assert again.missing == []


def test_a_trial_that_fails_is_recorded_and_the_others_go_on(tmp_path: Path) -> None:
    good, bad = small_trial(epochs=1), small_trial(epochs=1, seed=1)
    (tmp_path / bad.folder).mkdir()
    (tmp_path / bad.folder / "result.json").write_text("{")
    log = Log()
    count = run_trials([bad, good], tmp_path, watcher=log)
    assert (count.finished, count.failed) == (1, 1)
    assert "is not a result of this version" in count.errors[0]
    error = json.loads((tmp_path / bad.folder / "error.json").read_text())
    assert "RunError" in error["traceback"]
    (tmp_path / bad.folder / "result.json").unlink()
    assert run_trials([bad], tmp_path).finished == 1
    assert not (tmp_path / bad.folder / "error.json").exists()


class KillsTheFirst(Log):
    """Kills a worker when it has done its first epoch."""

    def epoch(self, trial: Trial, done: int) -> None:
        super().epoch(trial, done)
        if done == 1 and len([1 for seed, d in self.epochs if d == 1]) == 1:
            children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
            for child in children:
                command = Path(f"/proc/{child}/cmdline").read_bytes()
                if b"spawn_main" in command:
                    os.kill(int(child), signal.SIGKILL)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")
def test_a_worker_that_is_killed_is_replaced(tmp_path: Path) -> None:
    trials = [small_trial(epochs=30, seed=seed) for seed in range(2)]
    log = KillsTheFirst()
    count = run_trials(trials, tmp_path, watcher=log)
    assert (count.finished, count.failed) == (1, 1)
    assert "died with exit code -9" in count.errors[0]
    assert run_trials(trials, tmp_path).finished == 2


def test_a_signal_stops_a_study_and_the_next_run_ends_it(tmp_path: Path) -> None:
    trial = small_trial(epochs=40)

    class Stops(Log):
        def epoch(self, trial: Trial, done: int) -> None:
            if done == 3:
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(StudyStopped, match="stopped by signal 2"):
        run_trials([trial], tmp_path / "parts", watcher=Stops())
    assert list((tmp_path / "parts").glob("*/checkpoint-*.pt"))
    assert run_trials([trial], tmp_path / "parts").finished == 1
    train(trial, tmp_path / "whole")
    assert lasting(tmp_path / "parts" / trial.folder) == lasting(tmp_path / "whole" / trial.folder)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("moment", [0.0, 1.0])
def test_ctrl_c_while_the_workers_begin_leaves_no_traceback(tmp_path: Path, moment: float) -> None:
    words = ["study", "run", "comparison", "--scale", "demo", "--workers", "2"]
    process = subprocess.Popen(
        [str(SCRIPT), *words, "--root", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=ENVIRONMENT,
        start_new_session=True,
    )
    assert process.stdout is not None
    said = process.stdout.readline()  # how many trials there are: from now on workers are hired
    _until(lambda: len(_children(process.pid)) > 1)
    time.sleep(moment)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    said += process.communicate(timeout=300)[0]
    assert "Traceback" not in said
    assert "Stopped; everything is saved" in said
    assert process.returncode == 130


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")
def test_workers_of_an_engine_that_is_killed_save_and_end_and_the_next_goes_on(
    tmp_path: Path,
) -> None:
    """The engine alone is killed, as by the kernel for want of memory."""
    trial = small_trial(epochs=60)
    program = (
        "from stochbatch.training import Trial\n"
        "from stochbatch.studies.local_engine import run_trials\n"
        "if __name__ == '__main__':\n"
        f"    run_trials([Trial(**{trial.model_dump()!r})], {str(tmp_path)!r})\n"
    )
    script = tmp_path / "engine_script.py"
    script.write_text(program)
    engine = subprocess.Popen([sys.executable, str(script)])
    _until(lambda: list(tmp_path.glob("*/checkpoint-*.pt")))
    children = Path(f"/proc/{engine.pid}/task/{engine.pid}/children").read_text().split()
    workers = [child for child in children if b"spawn_main" in _command(child)]
    engine.kill()
    engine.wait()
    # Not waiting for the orphans: the next engine does, until they have saved.
    assert run_trials([trial], tmp_path).finished == 1
    assert workers
    _until(lambda: all(b"spawn_main" not in _command(worker) for worker in workers))
    assert not (tmp_path / trial.folder / "error.json").exists()
    train(trial, tmp_path / "whole")
    assert lasting(tmp_path / trial.folder) == lasting(tmp_path / "whole" / trial.folder)


def _children(process: int) -> list[str]:
    return Path(f"/proc/{process}/task/{process}/children").read_text().split()


def _command(process: str) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def _until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 300
    while not true():
        assert time.monotonic() < deadline, "waited for five minutes"
        time.sleep(0.05)


def test_trials_are_handed_out_to_all_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert devices("auto") == ["cuda:0", "cuda:1", "cuda:2"]
    assert default_workers("auto") == 3
    assert devices("cpu") == ["cpu"]
    assert default_workers("cpu") == os.cpu_count()


def test_no_process_stays_behind(tmp_path: Path) -> None:
    before = threading.active_count()
    run_trials([small_trial(epochs=1)], tmp_path)
    time.sleep(0.1)
    import multiprocessing

    assert not multiprocessing.active_children()
    assert threading.active_count() == before


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="workers must be 1 or more, got 0"):
        run_trials([], tmp_path, workers=0)
    assert run_trials([], tmp_path).finished == 0
