"""Invariant: a cluster leaves what this machine alone would leave, whatever dies in between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stochbatch.studies import local
from stochbatch.studies.engine import StudyStopped, StudyWatcher
from stochbatch.studies.ray_cluster import ClusterError, Share, connected
from stochbatch.studies.ray_engine import run_trials
from stochbatch.training import Trial
from tests.cli.command import SCRIPT
from tests.studies.two_nodes import below, left_after, of_session, two_nodes
from tests.training.runs import lasting, small_trial

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.distributed,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc"),
]

SHORT = [
    small_trial(method="sgd", epochs=2, momentum=0.9),
    small_trial(method="sbs", epochs=2),
    small_trial(method="entropy-sgd", epochs=2),
    small_trial(method="dropout", epochs=2, seed=1),
]
LONG = [small_trial(method=method, epochs=25) for method in ("sgd", "sbs")]
SLOW = [small_trial(method="sgd", epochs=1, share=1.0, batch_size=2)]
"""One long epoch: what is saved of it, is saved because it was told to stop."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything, trained by the local engine."""
    root = tmp_path_factory.mktemp("whole")
    trials = [*SLOW, *LONG, *SHORT]
    assert local.run_trials(trials, root, workers=2).finished == len(trials)
    return root


@pytest.fixture(scope="module")
def cluster(whole: Path) -> Iterator[Any]:
    with two_nodes() as nodes:
        yield nodes


@pytest.fixture(scope="module")
def connection(cluster: Any) -> Iterator[Any]:
    """A connection for all tests: the processes that have imported torch stay."""
    with connected(cluster.address):
        yield cluster


@pytest.fixture
def attentive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hear of every epoch at once: an epoch here is short, and something is to be done in it."""
    monkeypatch.setattr("stochbatch.studies.ray_engine.TOLD_EVERY", 0.0)
    monkeypatch.setattr("stochbatch.studies.ray_engine.LOOK_EVERY", 0.05)


class Log(StudyWatcher):
    """Remembers what it was told, and does something when a trial has done its third epoch."""

    def __init__(self, act: Callable[[], object] | None = None) -> None:
        self.act = act
        self.ended: list[str] = []
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def epoch(self, trial: Trial, done: int) -> None:
        if self.act is not None and done >= 3:
            self.act, act = None, self.act
            act()

    def end_of(self, trial: Trial, status: str, text: str) -> None:
        self.ended.append(status)


def assert_same(trials: list[Trial], whole: Path, root: Path) -> None:
    for trial in trials:
        assert lasting(root / trial.folder) == lasting(whole / trial.folder)
    assert {path.name for path in root.iterdir()} == {trial.folder for trial in trials}


def test_the_same_bytes_as_from_the_local_engine(
    whole: Path, connection: Any, tmp_path: Path
) -> None:
    log = Log()
    count = run_trials(SHORT, tmp_path, watcher=log)
    assert (count.finished, count.diverged, count.failed) == (4, 0, 0)
    assert log.ended == ["finished"] * 4
    assert log.notes == []
    assert_same(SHORT, whole, tmp_path)


def test_a_trial_that_fails_is_recorded_and_the_others_go_on(
    connection: Any, tmp_path: Path
) -> None:
    bad, good, elsewhere = SHORT[0], SHORT[1], small_trial(dataset="cifar10", network="vgg11")
    (tmp_path / bad.folder).mkdir()
    (tmp_path / bad.folder / "result.json").write_text("{")
    count = run_trials([bad, good, elsewhere], tmp_path, data_root=tmp_path / "nothing")
    assert (count.finished, count.failed) == (1, 2)
    errors = dict(error.split(": ", 1) for error in count.errors)
    assert "is not a result of this version" in errors[bad.folder]
    assert errors[elsewhere.folder].startswith("cifar-10-binary.tar.gz of cifar10 is neither in")
    assert "RunError" in (tmp_path / bad.folder / "error.json").read_text()
    (tmp_path / bad.folder / "result.json").unlink()
    assert run_trials([bad], tmp_path).finished == 1
    assert not (tmp_path / bad.folder / "error.json").exists()


def test_a_root_that_a_node_does_not_see_is_an_error(
    connection: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stochbatch.studies.ray_engine.MARK_SECONDS", 0.5)
    own = os.open(tmp_path, os.O_RDONLY)
    try:
        # A path that means a folder in this process, and nothing or another thing in others.
        root = Path(f"/proc/self/fd/{own}/runs")
        with pytest.raises(ClusterError, match=f"does not see {root}, or has another folder of"):
            run_trials(SHORT, root)
    finally:
        os.close(own)
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_node_with_another_version_is_an_error(
    connection: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stochbatch.__version__", "9.9")
    with pytest.raises(ClusterError, match="has stochbatch .*, where the study was started it is"):
        run_trials(SHORT, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_part_of_a_gpu_means_a_trial_on_a_gpu(connection: Any, tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    count = run_trials(SHORT[:2], tmp_path, share=Share(gpus=0.5))
    assert count.failed == 2
    assert all("no device 'cuda' here" in error for error in count.errors)


def test_a_cluster_without_room_is_waited_for_and_that_is_said(
    connection: Any, tmp_path: Path
) -> None:
    class Impatient(Log):
        def note(self, text: str) -> None:
            super().note(text)
            os.kill(os.getpid(), signal.SIGTERM)

    log = Impatient()
    with pytest.raises(StudyStopped, match="stopped by signal 15"):
        run_trials(SHORT, tmp_path, share=Share(cpus=64), watcher=log)
    assert log.notes == ["no node has room for a trial that needs 64 CPU: waiting"]
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_is_told_to_go_saves_and_its_trial_goes_on(
    whole: Path, connection: Any, tmp_path: Path, attentive: None
) -> None:
    told = []

    def tell_all() -> None:
        for process in below(os.getpid()):
            if process.name.startswith("ray::train_on"):
                told.append(process.pid)
                os.kill(process.pid, signal.SIGTERM)

    count = run_trials(LONG, tmp_path, watcher=Log(tell_all))
    assert told
    assert (count.finished, count.failed) == (2, 0)
    assert_same(LONG, whole, tmp_path)


def test_a_trial_that_kills_its_process_every_time_fails(
    connection: Any, tmp_path: Path, attentive: None
) -> None:
    def kill_all() -> None:
        for process in below(os.getpid()):
            if process.name.startswith("ray::train_on"):
                os.kill(process.pid, signal.SIGKILL)

    count = run_trials(LONG[:1], tmp_path, retries=0, watcher=Log(kill_all))
    assert (count.finished, count.failed) == (0, 1)
    assert "the process that trained it died 1 times" in count.errors[0]
    assert "died 1 times" in (tmp_path / LONG[0].folder / "error.json").read_text()


def command(root: Path, trials: list[Trial], *options: str) -> subprocess.Popen[str]:
    """Run a study of these trials, which differ in their methods, by the command."""
    fields = trials[0].model_dump(include={"epochs", "share", "batch_size", "width"})
    lines = [f"{name} = {value}" for name, value in fields.items()]
    axis = ["[[axes]]", 'name = "method"', 'field = "method"']
    methods = f"values = {[trial.method for trial in trials]}"
    study = root.with_name("few.toml")
    study.write_text("\n".join(['title = "Few trials"', "[base]", *lines, *axis, methods]))
    words = [SCRIPT, "study", "run", study, "--scale", "paper", "--trials", "1", "--root", root]
    return subprocess.Popen(
        [*map(str, words), "--engine", "ray", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_epochs(root: Path, driver: subprocess.Popen[str], epochs: int) -> None:
    """Wait until a trial has done so many."""
    until = time.monotonic() + 100
    while time.monotonic() < until and driver.poll() is None:
        if any(path.read_text().count("\n") >= epochs for path in root.glob("*/metrics.jsonl")):
            return
        time.sleep(0.02)
    driver.kill()
    pytest.fail(f"it did not begin: {driver.communicate(timeout=60)}")


def test_a_driver_that_is_killed_is_started_again_and_ends_the_study(
    whole: Path, cluster: Any, tmp_path: Path
) -> None:
    root = tmp_path / "runs"
    with command(root, LONG, "--address", cluster.address) as driver:
        wait_for_epochs(root, driver, 3)
        driver.kill()
    assert list(root.glob("*/checkpoint-*.pt"))
    with command(root, LONG, "--address", cluster.address) as driver:
        out, err = driver.communicate(timeout=400)
    assert driver.returncode == 0, err
    assert out == "few, scale paper: 2 trials to run\n2 finished, 0 diverged, 0 failed\n"
    assert [line.split()[0] for line in err.splitlines()] == ["1/2", "2/2"]
    assert_same(LONG, whole, root)


def test_ctrl_c_saves_and_the_same_command_goes_on(
    whole: Path, cluster: Any, tmp_path: Path
) -> None:
    root = tmp_path / "runs"
    with command(root, SLOW, "--address", cluster.address, "--quiet") as driver:
        wait_for_epochs(root, driver, 0)
        os.killpg(driver.pid, signal.SIGINT)  # as a terminal does
        out, err = driver.communicate(timeout=100)
    assert (driver.returncode, err) == (130, "")
    assert out.splitlines()[-1] == "Stopped; everything is saved. The same command goes on."
    assert list(root.glob("*/checkpoint-00000-*.pt"))
    with command(root, SLOW, "--address", cluster.address, "--quiet") as driver:
        out, err = driver.communicate(timeout=400)
    assert (driver.returncode, err) == (0, "")
    assert_same(SLOW, whole, root)


def test_a_connection_leaves_the_process_as_it_was(cluster: Any) -> None:
    probe = """
import signal, sys
from stochbatch.studies.ray_cluster import connected
before = signal.getsignal(signal.SIGTERM)
with connected(sys.argv[1]) as cluster:
    print("as Ray prints")
print(cluster.ray.is_initialized(), signal.getsignal(signal.SIGTERM) is before)
"""
    done = subprocess.run(
        [sys.executable, "-c", probe, cluster.address], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("False True\n", "as Ray prints\n")


def test_without_an_address_ray_is_started_here_and_nothing_is_left_of_it(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    with command(root, SLOW, "--gpus-per-trial", "1", "--workers", "1") as driver:
        deadline = time.monotonic() + 60
        started = of_session(driver.pid)
        while driver.poll() is None and time.monotonic() < deadline:
            started = max(started, of_session(driver.pid), key=len)
            time.sleep(0.05)
        out, err = driver.communicate(timeout=60)
    assert driver.returncode == 1, err
    assert out == "few, scale paper: 1 trials to run\n"
    assert err == "error: this machine has no room for a trial that needs 1 CPU and 1 GPU\n"
    assert {process.name for process in started} >= {"raylet", "gcs_server"}
    assert not left_after(started)
    assert list(root.iterdir()) == []


def occupy(ray: Any, node: str) -> Any:
    """Take the CPU of a node until what is returned is killed."""

    class Occupant: ...

    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
    occupant = ray.remote(num_cpus=1, scheduling_strategy=strategy)(Occupant).remote()
    ray.get(occupant.__ray_ready__.remote(), timeout=60)
    return occupant


def test_a_node_that_dies_takes_nothing_with_it(
    whole: Path, connection: Any, tmp_path: Path, attentive: None
) -> None:
    import ray

    (second,) = connection.worker_nodes
    occupant = occupy(ray, connection.head_node.node_id)  # so all trials go to the second node

    def remove_node() -> None:
        connection.remove_node(second, allow_graceful=False)
        ray.kill(occupant)

    count = run_trials(LONG, tmp_path, watcher=Log(remove_node))
    assert not connection.worker_nodes
    assert (count.finished, count.failed) == (2, 0)
    assert_same(LONG, whole, tmp_path)
