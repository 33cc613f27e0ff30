"""Invariant: files of a run are used only in the folder of their trial, and only if they are whole.

Everything else is refused by one line that says what is wrong, and nothing is changed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import nn

from stochbatch.nets import NETWORKS
from stochbatch.training import (
    Interrupted,
    RunError,
    Trial,
    checkpoint,
    read_run,
    run,
    run_folder,
)
from stochbatch.training.run_folder import read_metrics
from tests.trained import copied, trained
from tests.training.runs import Witness, crashed, small_trial

STOPPED = small_trial(method="sbs", epochs=2, share=0.1)
OTHER = STOPPED.model_copy(update={"seed": 1})


@pytest.fixture(scope="module")
def _stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return crashed(STOPPED, tmp_path_factory.mktemp("stopped"), (1, 1))


@pytest.fixture
def stopped(_stopped: Path, tmp_path: Path) -> Path:
    """A run with one checkpoint, after its first epoch."""
    return shutil.copytree(_stopped, tmp_path / STOPPED.folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock"}


def refused(trial: Trial, root: Path) -> str:
    """Return the one line by which a run is refused; nothing is changed."""
    before = contents(root / trial.folder)
    with pytest.raises(RunError) as error:
        run(trial, root)
    assert contents(root / trial.folder) == before
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_checkpoint_of_another_trial_is_refused(stopped: Path, tmp_path: Path) -> None:
    folder = tmp_path / OTHER.folder
    folder.mkdir()
    (saved,) = stopped.glob("checkpoint-*")
    shutil.copy(saved, folder)
    (folder / "trial.json").write_text(OTHER.model_dump_json())
    line = refused(OTHER, tmp_path)
    assert f"{saved.name} is a checkpoint of the trial {STOPPED.folder}, not of" in line
    assert OTHER.folder in line


def test_the_folder_of_another_trial_is_refused(stopped: Path, tmp_path: Path) -> None:
    shutil.copytree(stopped, tmp_path / OTHER.folder)
    line = refused(OTHER, tmp_path)
    assert f"is of the trial {STOPPED.folder}, but lies in the folder {OTHER.folder}" in line
    assert run(OTHER, tmp_path, again=True).trial_hash == OTHER.hash  # which replaces all of it


def test_a_copied_run_is_not_a_second_one(tmp_path: Path) -> None:
    read = trained()
    copy = shutil.copytree(read.folder, tmp_path / "copy")
    with pytest.raises(RunError, match=f"copy: rename the folder to {read.trial.folder}"):
        read_run(copy)
    other = read.trial.model_copy(update={"seed": 1})
    shutil.copytree(read.folder, tmp_path / other.folder)
    assert f"result.json is of the trial {read.trial.folder}, but" in refused(other, tmp_path)


def test_a_run_is_found_by_any_way_to_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = copied(trained(), tmp_path)
    (tmp_path / "best").symlink_to(read.folder)
    assert read_run(tmp_path / "best").metrics == read.metrics
    monkeypatch.chdir(read.folder)
    assert read_run(".").metrics == read.metrics


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"trial_hash": "0" * 64}, "is of the trial 0000000000000000, but lies in the folder"),
        ({"trial": {**trained().trial.model_dump(), "seed": 1}}, "its trial is .* its hash is of"),
        ({"trial": {}}, "has every field"),
        ({"accuracy": {"mean": 99, "max": 99, "final": 99, "best_epoch": 0}}, "not that of its"),
        ({"accuracy": None}, "its accuracy is not that of its curve"),
        ({"epochs": 3}, "finished after 3 of 10 epochs"),
        ({"status": "diverged", "epochs": 0, "curve": []}, "diverged after 0 of 10 epochs"),
        ({"status": "lost"}, "status: "),
        ({"more": 1}, "more: "),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_result_that_contradicts_itself_is_refused(
    change: dict[str, Any], why: str, tmp_path: Path
) -> None:
    read = copied(trained(), tmp_path)
    path = read.folder / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(RunError, match=why):
        read_run(read.folder).result  # noqa: B018
    refused(read.trial, tmp_path)


def tampered(folder: Path, change: Callable[[dict[str, Any]], Any], name: str = "") -> Path:
    """Replace the checkpoint by one with other content, and the hash of that in its name."""
    (path,) = folder.glob("checkpoint-*")
    state = checkpoint.from_bytes(path.read_bytes())
    changed = change(state)
    content = changed if isinstance(changed, bytes) else checkpoint.to_bytes(state)
    digest = hashlib.sha256(content).hexdigest()[:16]
    path.unlink()
    new = folder / f"checkpoint-{name or path.name[11:24]}-{digest}.pt"
    new.write_bytes(content)
    return new


@pytest.mark.parametrize(
    ("change", "name", "why"),
    [
        (lambda state: b"", "", "EOFError"),
        (lambda state: checkpoint.to_bytes([1]), "", "its format is None"),
        (lambda state: b"PK\3\4 not torch's", "", "checkpoint of this version"),
        (lambda state: state.update(format=1), "", "its format is 1, expected 2"),
        (lambda state: state.pop("network"), "", "network: field required"),
        (lambda state: state.pop("seconds"), "", "seconds: field required"),
        (lambda state: state.update(code="1"), "", "code: extra inputs"),
        (lambda state: state.update(epoch=99), "", "it is of epoch 99 after 0 steps"),
        (lambda state: state.update(epoch=99), "00099-0000000", "99 epochs, 1 lines"),
        (lambda state: state.update(step=-5), "", "step: .*greater than or equal to 0"),
        (lambda state: state.update(step=99), "00001-0000099", "step 99, but an epoch has"),
        (lambda state: state.update(data="{}"), "", "data.train_sha256: field required"),
        (lambda state: state.update(metrics=["{}"]), "", "metrics: line 1 is not valid"),
        (lambda state: state["tally"].pop(), "", "tally: "),
        (lambda state: state["network"].popitem(), "", "Missing key"),
        (lambda state: state["optimizer"].clear(), "", "param_groups"),
        (lambda state: state["optimizer"]["param_groups"][0].update(seed=1), "", "another seed"),
    ],
)
def test_a_checkpoint_of_odd_content_is_refused(
    change: Callable[[dict[str, Any]], Any], name: str, why: str, stopped: Path
) -> None:
    path = tampered(stopped, change, name)
    with pytest.raises(RunError, match=why):
        run(STOPPED, stopped.parent)
    line = refused(STOPPED, stopped.parent)
    assert line.startswith(f"{path} is not a checkpoint of this version")


def changed_line(path: Path, **changes: Any) -> str:
    line = {**json.loads(path.read_text().splitlines()[0]), **changes}
    return json.dumps({key: value for key, value in line.items() if value is not None}) + "\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (lambda path: "]\n", "line 1 is not valid"),
        (lambda path: "[" * 100_000 + "\n", "line 1 is not valid"),
        (lambda path: "\xff\n", "line 1 is not valid"),
        (lambda path: "\n" + path.read_text(), "line 1 is not valid"),
        (lambda path: path.read_text() + path.read_text()[:-9], "line 2 is not valid"),
        (lambda path: path.read_text() * 2, r"line 2 is not valid \(it is of epoch 0\)"),
        (partial(changed_line, train_loss="low"), "line 1 is not valid .train_loss"),
        (partial(changed_line, lr="0.1"), "line 1 is not valid .lr"),
        (partial(changed_line, seconds=True), "line 1 is not valid .seconds"),
        (partial(changed_line, trial=OTHER.folder), f"is of the trial {OTHER.folder}, not of"),
        (
            lambda path: path.read_text() + changed_line(path, epoch=1, data="0" * 16),
            "different data",
        ),
    ],
)
def test_odd_metrics_are_an_error_that_names_the_run(
    text: Callable[[Path], str], why: str, stopped: Path
) -> None:
    path = stopped / "metrics.jsonl"
    path.write_text(text(path), encoding="latin-1")
    with pytest.raises(RunError, match=why) as error:
        read_metrics(stopped)
    assert str(error.value).startswith(str(path))


def test_metrics_of_another_run_than_the_result_are_refused(tmp_path: Path) -> None:
    read = copied(trained(), tmp_path)
    path = read.folder / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        del line["trial"], line["data"]  # as earlier versions wrote them
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_run(read.folder).metrics == lines
    lines[3]["test_accuracy"] = 1.0
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(RunError, match=r"metrics.jsonl is of another run than result.json"):
        read_run(read.folder).metrics  # noqa: B018


def test_a_run_that_finishes_while_it_is_read_is_no_contradiction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = copied(trained(), tmp_path)
    result, metrics = read.folder / "result.json", read.folder / "metrics.jsonl"
    outcome, whole = result.read_text(), metrics.read_text()
    result.unlink()
    metrics.write_text("".join(whole.splitlines(keepends=True)[:-1]))

    def finishes_after(folder: Path) -> list[dict[str, Any]]:
        lines = read_metrics(folder)
        metrics.write_text(whole)
        result.write_text(outcome)
        return lines

    monkeypatch.setattr(run_folder, "read_metrics", finishes_after)
    assert len(read_run(read.folder).metrics) == read.trial.epochs - 1


def test_every_file_says_whose_it_is(stopped: Path) -> None:
    saved = next(stopped.glob("checkpoint-*"))
    assert checkpoint.from_bytes(saved.read_bytes())["trial"] == STOPPED.hash
    result = run(STOPPED, stopped.parent)
    key = result.data.key
    for line in read_metrics(stopped):
        assert (line["trial"], line["data"]) == (STOPPED.folder, key)
    with safe_open(stopped / "weights.safetensors", "pt") as file:
        whose = json.loads(file.metadata()["stochbatch"])
    assert whose == {"trial": STOPPED.hash, "data": key}
    started, _, resumed, ended = (stopped / "log.txt").read_text().splitlines()
    assert f"INFO trial {STOPPED.hash} started on" in started
    assert f"INFO trial {STOPPED.hash} resumed after 1 epochs and 0 batches" in resumed
    assert f"data {key}" in resumed
    assert "INFO finished after 2 epochs: " in ended


def test_the_log_has_warnings_which_are_shown_too_and_is_closed_afterwards(tmp_path: Path) -> None:
    class Warns(Witness):
        def on_epoch(self, metrics: dict[str, Any]) -> None:
            warnings.warn("SBS takes slow,\neager steps", stacklevel=1)
            logging.getLogger("stochbatch").warning("slow layers")

    handlers = list(logging.getLogger("stochbatch").handlers)
    for seed in (0, 1):  # Python shows a warning once, but each run logs it
        trial = small_trial(epochs=1, share=0.1, seed=seed)
        with pytest.warns(UserWarning, match="eager"):
            run(trial, tmp_path, observers=[Warns()])
        log = (tmp_path / trial.folder / "log.txt").read_text()
        assert "WARNING UserWarning: SBS takes slow, eager steps\n" in log
        assert "WARNING slow layers\n" in log
    assert logging.getLogger("stochbatch").handlers == handlers


def test_the_log_says_that_it_was_stopped(tmp_path: Path) -> None:
    def interrupt() -> None:
        raise Interrupted(15, tmp_path)

    trial = small_trial(epochs=1, share=0.1)
    with pytest.raises(Interrupted):
        run(trial, tmp_path, observers=[Witness(interrupt, (0, 2))])
    log = (tmp_path / trial.folder / "log.txt").read_text()
    assert log.endswith("INFO stopped by signal 15\n")


def test_a_finished_run_needs_no_lock(tmp_path: Path) -> None:
    """As on read-only media, where there can be none."""
    read = copied(trained(), tmp_path)
    (read.folder / "lock").unlink()
    (read.folder / "lock").mkdir()
    assert run(read.trial, tmp_path) == read.result
    with pytest.raises(RunError, match="cannot write to "):
        run(read.trial, tmp_path, again=True)
    assert read_run(read.folder).result == read.result


def huge(classes: int, channels: int, width: float) -> nn.Module:
    """Return a network that no memory holds."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(channels * 64, classes))
    network.register_buffer("ballast", torch.empty(1 << 50))
    return network


def test_out_of_memory_is_called_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NETWORKS, "_entries", dict(NETWORKS._entries))
    NETWORKS.add("huge", "Too large.", huge)
    with pytest.raises(RunError, match=r"out of memory on cpu .*: use a smaller --batch-size"):
        run(Trial(network="huge", epochs=1), tmp_path, device="cpu")
    assert list(tmp_path.iterdir()) == []
