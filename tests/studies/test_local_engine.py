"""Invariant: an engine runs what is missing, and neither a failure nor a kill disturbs the rest."""

import json
import multiprocessing
import os
import signal
import threading
import time
from multiprocessing import forkserver
from pathlib import Path

import pytest
import torch

from stochbatch.data import MissingFileError
from stochbatch.studies import SCALES, Study, collect
from stochbatch.studies.engine import StudyStopped
from stochbatch.studies.local_engine import LocalEngine, default_workers, devices, run_trials
from stochbatch.training import Trial
from tests.forked import Forked
from tests.studies.conftest import Plugin
from tests.studies.engines import Log, assert_as_alone, errors, tally, until
from tests.training.runs import small_trial

needs_linux = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")

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


def test_a_watcher_that_cannot_write_any_more_does_not_end_a_study(tmp_path: Path) -> None:
    class Broken(Log):
        """Its terminal was closed."""

        def end_of(self, trial: Trial, status: str, text: str) -> None:
            super().end_of(trial, status, text)
            raise BrokenPipeError

    watcher = Broken()
    assert tally(run_trials([small_trial(epochs=1)], tmp_path, watcher=watcher)) == {"finished": 1}
    assert len(watcher.ended) == 1
    assert watcher.closed


def test_what_is_missing_is_run_and_what_is_done_is_not(tmp_path: Path) -> None:
    study, scale = Study.from_text(TEXT, "small"), SCALES["paper"]
    results = collect(study, scale, tmp_path, repetitions=2)
    assert len(results.missing) == 4
    log = Log()
    ended = run_trials(results.missing, tmp_path, workers=2, watcher=log)
    assert tally(ended) == {"finished": 4}
    assert log.closed
    assert {seed for seed, _ in log.ended} == {0, 1}
    # Each trial is told of when it starts, and when its last epoch is done.
    assert log.epochs[0] == (0, 0)
    assert log.epochs.count((0, 2)) == log.epochs.count((1, 2)) == 2
    after = collect(study, scale, tmp_path, repetitions=3)
    assert [trial.seed for trial in after.missing] == [2, 2]
    assert all(outcome.status == "finished" for outcome in after.cells[0].outcomes[:2])
    assert after.cells[0].outcomes[2].status == "missing"
    again = collect(study, scale, tmp_path, repetitions=2)
    assert again.missing == []
    assert_as_alone(results.missing, tmp_path, tmp_path)


def test_a_trial_that_fails_is_recorded_and_the_others_go_on(tmp_path: Path) -> None:
    good, bad = small_trial(epochs=1), small_trial(epochs=1, seed=1)
    (tmp_path / bad.folder).mkdir()
    (tmp_path / bad.folder / "result.json").write_text("{")
    log = Log()
    ended = run_trials([bad, good], tmp_path, watcher=log)
    assert tally(ended) == {"finished": 1, "failed": 1}
    assert "is not a result of this version" in errors(ended)[0]
    error = json.loads((tmp_path / bad.folder / "error.json").read_text())
    assert "RunError" in error["traceback"]
    assert error["trial_hash"] == bad.hash
    (tmp_path / bad.folder / "result.json").unlink()
    assert tally(run_trials([bad], tmp_path)) == {"finished": 1}
    assert not (tmp_path / bad.folder / "error.json").exists()


def test_missing_data_are_one_line_before_anything_starts(tmp_path: Path) -> None:
    trials = [
        small_trial(),
        *(small_trial(dataset=name, network="vgg11") for name in ("cifar10", "svhn", "cifar10")),
    ]
    with pytest.raises(MissingFileError) as error:
        run_trials(trials, tmp_path / "runs", data_root=tmp_path)
    get = f"stochbatch data get {{}} --data-root {tmp_path}"
    commands = f"{get.format('cifar10')} && {get.format('svhn')}"
    assert str(error.value) == (
        f"the files of cifar10, svhn are not in {tmp_path}; get them first: {commands}"
    )
    assert not (tmp_path / "runs").exists()


def test_a_worker_that_is_killed_fails_its_trial_only(tmp_path: Path, plugin: Plugin) -> None:
    trials = [plugin.long(share=0.1, epochs=4, seed=seed) for seed in range(2)]
    plugin.begin(slow=True)

    def kill_it() -> None:
        (pid,) = plugin.pids()
        os.kill(pid, signal.SIGKILL)
        plugin.slow.unlink()

    ended = run_trials(trials, tmp_path, watcher=Log(kill_it))
    assert tally(ended) == {"finished": 1, "failed": 1}
    assert "the process that trained it died with exit code -9" in errors(ended)[0]
    error = json.loads((tmp_path / trials[0].folder / "error.json").read_text())
    assert "exit code -9" in error["error"]
    assert error["trial_hash"] == trials[0].hash
    assert tally(run_trials(trials, tmp_path)) == {"finished": 2}
    assert_as_alone(trials[:1], tmp_path, tmp_path)


def test_a_signal_stops_a_study_and_the_next_run_ends_it(tmp_path: Path, plugin: Plugin) -> None:
    trial, parts = plugin.long(share=0.1, epochs=4), tmp_path / "parts"
    plugin.begin(slow=True)
    with pytest.raises(StudyStopped, match="stopped by signal 2"):
        run_trials([trial], parts, watcher=Log(lambda: os.kill(os.getpid(), signal.SIGINT)))
    assert list(parts.glob("*/checkpoint-*.pt"))
    assert not list(parts.glob("*/error.json"))
    plugin.slow.unlink()
    log = Log()
    assert tally(run_trials([trial], parts, watcher=log)) == {"finished": 1}
    assert log.epochs[1][1] >= 1, "a resumed trial starts with the epochs it has"
    assert_as_alone([trial], parts, tmp_path)


def driver(trials: list[Trial], root: Path) -> Forked:
    """Run a study as the command does, in a process group of its own."""
    program = (
        "import os, sys; os.setsid()\n"
        "from stochbatch.training import Trial\n"
        "from stochbatch.studies.engine import StudyStopped\n"
        "from stochbatch.studies.local_engine import run_trials\n"
        "print('begun', flush=True)\n"
        "try:\n"
        f"    run_trials([Trial(**fields) for fields in {[t.model_dump() for t in trials]!r}],"
        f" {str(root)!r}, workers=2)\n"
        "except StudyStopped as stop:\n"
        "    sys.exit(128 + stop.signal_number)\n"
    )
    return Forked(["python", "-c", program])


def children(process: Forked) -> list[str]:
    tasks = Path(f"/proc/{process.pid}/task").glob("*/children")
    return " ".join(path.read_text() for path in tasks).split()


@needs_linux
@pytest.mark.parametrize(
    ("number", "training"),
    [(signal.SIGINT, False), (signal.SIGINT, True), (signal.SIGTERM, True)],
)
def test_a_signal_to_all_processes_leaves_no_traceback(
    tmp_path: Path, plugin: Plugin, number: signal.Signals, training: bool
) -> None:
    """As a terminal sends it, while the fork server starts or while the trials train."""
    plugin.begin(slow=True)
    process = driver([plugin.long(seed=seed) for seed in range(2)], tmp_path)
    until(process.stdout.read_text)
    if training:
        until(lambda: len(plugin.pids()) == 2)
    else:
        until(lambda: children(process))
    os.killpg(process.pid, number)
    done = process.wait()
    assert (done.returncode, done.stderr) == (128 + number, "")
    assert len(list(tmp_path.glob("*/checkpoint-*.pt"))) == 2 * training
    assert not list(tmp_path.glob("*/error.json"))


@needs_linux
def test_workers_of_an_engine_that_is_killed_save_and_end_and_the_next_goes_on(
    tmp_path: Path, plugin: Plugin
) -> None:
    """Only the engine is killed, as by the kernel for want of memory."""
    trial = plugin.long(share=0.5, epochs=2)
    plugin.begin(slow=True)
    process = driver([trial], tmp_path)
    until(plugin.pids)
    process.send_signal(signal.SIGKILL)
    process.wait()
    # It was within its first epoch: what is saved is saved because the engine is gone.
    until(lambda: list(tmp_path.glob("*/checkpoint-00000-*.pt")))
    (worker,) = plugin.pids()
    plugin.slow.unlink()
    # Not waiting for the orphan: the next engine does, until it has ended.
    assert tally(run_trials([trial], tmp_path)) == {"finished": 1}
    until(lambda: not Path(f"/proc/{worker}").exists())
    assert not (tmp_path / trial.folder / "error.json").exists()
    assert_as_alone([trial], tmp_path, tmp_path)


@needs_linux
def test_the_fork_server_has_no_threads_and_its_other_children_can_be_terminated(
    tmp_path: Path,
) -> None:
    """A fork would lose threads; and there is one fork server for all that a program does."""
    run_trials([small_trial(epochs=1)], tmp_path)
    server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    assert len(os.listdir(f"/proc/{server}/task")) == 1
    process = multiprocessing.get_context("forkserver").Process(target=time.sleep, args=(100,))
    process.start()
    process.terminate()
    process.join()
    assert process.exitcode == -signal.SIGTERM


def test_a_process_has_the_environment_of_the_call(
    tmp_path: Path, plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = plugin.long(epochs=1)
    assert tally(run_trials([trial], tmp_path / "with")) == {"finished": 1}
    monkeypatch.delenv("STOCHBATCH_PLUGINS")
    ended = run_trials([trial], tmp_path / "without")
    assert "no method is called 'slow-sgd'" in errors(ended)[0]


def test_trials_are_handed_out_to_all_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert devices("auto") == ["cuda:0", "cuda:1", "cuda:2"]
    assert default_workers("auto") == 3
    assert devices("cpu") == ["cpu"]
    assert default_workers("cpu") == os.cpu_count()
    engine = LocalEngine(tmp_path, 4, devices("auto"), {})
    for seed in range(4):
        engine.start(small_trial(seed=seed))
    assert [each.device for each in engine.running] == ["cuda:0", "cuda:1", "cuda:2", "cuda:0"]
    engine.stop()


def test_no_process_stays_behind(tmp_path: Path) -> None:
    before = threading.active_count()
    run_trials([small_trial(epochs=1)], tmp_path)
    assert not multiprocessing.active_children()
    assert threading.active_count() == before


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="workers must be 1 or more, got 0"):
        run_trials([], tmp_path, workers=0)
    assert tally(run_trials([], tmp_path)) == {}
