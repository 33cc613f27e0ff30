"""Invariant: ranks under torchrun train what one process would, end together, and lose nothing."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stochbatch import data
from stochbatch.nets import NETWORKS
from stochbatch.training import read_run, run
from stochbatch.training.distributed import LEAST, Ranks, Slice, Slices, launched
from tests.forked import forked
from tests.training import rank_script
from tests.training import torchrun as under_torchrun
from tests.training.rank_script import TRIALS, trial_of

distributed = pytest.mark.distributed
TRAIN = ["-m", "stochbatch", "train"]


@pytest.fixture(autouse=True)
def _networks_of_this_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is added to the registry here is gone afterwards."""
    monkeypatch.setattr(NETWORKS, "_entries", dict(NETWORKS._entries))


def answers(count: int, job: str, root: Path) -> list[Any]:
    """Let so many ranks do a job; return what each of them saw."""
    with under_torchrun.launched(root, count, rank_script.__file__, job, root) as launch:
        assert launch.end() == 0, launch.err
    return [json.loads((root / f"{job}-{rank}.json").read_text()) for rank in range(count)]


def assert_near(folder: Path, expected: Path) -> None:
    found, wanted = read_run(folder), read_run(expected)
    for name, weight in wanted.weights().items():
        torch.testing.assert_close(found.weights()[name], weight, rtol=1e-4, atol=1e-5, msg=name)
    for one, other in zip(found.metrics, wanted.metrics, strict=True):
        for name in ("train_loss", "test_loss"):
            assert one[name] == pytest.approx(other[name], rel=1e-4)
        for name in ("train_accuracy", "test_accuracy"):  # an image may lie on the border
            assert one[name] == pytest.approx(other[name], abs=0.5)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    root = tmp_path_factory.mktemp("trained")
    return root, answers(2, "train", root)


@distributed
@pytest.mark.timeout(400)
@pytest.mark.parametrize("number", range(len(TRIALS)), ids=lambda number: str(TRIALS[number]))
def test_both_ranks_have_the_same_weights_after_every_step_and_return_the_same_result(
    number: int, trained: tuple[Path, list[Any]]
) -> None:
    first, second = (seen[number] for seen in trained[1])
    assert len(first["weights"]) >= 2
    assert first["weights"] == second["weights"]
    assert first["result"] == second["result"]
    assert first["result"]["status"] == "finished"
    assert first["result"]["environment"]["ranks"] == 2


@distributed
@pytest.mark.parametrize("fields", TRIALS[:3], ids=str)
def test_two_ranks_train_what_one_process_would(
    fields: dict[str, Any], trained: tuple[Path, list[Any]], tmp_path: Path
) -> None:
    trial = trial_of(fields)
    assert_near(trained[0] / trial.folder, run(trial, tmp_path).folder)


@distributed
def test_the_slices_make_up_the_batches_of_one_process(trained: tuple[Path, list[Any]]) -> None:
    train = data.load("digits")
    chosen = data.subset(0, len(train), trial_of({}).share)
    batches = data.Batches(
        train.images[chosen], train.labels[chosen], 31, augmentation=data.Augmentation(1)
    )
    first, second = (seen[0]["slices"] for seen in trained[1])
    assert len(first) == 6
    for number, ((*place, mine, weight), (*_, others, other)) in enumerate(
        zip(first, second, strict=True)
    ):
        assert place == list(divmod(number, 3))
        whole = batches.batch(*place)[0].double().sum((1, 2, 3)).tolist()
        if place[1] == 2:
            assert mine == others == whole
            assert (weight, other) == (2, 0)
        else:
            assert mine + others == whole
            assert (weight, other) == (2 * 15 / 31, 2 * 16 / 31)


@distributed
def test_a_finished_run_is_returned_to_both_and_not_trained_again(
    trained: tuple[Path, list[Any]],
) -> None:
    for seen in trained[1]:
        assert seen[-1]["result"] == seen[0]["result"]
        assert seen[-1]["weights"] == []


@distributed
@pytest.mark.timeout(400)
def test_a_signal_to_one_rank_stops_all_and_resumed_they_end_with_the_same_bytes(
    tmp_path: Path,
) -> None:
    """Of three ranks and a network that is not tiny, as then the order of sums matters."""
    seen = answers(3, "stop", tmp_path)
    assert seen[0] == seen[1] == seen[2]
    *signals, resumed, whole = seen[0]
    assert signals == [signal.SIGTERM] * 2
    assert resumed == whole
    trial = trial_of(TRIALS[0])  # stopped by three ranks, resumed by one process
    saved = (tmp_path / "stopped" / trial.folder).glob("checkpoint-*")
    assert max(path.name for path in saved).startswith("checkpoint-00001-0000001-")
    assert_near(run(trial, tmp_path / "stopped").folder, run(trial, tmp_path / "one").folder)


@distributed
@pytest.mark.timeout(600)
def test_terminated_they_save_and_killed_one_ends_the_other_with_one_line(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    train = [*TRAIN, "--root", root, "--epochs", 5000, "--share", 0.1, "--width", 0.25]
    with under_torchrun.launched(tmp_path / "terminated", 2, *train) as launch:
        launch.wait_for("epoch 1/")
        workers = launch.workers()
        launch.process.terminate()
        assert launch.end() != 0
        assert launch.errors == []
        assert sum(line.startswith("Stopped; everything is saved.") for line in launch.out) == 1
        assert not any(map(is_alive, workers))

    with under_torchrun.launched(tmp_path / "killed", 2, *train) as launch:
        launch.wait_for("resumed: ")
        launch.wait_for("epoch ")
        workers = launch.workers()
        os.kill(workers[1], signal.SIGKILL)
        killed = time.monotonic()
        assert launch.end() != 0
        assert time.monotonic() - killed < 60
        (line,) = launch.errors
        assert line.startswith("error: rank 0: another rank died, or does not answer; run the same")
        assert not any(map(is_alive, workers))


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@distributed
@pytest.mark.timeout(400)
def test_an_error_is_reported_once_with_its_rank(tmp_path: Path) -> None:
    with under_torchrun.launched(tmp_path, 2, rank_script.__file__, "fail", tmp_path) as launch:
        assert launch.end() != 0
        (line,) = launch.errors
        assert line.startswith("error: rank 1: out of memory on cpu (no room for a network)")
        assert launch.out == []


@distributed
@pytest.mark.timeout(400)
def test_an_error_of_both_ranks_is_reported_once(tmp_path: Path) -> None:
    train = [*TRAIN, "--batch-size", 3, "--root", tmp_path / "runs"]
    with under_torchrun.launched(tmp_path, 2, *train) as launch:
        assert launch.end() != 0
        (line,) = launch.errors
        assert "batches of 3 images are too small for 2 processes, each of which needs 2" in line
    assert not (tmp_path / "runs").exists()


@distributed
@pytest.mark.timeout(400)
def test_what_several_ranks_cannot_do_is_refused_and_leaves_no_folder(tmp_path: Path) -> None:
    first, second = answers(2, "refuse", tmp_path)
    assert first == second
    folders = [path.name for path in (tmp_path / "refused").iterdir()]
    assert folders == [trial_of({"seed": 7}).folder]  # of the last one, which did start
    for found, expected in zip(
        first,
        [
            "batches of 3 images are too small for 2 processes",
            "sync_bn over several processes needs GPUs",
            "no device 'nonsense' here",
            "of cifar10 is neither in",
            "the ranks of this training were given different trials",
            "the ranks of this training came to have different weights",
        ],
        strict=True,
    ):
        assert expected in found


def slices_of(count: int, images: int, batch_size: int, number: int) -> list[Slice]:
    pixels = torch.randint(0, 256, (images, 1, 2, 2), dtype=torch.uint8)
    batches = data.Batches(pixels, torch.arange(images), batch_size)
    return [Slices(batches, Ranks(rank, count))(3, number) for rank in range(count)]


@settings(max_examples=60, deadline=None)
@given(count=st.integers(1, 5), images=st.integers(2, 40), size=st.integers(1, 40), drawn=st.data())
def test_the_mean_gradient_of_the_slices_is_that_of_the_batch(count, images, size, drawn) -> None:
    number = drawn.draw(st.integers(0, -(-images // size) - 1))
    torch.manual_seed(0)
    (whole,) = slices_of(1, images, size, number)
    torch.manual_seed(0)
    slices = slices_of(count, images, size, number)
    assert whole.weight == 1
    means = [part.images.double().mean(0) * part.weight for part in slices]
    torch.testing.assert_close(torch.stack(means).mean(0), whole.images.double().mean(0))
    counted = torch.cat([part.labels for part in slices if part.weight])
    assert torch.equal(counted, whole.labels)
    assert count == 1 or all(len(part.labels) >= min(LEAST, len(whole.labels)) for part in slices)


def test_only_torchrun_itself_makes_a_process_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert launched() == (0, 1)  # other programs set such variables for their own ends
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    assert launched() == (1, 4)
    code = "from stochbatch.training.distributed import launched; print(launched())"
    child = forked(["python", "-c", code])  # by multiprocessing, as a worker of a study is
    assert child.stdout == "(0, 1)\n", child.stderr


def test_each_rank_has_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", used.append)
    monkeypatch.setattr("stochbatch.training.distributed.choose_device", torch.device)
    monkeypatch.setenv("LOCAL_RANK", "1")
    for name in ("auto", "cuda"):
        assert Ranks(5, 8).choose_device(name) == torch.device("cuda:1")
    assert Ranks(5, 8).choose_device("cpu") == torch.device("cpu")
    assert used == [torch.device("cuda:1")] * 2
