"""Invariant: a process trains with others only if torchrun, or its caller, meant it to."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
import torch

from stochbatch.studies.local import devices
from stochbatch.training import RunError, run
from stochbatch.training.errors import LostProcess
from stochbatch.training.joining import _is_loss, joined, own_device
from stochbatch.training.launch import Launch, decide_who_tells, find_launch, is_first
from tests.training.runs import lasting, small_trial

TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}


def pretend(monkeypatch: pytest.MonkeyPatch, **changes: str) -> None:
    for name, value in {**TORCHRUN, **changes}.items():
        monkeypatch.setenv(name, value)


def test_torchrun_is_known_by_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_launch() is None
    assert is_first()
    pretend(monkeypatch)
    assert find_launch() == Launch(rank=1, size=4, local_rank=1, has_group=False)
    assert not is_first()


def test_a_rank_that_nobody_meant_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other programs set such variables for their own ends."""
    pretend(monkeypatch)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    assert find_launch() is None


def test_one_process_under_torchrun_is_a_plain_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trial = small_trial(epochs=1)
    expected = lasting(run(trial, tmp_path / "plain").folder)
    pretend(monkeypatch, RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    assert find_launch() is None
    assert lasting(run(trial, tmp_path / "torchrun").folder) == expected


def test_alone_is_alone_even_under_torchrun(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretend(monkeypatch)
    assert run(small_trial(epochs=1), tmp_path, alone=True).environment["ranks"] == 1


def _is_alone(pipe) -> None:
    pipe.send(find_launch() is None)


def test_a_child_of_a_process_of_torchrun_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of a study has torchrun's variables from its parent."""
    pretend(monkeypatch)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_is_alone, args=(theirs,))
    child.start()
    assert ours.poll(60)
    assert ours.recv()
    child.join()


def test_a_group_of_one_is_left_alone(tmp_path: Path) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1
    )
    try:
        assert run(small_trial(epochs=1), tmp_path).environment["ranks"] == 1
        assert torch.distributed.is_initialized()
    finally:
        torch.distributed.destroy_process_group()


SECOND = Launch(rank=1, size=2, local_rank=1, has_group=False)


def test_no_other_gpu_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    """To try one is to take memory there, or all of it."""
    tried = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch, "empty", lambda *_, device: tried.append(str(device)))
    for name in ("auto", "cuda"):
        assert own_device(name, SECOND) == torch.device("cuda:1")
    assert tried == ["cuda:1"] * 2
    for name in ("auto", "cuda"):
        assert devices(name) == ["cuda:0", "cuda:1"]
    assert tried == ["cuda:1"] * 2


def test_the_gpu_of_the_caller_s_group_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr("stochbatch.training.joining.choose_device", torch.device)
    of_caller = SECOND._replace(has_group=True)
    assert own_device("auto", of_caller) == torch.device("cuda:1")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 5)
    assert own_device("auto", of_caller) == torch.device("cuda:5")
    bound = torch.device("cuda:6")
    monkeypatch.setattr("stochbatch.training.joining._bound_device", lambda: bound)
    assert own_device("auto", of_caller) == torch.device("cuda:6")


def test_each_process_has_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("stochbatch.training.joining.choose_device", torch.device)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert own_device("auto", SECOND) == torch.device("cuda:1")
    assert own_device("cuda", SECOND) == torch.device("cuda:1")
    assert own_device("cpu", SECOND) == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(RunError, match="no GPU is left for process 2 of this machine, which has 1"):
        own_device("auto", SECOND)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cuda:0", "several processes cannot share cuda:0"),
        ("meta", "several processes train on CPUs or CUDA devices, not on meta"),
        ("nonsense", "no device 'nonsense' here"),
    ],
)
def test_devices_that_several_processes_cannot_have(
    name: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(RunError, match=message):
        own_device(name, SECOND)


def test_an_error_that_nobody_else_can_tell_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "nowhere")
    error = RunError("it broke")
    decide_who_tells(error)
    assert error.told is False


def test_it_is_decided_once_who_tells() -> None:
    error = RunError("it broke")
    error.told = True
    decide_who_tells(error)
    assert error.told is True


def test_which_errors_are_about_another_process() -> None:
    assert _is_loss(RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer"))
    assert _is_loss(torch.distributed.DistBackendError("NCCL"))
    assert not _is_loss(RuntimeError("out of memory"))
    assert not _is_loss(LostProcess("3 epochs are saved"))
    assert not _is_loss(ValueError("gloo"))


def test_one_process_has_nothing_to_agree_on() -> None:
    with joined("cpu") as ranks:
        assert (ranks.rank, ranks.count, ranks.device) == (0, 1, None)
        assert ranks.in_turn(lambda: "done") == "done"
