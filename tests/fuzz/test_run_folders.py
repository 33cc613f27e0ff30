"""Invariant: a file of a run is used as what it is, or refused by one line, and stays as it was."""

from __future__ import annotations

import hashlib
import json
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import safetensors.torch
import torch

from stochbatch.training import Observer, RunError, read_run, run
from stochbatch.training.checkpoint import from_bytes, to_bytes
from tests.fuzz.mutations import contents, fuzz, mutated_bytes, mutated_value, used_or_refused
from tests.training.runs import CrashError, small_trial

TRIAL = small_trial(method="sbs", epochs=2)


class Stopper(Observer):
    """Stops a run after its first epoch, as a process that crashes."""

    def on_epoch(self, metrics: Any) -> None:
        raise CrashError


@cache
def files(finished: bool) -> dict[str, bytes]:
    """Return the files of a run that has finished, or of one that stopped after an epoch."""
    with tempfile.TemporaryDirectory() as root:
        observers = [] if finished else [Stopper()]
        with suppress(CrashError):
            run(TRIAL, root, device="cpu", observers=observers)
        return contents(Path(root, TRIAL.folder))


def check(finished: bool, changes: dict[str, bytes]) -> None:
    """Look at a run with some of its files replaced."""
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root, TRIAL.folder)
        folder.mkdir()
        for name, content in {**files(finished), **changes}.items():
            (folder / name).write_bytes(content)
        before = contents(folder)
        read = used_or_refused(lambda: read_run(folder), RunError)
        if read is not None:
            assert read.trial == TRIAL  # by its hash, which is the folder's name
            for look in (
                lambda: read.metrics,
                lambda: read.result,
                lambda: read.normalisation,
                lambda: read.network(),
            ):
                used_or_refused(look, RunError)
        assert contents(folder) == before


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def value_of(name: str) -> Any:
    return json.loads(files(True)[name])


@fuzz(40, name=st.sampled_from(["trial.json", "result.json"]), drawn=st.data())
def test_bytes_of_json(name: str, drawn: st.DataObject) -> None:
    check(True, {name: drawn.draw(mutated_bytes(files(True)[name]))})


@fuzz(70, name=st.sampled_from(["trial.json", "result.json"]), drawn=st.data())
def test_values_of_json(name: str, drawn: st.DataObject) -> None:
    check(True, {name: as_json(drawn.draw(mutated_value(value_of(name))))})


@fuzz(20, content=st.deferred(lambda: mutated_bytes(files(True)["metrics.jsonl"])))
def test_bytes_of_metrics(content: bytes) -> None:
    for finished in (True, False):
        check(finished, {"metrics.jsonl": content})


def lines() -> list[Any]:
    return [json.loads(line) for line in files(True)["metrics.jsonl"].splitlines()]


@fuzz(30, value=st.deferred(lambda: mutated_value(lines())))
def test_values_of_metrics(value: Any) -> None:
    rows = value if isinstance(value, list) else [value]
    check(True, {"metrics.jsonl": b"".join(as_json(row) + b"\n" for row in rows)})


@fuzz(20, content=st.deferred(lambda: mutated_bytes(files(True)["weights.safetensors"], head=200)))
def test_bytes_of_weights(content: bytes) -> None:
    """With the hash of the mutated file in the result, which would be refused at once otherwise."""
    result = {**value_of("result.json"), "weights_sha256": hashlib.sha256(content).hexdigest()}
    check(True, {"weights.safetensors": content, "result.json": as_json(result)})


@fuzz(20, value=st.deferred(lambda: mutated_state(weights())))
def test_values_of_weights(value: Any) -> None:
    tensors = {str(key): part for key, part in value.items() if isinstance(part, torch.Tensor)}
    test = safetensors.torch.save(tensors)
    result = {**value_of("result.json"), "weights_sha256": hashlib.sha256(test).hexdigest()}
    check(True, {"weights.safetensors": test, "result.json": as_json(result)})


def weights() -> dict[str, Any]:
    return safetensors.torch.load(files(True)["weights.safetensors"])


def checkpoint() -> tuple[str, bytes]:
    """Return the name and the content of the newest checkpoint of the run that stopped."""
    name = max(name for name in files(False) if name.startswith("checkpoint-"))
    return name, files(False)[name]


TENSORS = st.sampled_from(
    [torch.zeros(0), torch.ones(3), torch.tensor(float("nan")), torch.ones(2, 2).to(torch.int64)]
)


@st.composite
def mutated_state(draw: st.DrawFn, state: dict[str, Any]) -> dict[str, Any]:
    """A state dict in which values, or tensors, are others."""
    if draw(st.booleans()):
        return draw(mutated_value(state).filter(lambda value: isinstance(value, dict)))
    state = dict(state)
    key = draw(st.sampled_from([key for key in state if isinstance(state[key], dict)] or [None]))
    if key is not None:
        state[key] = draw(mutated_state(state[key])) if state[key] else draw(TENSORS)
    elif state:
        state[draw(st.sampled_from(sorted(state, key=str)))] = draw(TENSORS)
    return state


@st.composite
def mutated_checkpoint(draw: st.DrawFn) -> bytes:
    """The newest checkpoint, with another content."""
    return to_bytes(draw(mutated_state(from_bytes(checkpoint()[1]))))


def renamed(content: bytes) -> dict[str, bytes]:
    """Return a checkpoint with the hash of its content in its name, in place of the others."""
    others = dict.fromkeys((name for name in files(False) if "checkpoint" in name), b"")
    name = checkpoint()[0].rsplit("-", 1)[0] + f"-{hashlib.sha256(content).hexdigest()[:16]}.pt"
    return {**others, name: content}


@fuzz(20, content=st.deferred(lambda: mutated_bytes(checkpoint()[1], head=2000)))
def test_bytes_of_checkpoints(content: bytes) -> None:
    check(False, {checkpoint()[0]: content})
    check(False, renamed(content))


@fuzz(40, state=mutated_checkpoint())
def test_values_of_checkpoints(state: bytes) -> None:
    check(False, renamed(state))


@fuzz(8, state=mutated_checkpoint())
def test_checkpoints_that_are_resumed(state: bytes) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root, TRIAL.folder)
        folder.mkdir()
        for name, content in {**files(False), **renamed(state)}.items():
            (folder / name).write_bytes(content)
        before = contents(folder)
        result = used_or_refused(lambda: run(TRIAL, root, device="cpu"), RunError)
        if result is None:
            after = contents(folder)
            good = {name for name in before if before[name] and name not in ("log.txt", "lock")}
            assert {name: after.get(name) for name in good} == {name: before[name] for name in good}
        else:
            assert read_run(folder).result == result


def test_the_examples_are_good() -> None:
    for finished in (True, False):
        with tempfile.TemporaryDirectory() as root:
            folder = Path(root, TRIAL.folder)
            folder.mkdir()
            for name, content in files(finished).items():
                (folder / name).write_bytes(content)
            read = read_run(folder)
            assert len(read.metrics) == 1 + finished
            assert (read.result is not None) == finished
            assert read.network() is not None
