"""Invariant: several processes train what one would, end together, and lose nothing.

The processes have a group of their own, as a caller of ``run`` may; those that torchrun starts
are in ``test_distributed_torchrun.py``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from stochbatch import data
from stochbatch.nets import NETWORKS
from stochbatch.training import read_run
from tests import processes
from tests.processes import Processes
from tests.training import several
from tests.training.runs import lasting

pytestmark = pytest.mark.distributed

VGG = {"width": 0.25, "sync_bn": True}

EQUAL: list[dict[str, Any]] = [
    {"network": "plain", "momentum": 0.9},
    {"network": "plain", "method": "sbs", "momentum": 0.5},
    {"network": "plain", "method": "entropy-sgd"},
    {**VGG, "method": "sbs"},
    {**VGG, "method": "entropy-sgd", "momentum": 0.5},
    {**VGG, "network": "resnet18", "width": 0.0625, "epochs": 1, "method": "adaptive-dropout"},
]
"""Trials without batch norm, or with a synchronised one, and without element-wise dropout."""


@pytest.fixture(autouse=True)
def _networks_of_this_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is added to the registry here is gone afterwards."""
    for name in ("_things", "_summaries"):
        monkeypatch.setattr(NETWORKS, name, dict(getattr(NETWORKS, name)))


def metrics(folder: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]


def weights(folder: str | Path) -> dict[str, torch.Tensor]:
    return read_run(folder).weights()


def assert_near(folder: str, expected: str, tolerance: float = 1e-4) -> None:
    for name, weight in weights(expected).items():
        torch.testing.assert_close(
            weights(folder)[name], weight, rtol=tolerance, atol=tolerance, msg=name
        )
    for one, other in zip(metrics(folder), metrics(expected), strict=True):
        for name in ("train_loss", "test_loss"):
            assert one[name] == pytest.approx(other[name], rel=tolerance)
        for name in ("train_accuracy", "test_accuracy"):  # an image may lie on the border
            assert one[name] == pytest.approx(other[name], abs=0.5)


def assert_as_one(group: Processes, fields: dict[str, Any], root: Path) -> None:
    fields = {"lr": 0.01, **fields}
    (expected, *_) = group.run(several.alone, fields, str(root / "one"))
    seen = group.run(several.together, fields, str(root / "many"))
    assert_near(seen[0]["folder"], expected["folder"])
    assert len(seen[0]["hashes"]) == several.trial_of(fields).epochs
    for one in seen:
        assert one["hashes"] == seen[0]["hashes"]  # weights and optimizer, to the last bit
        assert one["result"] == seen[0]["result"]
    assert [one["watched"] > 0 for one in seen] == [True] + [False] * (group.count - 1)
    assert json.loads(seen[0]["result"])["environment"]["ranks"] == group.count
    assert json.loads(expected["result"])["environment"]["ranks"] == 1


@pytest.mark.parametrize("fields", EQUAL, ids=str)
def test_two_processes_train_what_one_would(
    fields: dict[str, Any], two: Processes, tmp_path: Path
) -> None:
    assert_as_one(two, fields, tmp_path)


# The last batch of three images is not divided.
UNDIVIDED = {**VGG, "share": 63 / 1352, "momentum": 0.9}


@pytest.mark.parametrize("fields", [EQUAL[1], EQUAL[3], UNDIVIDED], ids=str)
def test_four_processes_train_what_one_would(
    fields: dict[str, Any], four: Processes, tmp_path: Path
) -> None:
    assert_as_one(four, fields, tmp_path)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_low_precision_moves_all_processes_alike(
    precision: str, two: Processes, tmp_path: Path
) -> None:
    fields = {"precision": precision, "momentum": 0.9, **VGG}
    (expected, *_) = two.run(several.alone, fields, str(tmp_path / "one"))
    seen = two.run(several.together, fields, str(tmp_path / "many"))
    assert seen[0]["hashes"] == seen[1]["hashes"]
    assert metrics(seen[0]["folder"])[0]["train_loss"] == pytest.approx(
        metrics(expected["folder"])[0]["train_loss"], rel=0.02
    )


def test_unsynchronised_each_process_normalises_its_part(two: Processes, tmp_path: Path) -> None:
    fields = {"width": 0.25}
    (expected, *_) = two.run(several.alone, fields, str(tmp_path / "one"))
    seen = two.run(several.together, fields, str(tmp_path / "many"))
    assert seen[0]["hashes"] == seen[1]["hashes"]
    found, other = (weights(folder) for folder in (seen[0]["folder"], expected["folder"]))
    assert not torch.allclose(found["features.4.weight"], other["features.4.weight"], rtol=1e-3)


def test_accuracies_count_every_image_once(four: Processes, tmp_path: Path) -> None:
    # 445 images in three batches of 148, and one that three processes have nothing of.
    (seen, *_) = four.run(several.evaluated_in_small_batches, {"width": 0.25}, str(tmp_path), 37)
    last = metrics(seen["folder"])[-1]
    read = read_run(seen["folder"])
    mean, std = (part[0] for part in read.normalisation)
    test = data.load("digits", split="test")
    with torch.no_grad():
        logits = read.network()((test.images.float() - mean) / std)
    hits = int((logits.argmax(1) == test.labels).sum())
    assert last["test_accuracy"] == 100 * hits / len(test)
    loss = torch.nn.functional.cross_entropy(logits, test.labels)
    assert last["test_loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert (last["train_accuracy"] * 203 / 100) == pytest.approx(
        round(last["train_accuracy"] * 203 / 100)
    )


SPLIT = {"network": "plain", "share": 63 / 1352, "epochs": 2}
"""Batches of 30, 30 and 3: too few for two images a process, so not divided."""


@pytest.mark.parametrize("count", [2, 4])
def test_the_parts_of_a_batch_are_the_batch(
    count: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    group = request.getfixturevalue({2: "two", 4: "four"}[count])
    seen = group.run(several.batches_seen, SPLIT, str(tmp_path))
    trial = several.trial_of(SPLIT)
    train = data.load("digits")
    chosen = data.subset(0, len(train), trial.share)
    batches = data.Batches(
        train.images[chosen], train.labels[chosen], 30, augmentation=data.Augmentation(1)
    )
    for number, parts in enumerate(zip(*seen, strict=True)):
        epoch, batch = divmod(number, 3)
        assert {part[:2] for part in parts} == {(epoch, batch)}
        images, labels = batches.batch(epoch, batch)
        pixels = images.double().sum((1, 2, 3)).tolist()
        whole = list(zip(labels.tolist(), pixels, strict=True))
        if batch == 2:
            assert all(part[2] == whole for part in parts)
            facts = [part[3] for part in parts]
            assert facts == [(1.0, False, rank == 0) for rank in range(count)]
        else:
            assert [image for part in parts for image in part[2]] == whole
            for _, _, mine, (weight, divided, counted) in parts:
                assert weight == len(mine) * count / len(whole)
                assert divided
                assert counted


def test_dropout_draws_other_numbers_for_other_parts(two: Processes, tmp_path: Path) -> None:
    fields = {**SPLIT, "network": "vgg_tiny", "width": 0.25, "method": "dropout"}
    first, second = two.run(several.noise, fields, str(tmp_path))
    divided = [True, True, False] * 2
    assert [one != other for one, other in zip(first, second, strict=True)] == divided


def test_a_residual_branch_has_one_coin_in_all_processes(two: Processes, tmp_path: Path) -> None:
    fields = {**SPLIT, "network": "resnet18", "width": 0.0625, "method": "adaptive-dropout"}
    first, second = two.run(several.noise, fields, str(tmp_path))
    assert first == second


STOPPED: list[dict[str, Any]] = [
    {"width": 0.25, "method": "sbs", "momentum": 0.9},
    {"width": 0.25, "method": "entropy-sgd", "batch_size": 20},
]


@pytest.mark.parametrize("fields", STOPPED, ids=str)
@pytest.mark.parametrize("count", [2, 4])
def test_stopped_and_resumed_by_as_many_it_ends_with_the_same_bytes(
    count: int, fields: dict[str, Any], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    group = request.getfixturevalue({2: "two", 4: "four"}[count])
    (whole, *_) = group.run(several.together, fields, str(tmp_path / "whole"))
    parts = str(tmp_path / "parts")
    # The signal comes to one process, and not the first; all stop, and the first says so.
    ends = group.run(several.stopped, fields, parts, (1, 1), count - 1)
    assert ends == [{"signal": 15, "told": rank > 0} for rank in range(count)]
    (resumed, *_) = group.run(several.together, fields, parts)
    assert resumed["begun"]["epoch"] == 1
    assert resumed["begun"]["batch"] > 0
    assert lasting(Path(resumed["folder"])) == lasting(Path(whole["folder"]))


@pytest.mark.parametrize("fields", [EQUAL[0], EQUAL[3]], ids=str)
def test_two_then_one_then_four_processes(
    fields: dict[str, Any], two: Processes, four: Processes, tmp_path: Path
) -> None:
    fields = {"lr": 0.01, **fields}
    (expected, *_) = two.run(several.alone, fields, str(tmp_path / "whole"))
    parts = str(tmp_path / "parts")
    assert two.run(several.stopped, fields, parts, (0, 2), 0)[0] is not None
    assert two.run(several.stopped, fields, parts, (1, 2), 0, True)[0] is not None
    (last, *_) = four.run(several.together, fields, parts)
    assert last["begun"]["epoch"] == 1
    assert last["begun"]["batch"] > 0
    assert_near(last["folder"], expected["folder"])


def test_within_an_epoch_it_is_saved_by_time(two: Processes, tmp_path: Path) -> None:
    fields = {"width": 0.25, "epochs": 2}
    (names, seen), _ = two.run(several.saved_after, fields, str(tmp_path / "often"), 0.0)
    assert names == ["checkpoint-00001-0000003-", "checkpoint-00001-0000005-"]
    (whole, *_) = two.run(several.together, fields, str(tmp_path / "whole"))
    assert lasting(Path(seen["folder"])) == lasting(Path(whole["folder"]))


def test_all_processes_see_that_it_diverged(two: Processes, tmp_path: Path) -> None:
    seen = two.run(several.together, {"lr": 1e30, "width": 0.25}, str(tmp_path))
    assert [json.loads(one["result"])["status"] for one in seen] == ["diverged"] * 2


def test_a_finished_run_is_returned_to_all_and_not_trained_again(
    two: Processes, tmp_path: Path
) -> None:
    first = two.run(several.together, {"epochs": 1, "width": 0.25}, str(tmp_path))
    again = two.run(several.together, {"epochs": 1, "width": 0.25}, str(tmp_path))
    assert [one["result"] for one in again] == [one["result"] for one in first]
    assert [one["hashes"] for one in again] == [[], []]


@pytest.mark.parametrize(
    ("what", "fields", "options", "text"),
    [
        ("locked", {}, {}, "another process is at work on"),
        ("different", {}, {}, "the processes of this training were given different trials"),
        ("missing", {"dataset": "cifar10", "share": 0.01}, {}, "is neither in"),
        ("small", {"batch_size": 3}, {}, "batches of 3 images are too small for 2 processes"),
        ("full", {}, {}, "no room for a network"),
        ("device", {}, {"device": "nonsense"}, "no device 'nonsense' here"),
    ],
)
def test_what_goes_wrong_in_one_process_ends_all_with_the_same_words(
    what: str,
    fields: dict[str, Any],
    options: dict[str, Any],
    text: str,
    two: Processes,
    tmp_path: Path,
) -> None:
    ends = two.run(several.error_of, fields, str(tmp_path), what, options)
    assert ends[0][1] == ends[1][1]
    assert text in ends[0][1]
    assert all(told is not None for _, _, told in ends)
    assert two.run(several.together, {"epochs": 1}, str(tmp_path / "next"))  # nobody hangs


def test_several_processes_wait_for_a_folder(two: Processes, tmp_path: Path) -> None:
    seen = two.run(several.waiting, {"epochs": 1, "width": 0.25}, str(tmp_path), 2.5)
    assert all(seconds > 2.4 and status == "finished" for seconds, status in seen)


def test_while_they_wait_for_a_folder_they_can_be_stopped(two: Processes, tmp_path: Path) -> None:
    ends = two.run(several.stopped_while_waiting, {"epochs": 1}, str(tmp_path))
    assert ends == [(15, False), (15, True)]


@pytest.mark.slow
@pytest.mark.timeout(590)
@pytest.mark.parametrize("sync_bn", [False, True])
def test_a_compiled_network_is_trained_by_two_processes(
    sync_bn: bool, two: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "TIMEOUT", 280.0)
    fields = {"epochs": 1, "width": 0.25, "lr": 0.01, "sync_bn": sync_bn}
    expected, _ = two.run(several.together, fields, str(tmp_path))
    seen = two.run(several.together, {**fields, "compile": True}, str(tmp_path))
    assert seen[0]["hashes"] == seen[1]["hashes"]
    assert_near(seen[0]["folder"], expected["folder"], 1e-3)
