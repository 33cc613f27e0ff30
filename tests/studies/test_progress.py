"""Invariant: what is told about a study is shown as it is, under names that tell trials apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stochbatch.studies import SCALES, STUDIES, collect
from stochbatch.studies.engine import run_study
from stochbatch.studies.progress import PlainWatcher, RichWatcher
from stochbatch.training import Trial
from tests.training.runs import small_trial

KINDS = pytest.mark.parametrize("kind", [PlainWatcher, RichWatcher])


@KINDS
def test_an_error_with_brackets_is_shown_as_it_is(
    kind: type[PlainWatcher], capsys: pytest.CaptureFixture[str]
) -> None:
    trial = small_trial()
    watcher = kind({trial.hash: "rate [bold]"})
    watcher.begin([trial])
    watcher.note("[/red] is no colour")
    watcher.progress(trial, [])
    watcher.end_of(trial, "failed", "KeyError: [/bold]")
    watcher.close()
    shown = capsys.readouterr().err
    assert "[/red] is no colour" in shown
    assert "rate [bold]  failed  KeyError: [/bold]" in shown


@KINDS
def test_there_is_an_estimate_from_the_first_epoch_on(
    kind: type[PlainWatcher], capsys: pytest.CaptureFixture[str]
) -> None:
    trials = [small_trial(seed=seed) for seed in range(2)]  # of three epochs each
    watcher = kind({trial.hash: f"seed {trial.seed}" for trial in trials})
    watcher.begin(trials)
    watcher.progress(trials[0], [])
    assert watcher.left() == ""
    watcher.progress(trials[0], [{"seconds": 10.0}])
    assert watcher.left() == "about 50 s left"
    watcher.progress(trials[1], [])  # so two run in parallel
    assert watcher.left() == "about 25 s left"
    watcher.end_of(trials[0], "finished", "50.00 %")
    assert watcher.left() == "about 30 s left"
    watcher.end_of(trials[1], "diverged", "")
    watcher.close()
    shown = capsys.readouterr().err
    assert "1/2  seed 0  finished  50.00 %  about 30 s left" in shown
    assert "2/2  seed 1  diverged\n" in shown


def test_the_first_estimate_of_a_resumed_study_counts_all_workers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class AtOnce:
        """An engine that says of all its trials that they have ended."""

        queues, room = False, 10

        def __init__(self) -> None:
            self.started: list[Trial] = []

        def start(self, trial: Trial) -> None:
            self.started.append(trial)

        def poll(self) -> list[tuple[Trial, str | None]]:
            return [(trial, None) for trial in self.started]

        def stop(self) -> None:
            pass

    line = {"epoch": 0, "lr": 0.1, "train_loss": 1.0, "train_accuracy": 50.0}
    line |= {"images_per_second": 1.0, "seconds": 10.0}
    trials = [small_trial(seed=seed) for seed in range(10)]
    for trial in trials:
        (tmp_path / trial.folder).mkdir()
        (tmp_path / trial.folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    watcher = PlainWatcher({trial.hash: f"seed {trial.seed}" for trial in trials})
    run_study(AtOnce(), trials, tmp_path, watcher)
    first = capsys.readouterr().err.splitlines()[0]
    assert first == "0/10  about 29 s left"  # the others have not been looked at


def test_a_bar_appears_when_a_trial_starts(capsys: pytest.CaptureFixture[str]) -> None:
    trial = small_trial()
    watcher = RichWatcher({trial.hash: "seed 0"})
    watcher.begin([trial])
    watcher.progress(trial, [])
    assert [task.description for task in watcher.bars.tasks] == ["trials", "seed 0"]
    watcher.close()


def test_labels_are_unique_and_short() -> None:
    results = collect(STUDIES["readings"], SCALES["demo"], "none", repetitions=2)
    trials = results.missing
    assert len({results.labels[trial.hash] for trial in trials}) == len(trials)
    results = collect(STUDIES["comparison"], SCALES["demo"], "none", repetitions=2)
    assert results.labels[results.missing[0].hash] == "batch size 16, method SGD, seed 0"
