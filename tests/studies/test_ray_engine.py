"""Invariant: a cluster leaves what this machine alone leaves, whatever dies in between.

Real Ray: one cluster of two nodes with a CPU each. Where a trial must still be running when
something happens to it, it uses the method of a plugin whose steps are slow while a file exists.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from stochbatch.studies.comparing import compare
from stochbatch.studies.engine import StudyStopped, run_study
from stochbatch.studies.ray_engine import ClusterError, RayEngine, connected, run_trials
from stochbatch.training import METHODS, Method, RunError, Trial
from tests.cli.command import ENVIRONMENT, assert_one_clear_line, call
from tests.forked import Forked
from tests.studies.conftest import Plugin
from tests.studies.engines import Log, assert_as_alone, errors, tally, until
from tests.training.runs import lasting, small_trial

QUICK = [small_trial(method=method, epochs=2) for method in ("sgd", "sbs", "entropy-sgd")]

distributed = pytest.mark.distributed
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def cluster(module_plugin: Plugin) -> Iterator[Any]:
    """Two nodes with a CPU each; the first one claims to have a GPU as well."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="sb", dir="/tmp")  # names of sockets must be short
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")  # or a busy machine would starve them
        # Ray sets it to the CPUs of a task, unless it is set. Either way it must not matter.
        patch.setenv("OMP_NUM_THREADS", "2")
        patch.delenv("RAY_ADDRESS", raising=False)
        store = {"object_store_memory": 80 * 2**20}
        head = {"num_cpus": 1, "num_gpus": 1, "include_dashboard": False, **store}
        nodes = Cluster(initialize_head=True, head_node_args=head)
        try:
            nodes.add_node(num_cpus=1, **store)
            yield nodes
        finally:
            nodes.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def connection(cluster: Any) -> Iterator[Any]:
    """A connection for all tests: processes that have imported torch stay."""
    with connected(cluster.address):
        yield cluster


@distributed
def test_the_same_bytes_as_without_a_cluster(connection: Any, tmp_path: Path) -> None:
    log, root = Log(), tmp_path / "runs"
    ended = run_trials(QUICK, root, watcher=log)
    assert tally(ended) == {"finished": 3}
    assert [status for _, status in log.ended] == ["finished"] * 3
    assert log.notes == []
    assert {path.name for path in root.iterdir()} == {trial.folder for trial in QUICK}
    assert_as_alone(QUICK, root, tmp_path)


@distributed
def test_a_tuned_comparison_has_the_same_bytes_as_without_a_cluster(
    connection: Any, tmp_path: Path
) -> None:
    question = {"share": 0.1, "epochs": 2, "budget": 2, "seeds": 2, "batch_size": 32}
    here, there = (
        compare(["sgd", "sbs"], root=tmp_path / name, quiet=True, run_trials=engine, **question)
        for name, engine in (("alone", None), ("cluster", run_trials))
    )
    assert there.missing == []
    chosen, as_chosen = (
        [(one.label, one.winner.settings, one.winner.scores) for one in found.tuned if one.winner]
        for found in (there, here)
    )
    assert chosen == as_chosen
    assert len(chosen) == 2
    folders = sorted(path.name for path in there.root.iterdir())
    assert len(folders) == 16
    assert folders == sorted(path.name for path in here.root.iterdir())
    for folder in folders:
        assert lasting(there.root / folder) == lasting(here.root / folder)


@distributed
def test_a_trial_that_fails_is_recorded_and_the_others_go_on(
    connection: Any, tmp_path: Path
) -> None:
    good, bad = QUICK[0], small_trial(dataset="cifar10", network="vgg11")
    ended = run_trials([bad, good], tmp_path, data_root=tmp_path / "nothing")
    assert tally(ended) == {"finished": 1, "failed": 1}
    assert errors(ended)[0].startswith(f"{bad.folder}: ")
    assert "Traceback" in (tmp_path / bad.folder / "error.json").read_text()
    if not torch.cuda.is_available():  # a part of a GPU means a trial on a GPU
        ended = run_trials([QUICK[1]], tmp_path, gpus=0.5)
        assert "no device 'cuda' here" in errors(ended)[0]


@distributed
def test_a_node_that_does_not_see_the_root_stops_the_study(connection: Any, tmp_path: Path) -> None:
    own = os.open(tmp_path, os.O_RDONLY)
    try:
        # A path that means a folder in this process, and nothing or another thing in others.
        root = Path(f"/proc/self/fd/{own}/runs")
        with pytest.raises(ClusterError, match=f"does not see {root}, or has another folder of"):
            run_trials(QUICK, root)
    finally:
        os.close(own)
    assert list((tmp_path / "runs").iterdir()) == []


@distributed
def test_a_node_with_other_software_stops_the_study(
    connection: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(METHODS, "_entries", dict(METHODS._entries))
    METHODS.add("here", "Registered in this process only.", Method("Here", torch.optim.SGD))
    with pytest.raises(ClusterError, match="cannot make a trial.*no method is called 'here'"):
        run_trials([small_trial(method="here")], tmp_path)
    monkeypatch.setattr("stochbatch.__version__", "9.9")
    with pytest.raises(ClusterError, match=r"has stochbatch .*started with stochbatch 9\.9, torch"):
        run_trials(QUICK, tmp_path)
    assert list(tmp_path.iterdir()) == []


@distributed
def test_a_cluster_without_room_is_waited_for_and_this_machine_is_not(
    connection: Any, tmp_path: Path
) -> None:
    class Impatient(Log):
        def note(self, text: str) -> None:
            super().note(text)
            os.kill(os.getpid(), signal.SIGTERM)

    log, needs = Impatient(), "no node has room for a trial that needs 64 CPU and 0 GPU"
    with pytest.raises(StudyStopped, match="stopped by signal 15"):
        run_trials(QUICK, tmp_path, address=connection.address, cpus=64, watcher=log)
    assert log.notes == [f"{needs}: waiting for one"]
    with pytest.raises(ClusterError, match=needs):
        run_trials(QUICK, tmp_path, cpus=64)
    assert list(tmp_path.iterdir()) == []


@distributed
def test_a_process_that_is_told_to_go_saves_and_its_trial_is_tried_again(
    connection: Any, plugin: Plugin, tmp_path: Path
) -> None:
    trial = plugin.long()

    def tell_it() -> None:
        (pid,) = plugin.pids()
        os.kill(pid, signal.SIGTERM)
        plugin.slow.unlink()

    plugin.begin(slow=True)
    ended = run_trials([trial], tmp_path / "runs", watcher=Log(tell_it))
    assert tally(ended) == {"finished": 1}
    assert len(plugin.pids()) == 2
    assert_as_alone([trial], tmp_path / "runs", tmp_path)


@distributed
def test_a_trial_whose_process_dies_every_time_fails(
    connection: Any, plugin: Plugin, tmp_path: Path
) -> None:
    trial = plugin.long()

    def kill_it() -> None:
        (pid,) = plugin.pids()
        os.kill(pid, signal.SIGKILL)

    plugin.begin(slow=True)
    ended = run_trials([trial], tmp_path, retries=0, watcher=Log(kill_it))
    assert tally(ended) == {"failed": 1}
    assert "the process that trained it died 1 times" in errors(ended)[0]
    assert "died 1 times" in (tmp_path / trial.folder / "error.json").read_text()


def command(root: Path, trial: Trial, *options: str) -> Forked:
    """Run a study of one trial by the command."""
    study = root.with_name("one.toml")
    fields = trial.model_dump(include={"epochs", "share", "batch_size", "width", "momentum"})
    axis = ["[[axes]]", 'name = "method"', 'field = "method"', f"values = [{trial.method!r}]"]
    lines = [f"{name} = {value}" for name, value in fields.items()]
    study.write_text("\n".join(['title = "One trial"', "[base]", *lines, *axis]))
    words = ["study", "run", study, "--scale", "paper", "--trials", "1", "--root", root]
    words += ["--engine", "ray", "--quiet", *options]
    program = (
        "import os, runpy, sys; os.setsid()\n"
        f"sys.argv = ['stochbatch', *{list(map(str, words))!r}]\n"
        "runpy.run_module('stochbatch', run_name='__main__', alter_sys=True)\n"
    )
    return Forked(["python", "-c", program], env={**ENVIRONMENT, **os.environ})


@distributed
def test_a_driver_that_is_stopped_or_killed_is_started_again_and_ends_the_study(
    cluster: Any, plugin: Plugin, tmp_path: Path
) -> None:
    root = tmp_path / "runs"
    # Epochs of 135 steps: what is saved of the first one is saved because of Ctrl-C.
    trial = plugin.long(epochs=2, batch_size=2)
    plugin.begin(slow=True)
    driver = command(root, trial, "--address", cluster.address)
    until(plugin.pids, driver)
    os.killpg(driver.pid, signal.SIGINT)  # as a terminal does
    done = driver.wait(300)
    assert (done.returncode, done.stderr) == (130, "")
    assert done.stdout.splitlines()[-1].startswith("Stopped; everything is saved.")
    assert list((root / trial.folder).glob("checkpoint-00000-*.pt"))
    seen = plugin.pids()  # another driver has another process
    driver = command(root, trial, "--address", cluster.address)
    until(lambda: plugin.pids() - seen, driver)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    plugin.slow.unlink()
    done = command(root, trial, "--address", cluster.address).wait(300)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "1 finished, 0 diverged, 0 failed"
    assert_as_alone([trial], root, tmp_path)


@distributed
def test_without_an_address_ray_is_started_here_and_nothing_is_left_of_it(
    plugin: Plugin, tmp_path: Path
) -> None:
    root, trial = tmp_path / "runs", plugin.long(epochs=1)
    plugin.begin(slow=False)
    driver = command(root, trial, "--workers", "1")
    done = driver.wait(600)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "1 finished, 0 diverged, 0 failed"
    assert [path.name for path in root.iterdir()] == [trial.folder]
    (worker,) = plugin.pids()

    def is_gone() -> bool:
        with suppress(ProcessLookupError):
            return os.getsid(worker) != driver.pid
        return True

    until(is_gone)


@distributed
def test_a_node_that_dies_takes_nothing_with_it(
    connection: Any, plugin: Plugin, tmp_path: Path
) -> None:
    trials = [plugin.long(seed=seed) for seed in (1, 2)]
    (second,) = connection.worker_nodes

    def remove_node() -> None:
        connection.remove_node(second, allow_graceful=False)
        plugin.slow.unlink()

    plugin.begin(slow=True)
    log = Log(remove_node, trials=2)  # one on each node
    ended = run_trials(trials, tmp_path / "runs", watcher=log)
    assert not connection.worker_nodes
    assert len(plugin.pids()) >= 2
    assert tally(ended) == {"finished": 2}
    assert_as_alone(trials, tmp_path / "runs", tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpus": -0.25}, "a trial trains on one GPU or a part of one, got -0.25"),
        ({"gpus": 2.0}, "a trial trains on one GPU or a part of one, got 2"),
        ({"cpus": 0.0}, "a part of a CPU or several whole ones, got 0"),
        ({"cpus": 1.5}, "a part of a CPU or several whole ones, got 1.5"),
        ({"device": "cuda"}, "with 0 GPUs per trial the device is 'cpu', got 'cuda'"),
        ({"gpus": 0.5, "device": "cpu"}, "with 0.5 GPUs per trial the device is 'cuda', got 'cpu'"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=message):
        run_trials(QUICK, tmp_path / "runs", **options)
    assert not (tmp_path / "runs").exists()


@distributed
@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1:{port}", "Connection refused"),
        ("nonsense", ""),
        ("http://127.0.0.1:8265", "expected auto or HOST:PORT of the head"),
    ],
)
def test_where_there_is_no_cluster_one_line_says_so(
    address: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = address.format(port=closed.getsockname()[1])
    root = tmp_path / "runs"
    options = ("--root", root, "--engine", "ray", "--address", address)
    outcome = call("study", "run", "comparison", *options)
    assert_one_clear_line(outcome, 1, f"no Ray cluster at {address}: ", reason)
    assert not root.exists()


@distributed
def test_only_a_death_is_called_one(tmp_path: Path) -> None:
    exceptions = pytest.importorskip("ray.exceptions")

    class Failing:
        """Stands for Ray, whose every task ends with an error."""

        def __init__(self, error: Exception) -> None:
            self.exceptions, self.error = exceptions, error

        def wait(self, tasks: list[Any], **options: Any) -> tuple[list[Any], list[Any]]:
            return tasks, []

        def get(self, task: Any) -> None:
            raise self.error

    trial = QUICK[0]
    for error, text in (
        (exceptions.WorkerCrashedError(), "the process that trained it died 11 times: The worker"),
        (exceptions.RuntimeEnvSetupError("no pip"), "Ray could not run it: RuntimeEnvSetupError"),
    ):
        engine = RayEngine(Failing(error), lambda *words: object(), tmp_path, 1, tries=11)
        assert run_study(engine, [trial], tmp_path)[0].text.startswith(text)


def test_without_ray_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    root = tmp_path / "runs"
    outcome = call("study", "run", "comparison", "--root", root, "--engine", "ray")
    assert_one_clear_line(outcome, 1, "pip install 'stochbatch[ray]'")
    assert not root.exists()
