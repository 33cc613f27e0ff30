"""Invariant: a run ends the same to the last bit, however it was stopped; nothing is lost."""

import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import filelock
import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.swa_utils import update_bn

from stochbatch import SBS, data, param_groups
from stochbatch.optim import EntropySGD
from stochbatch.training import METHODS, Interrupted, RunError, Trial, read_run, run
from stochbatch.training.builders import build_network
from stochbatch.training.tensorboard import TensorBoard
from stochbatch.training.trainer import seed_everything
from tests.trained import copied, trained
from tests.training.runs import SMALL, Witness, crashed, lasting, small_trial


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


VARIANTS = [
    *({"method": name, "lr": 0.01} for name in METHODS),
    {"momentum": 0.9, "schedule": "staircase"},
    {"method": "sbs", "momentum": 0.6, "schedule": "exponential", "settings": {"lambd": -1}},
    {"precision": "bf16"},
    {"precision": "fp16", "momentum": 0.9, "lr": 0.01},
    {"network": "resnet18", "width": 0.0625, "share": 0.05},
    {"method": "entropy-sgd", "batch_size": 100, "momentum": 0.5, "epochs": 3},
    {"batch_size": 64, "method": "sbs", "momentum": 0.9},  # channels last
    {"batch_size": 269, "augment": False, "epochs": 3},  # a last batch of one sample, left out
]


@pytest.mark.parametrize("fields", VARIANTS, ids=str)
def test_a_stopped_run_ends_as_if_it_never_had_been(fields: dict, tmp_path: Path) -> None:
    trial = small_trial(**{"epochs": 2, **fields})
    whole = Witness()
    expected = lasting(run(trial, tmp_path / "whole", observers=[whole]).folder)
    middle = whole.batches[len(whole.batches) // 2]
    late = whole.batches[-1]

    crashed(trial, tmp_path / "parts", middle)
    with pytest.raises(Interrupted, match="stopped by signal 15"):
        run(trial, tmp_path / "parts", observers=[Witness(terminate, middle)])
    after = Witness(terminate, late)
    with pytest.raises(Interrupted):
        run(trial, tmp_path / "parts", observers=[after])
    assert after.begun.resumed
    assert (after.begun.epoch, after.begun.batch) == middle
    result = run(trial, tmp_path / "parts", observers=[Witness()])
    assert lasting(result.folder) == expected


def test_a_run_resumed_elsewhere_knows_where_it_was_begun(tmp_path: Path) -> None:
    trial = small_trial()
    threads = torch.get_num_threads()
    try:
        for count, place in ((3, (0, 4)), (3, (1, 2)), (2, (1, 4)), (3, (2, 2))):
            torch.set_num_threads(count)
            with pytest.raises(Interrupted):
                run(trial, tmp_path, device="cpu", observers=[Witness(terminate, place)])
        torch.set_num_threads(1)
        result = run(trial, tmp_path, device="cpu")
    finally:
        torch.set_num_threads(threads)
    assert result.environment["threads"] == 1
    assert [before["threads"] for before in result.earlier_environments] == [3, 2, 3]
    assert read_run(result.folder).result == result


@pytest.mark.slow
def test_a_compiled_run_resumes_too(tmp_path: Path) -> None:
    trial = small_trial(compile=True, epochs=2)
    expected = lasting(run(trial, tmp_path / "whole").folder)
    with pytest.raises(Interrupted):
        run(trial, tmp_path / "parts", observers=[Witness(terminate, (1, 2))])
    assert lasting(run(trial, tmp_path / "parts").folder) == expected


@pytest.mark.parametrize("method", ["sgd", "sbs"])
def test_it_is_the_loop_that_one_would_write(method: str, tmp_path: Path) -> None:
    trial = Trial(**SMALL, method=method, momentum=0.9, seed=4)
    run(trial, tmp_path)
    train = data.load("digits")
    chosen = data.subset(4, len(train), 0.2)
    batches = data.Batches(
        train.images[chosen],
        train.labels[chosen],
        32,
        seed=4,
        augmentation=data.Augmentation(1),
        drop_single=True,
    )
    seed_everything(4, "initial weights")
    network = build_network(trial)
    usual = {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4}
    if method == "sgd":
        optimizer = torch.optim.SGD(network.parameters(), **usual)
    else:
        optimizer = SBS(param_groups(network), **usual, seed=4)
    losses = []
    for epoch, lr in enumerate([0.1, 0.0505, 0.001]):
        for group in optimizer.param_groups:
            group["lr"] = lr
        if method == "sbs":
            optimizer.new_epoch()
        total = 0.0
        for images, labels in batches.epoch(epoch):
            images = images.clone(memory_format=torch.contiguous_format)
            loss = nn.functional.cross_entropy(network(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(labels)
        losses.append(total / len(chosen))
    read = read_run(tmp_path / trial.folder)
    for name, weight in read.weights().items():
        torch.testing.assert_close(weight, network.state_dict()[name].contiguous())
    torch.testing.assert_close([line["train_loss"] for line in read.metrics], losses)
    network.eval()
    test = data.load("digits", split="test")
    pixels = (test.images - batches.normalisation.mean[0]) / batches.normalisation.std[0]
    hits = (network(pixels.float()).argmax(1) == test.labels).sum().item()
    assert read.result.accuracy.final == 100 * hits / len(test)
    with torch.no_grad():
        torch.testing.assert_close(read.network()(pixels.float()), network(pixels.float()))


def test_an_epoch_of_entropy_sgd_has_the_batches_of_one_of_sgd(tmp_path: Path) -> None:
    """Nine batches: three outer steps of three. Batch norm is re-estimated before evaluations."""
    trial = Trial(**SMALL, method="entropy-sgd", settings={"L": 3}, momentum=0.6, seed=4)
    run(trial, tmp_path)
    train = data.load("digits")
    chosen = data.subset(4, len(train), 0.2)
    images, labels = train.images[chosen], train.labels[chosen]
    batches = data.Batches(images, labels, 32, seed=4, augmentation=data.Augmentation(1))
    seed_everything(4, "initial weights")
    network = build_network(trial)
    usual = {"momentum": 0.6, "weight_decay": 5e-4, "seed": 4}
    optimizer = EntropySGD(network.parameters(), L=3, **usual)

    def closure() -> torch.Tensor:
        images, labels = next(order)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(images.contiguous()), labels)
        loss.backward()
        return loss

    for epoch, lr in enumerate([1.0, 0.505, 0.01]):
        network.train()
        optimizer.param_groups[0]["lr"] = lr
        order = batches.epoch(epoch)
        for _ in range(3):
            optimizer.step(closure)
        assert next(order, None) is None
        update_bn((images for images, _ in batches.epoch(epoch)), network)
    weights = read_run(tmp_path / trial.folder).weights()
    assert "features.1.running_mean" in weights
    for name, weight in weights.items():
        expected = network.state_dict()[name].contiguous()
        torch.testing.assert_close(weight, expected, rtol=1e-4, atol=1e-5)


def test_what_a_run_leaves(tmp_path: Path) -> None:
    trial = small_trial(method="sbs", epochs=12, share=0.1)
    witness = Witness()
    result = run(trial, tmp_path, observers=[witness])
    assert result.folder == tmp_path / trial.folder
    files = {path.name for path in result.folder.iterdir()}
    assert files == {
        *("trial.json", "metrics.jsonl", "result.json", "weights.safetensors", "log.txt", "lock")
    }
    read = read_run(result.folder)
    assert read.trial == trial
    assert read.result == result
    assert [line["epoch"] for line in read.metrics] == list(range(12))
    assert read.metrics == witness.epochs
    curve = [line["test_accuracy"] for line in read.metrics]
    assert result.curve == curve
    assert result.accuracy.mean == curve[-1]
    assert result.accuracy.max == max(curve) == curve[result.accuracy.best_epoch]
    layers = read.metrics[0]["layers"]
    assert [row["kind"] for row in layers].count("conv") == 3
    assert all(0 < row["probability"] < 1 and row["batches"] >= 1 for row in layers)
    assert result.data.official
    assert result.environment["torch"] == torch.__version__
    assert witness.closed == 1
    assert witness.result is result


def test_sparse_evaluation_changes_what_is_known_of_a_training_and_not_the_training(
    tmp_path: Path,
) -> None:
    often, seldom = (
        run(small_trial(epochs=5, share=0.1, method="dropout", evaluate_every=every), tmp_path)
        for every in (1, 2)
    )
    assert seldom.curve == [None, often.curve[1], None, often.curve[3], often.curve[4]]
    weights = [read_run(result.folder).weights() for result in (often, seldom)]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    assert seldom.accuracy.mean == often.accuracy.mean == often.curve[4]
    lines = read_run(seldom.folder).metrics
    assert ["test_loss" in line for line in lines] == [False, True, False, True, True]
    assert [line["train_loss"] for line in lines] == [
        line["train_loss"] for line in read_run(often.folder).metrics
    ]


def test_a_finished_run_is_returned_and_not_run_again(tmp_path: Path) -> None:
    read, witness = copied(trained(), tmp_path), Witness()
    before = lasting(read.folder)
    assert run(read.trial, tmp_path, observers=[witness]) == read.result
    assert witness.begun is None
    assert witness.result == read.result
    assert witness.closed == 1
    assert lasting(read.folder) == before


def test_starting_over_takes_nothing_away_before_it_can_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = copied(trained(), tmp_path)
    before = lasting(read.folder)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ModuleNotFoundError, match=r"stochbatch\[tensorboard\]"):
        run(read.trial, tmp_path, again=True, observers=[TensorBoard()])
    with pytest.raises(RunError, match="no device"):
        run(read.trial, tmp_path, again=True, device="nonsense")
    assert lasting(read.folder) == before


def test_starting_over_repairs_a_result_that_cannot_be_read(tmp_path: Path) -> None:
    trial, witness = small_trial(epochs=1), Witness()
    folder = run(trial, tmp_path).folder
    (folder / "result.json").write_text("{")
    with pytest.raises(RunError, match="is not a result of this version.*start over"):
        run(trial, tmp_path)
    assert run(trial, tmp_path, again=True, observers=[witness]).status == "finished"
    assert witness.begun.resumed is False


def test_a_finished_run_on_other_data_is_not_taken_for_this_one(
    tmp_path: Path, monkeypatch
) -> None:
    trial = small_trial(epochs=1)
    load = data.load
    monkeypatch.setattr(data, "load", lambda *a, **k: replace(load(*a, **k), official=False))
    run(trial, tmp_path, accept_hash=True)
    with pytest.raises(RunError, match="trained on files that are not the published ones"):
        run(trial, tmp_path)
    assert run(trial, tmp_path, accept_hash=True).data.official is False
    monkeypatch.setattr(data, "load", lambda *a, **k: replace(load(*a, **k), sha256="0" * 64))
    with pytest.raises(RunError, match="trained on data that differ from those here now"):
        run(trial, tmp_path, accept_hash=True)


def test_other_data_than_the_run_was_begun_on_are_refused(tmp_path: Path, monkeypatch) -> None:
    trial = small_trial(epochs=2)
    crashed(trial, tmp_path, (1, 3))
    load = data.load
    with monkeypatch.context() as patch:
        patch.setattr(data, "load", lambda *a, **k: replace(load(*a, **k), sha256="0" * 64))
        with pytest.raises(RunError, match="was begun on data that differ from those here now"):
            run(trial, tmp_path)
    assert run(trial, tmp_path).status == "finished"


def test_a_watcher_that_cannot_write_any_more_does_not_end_a_training(tmp_path: Path) -> None:
    def broken_pipe() -> None:
        raise BrokenPipeError

    witness = Witness(broken_pipe, (0, 3))
    assert run(small_trial(), tmp_path, observers=[witness]).status == "finished"
    assert (0, 3) in witness.batches  # where it failed
    assert len(witness.epochs) == 3  # a full disk may have room again


def test_a_signal_during_the_evaluation_is_obeyed_and_nothing_is_lost(tmp_path: Path) -> None:
    trial = small_trial(method="entropy-sgd", epochs=2)
    expected = lasting(run(trial, tmp_path / "whole").folder)
    hook = register_module_forward_hook(lambda module, *_: None if module.training else terminate())
    with hook, pytest.raises(Interrupted):
        run(trial, tmp_path)
    witness = Witness()
    result = run(trial, tmp_path, observers=[witness])
    assert (witness.begun.epoch, witness.begun.batch) == (0, witness.begun.batches)
    assert lasting(result.folder) == expected


def test_a_run_in_another_thread_leaves_handlers_and_random_numbers_alone(tmp_path: Path) -> None:
    before, results = (signal.getsignal(signal.SIGTERM), torch.get_rng_state()), []

    def train() -> None:
        results.append(run(small_trial(epochs=1, share=0.1), tmp_path, again=True).status)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    train()
    assert results == ["finished"] * 2
    assert signal.getsignal(signal.SIGTERM) == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


def test_two_processes_on_one_trial(tmp_path: Path) -> None:
    trial = small_trial(epochs=1)
    folder = tmp_path / trial.folder
    folder.mkdir()
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with filelock.FileLock(folder / "lock"):
            held.set()
            release.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    with pytest.raises(RunError, match="another process is training in .*let it finish, or wait"):
        run(trial, tmp_path)
    assert [path.name for path in folder.iterdir()] == ["lock"]
    threading.Timer(0.3, release.set).start()
    began = time.monotonic()
    assert run(trial, tmp_path, wait=True).status == "finished"
    assert time.monotonic() - began > 0.25


@pytest.mark.parametrize(
    ("fields", "options", "message"),
    [
        ({}, {"device": "nonsense"}, "no device 'nonsense' here"),
        ({}, {"device": "cuda:99"}, "no device 'cuda:99' here"),
        ({"dataset": "cifar10"}, {"data_root": "nowhere"}, "of cifar10 is neither in nowhere"),
        (
            {"network": "resnet18", "width": 0.1, "compile": True},
            {"device": "cpu"},
            "resnet18 of width 0.1 cannot be compiled on a CPU",
        ),
    ],
    ids=str,
)
def test_a_start_that_fails_is_one_line_and_leaves_no_folder(
    fields: dict, options: dict, message: str, tmp_path: Path
) -> None:
    trial = small_trial(**fields)
    with pytest.raises((RunError, data.DataError), match=message):
        run(trial, tmp_path / "runs", **options)
    assert list(tmp_path.iterdir()) == []
    folder = tmp_path / "runs" / trial.folder
    folder.mkdir(parents=True)
    with pytest.raises((RunError, data.DataError)):
        run(trial, tmp_path / "runs", **options)
    assert folder.exists()  # it was there before


def test_tensorboard_files(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trial = small_trial(method="sbs", epochs=2)
    folder = tmp_path / trial.folder
    folder.mkdir()
    (folder / "events").write_text("")
    with pytest.raises(RunError, match=f"cannot write to {folder / 'events'}: "):
        run(trial, tmp_path, observers=[TensorBoard()])
    (folder / "events").unlink()
    result = run(trial, tmp_path, again=True, observers=[TensorBoard()])
    events = EventAccumulator(str(folder / "events"))
    events.Reload()
    found = [event.value for event in events.Scalars("test_accuracy")]
    torch.testing.assert_close(found, result.curve)
    assert any(tag.startswith("probability/") for tag in events.Tags()["scalars"])


def test_a_root_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(RunError, match="cannot make the folder"):
        run(small_trial(), tmp_path / "runs")
