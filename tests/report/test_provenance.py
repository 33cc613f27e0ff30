"""Invariant: a report says so where data, source or processes are not what one would expect."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from stochbatch.report import write_report
from stochbatch.report.layout import Layout
from stochbatch.report.writers import escaped, latex
from stochbatch.studies import SCALES, collect
from tests.report.finished_study import ONLY, SCALE, STUDY, finished_study
from tests.studies.test_statistics import results

Stored = list[dict[str, Any]]


def changed(tmp_path: Path, change: Callable[[Stored], object]) -> Layout:
    """Return the small study with other facts in its results, which are sorted by their hash."""
    root = shutil.copytree(finished_study().root, tmp_path / "runs")
    paths = sorted(root.glob("*/result.json"))
    stored = [json.loads(path.read_text()) for path in paths]
    change(stored)
    for path, result in zip(paths, stored, strict=True):
        path.write_text(json.dumps(result))
    return Layout.of(collect(STUDY, SCALE, root, only=ONLY))


def made_with(name: str, *values: Any) -> Callable[[Stored], None]:
    """Return a change that gives the first results these values of a fact, one each."""

    def change(stored: Stored) -> None:
        for result, value in zip(stored, values, strict=False):
            result["environment"][name] = value

    return change


def resumed(count: int) -> Callable[[Stored], None]:
    """Return a change after which so many trials began with another version of torch."""

    def change(stored: Stored) -> None:
        for result in stored[:count]:
            result["earlier_environments"] = [{**result["environment"], "torch": "1.0"}]

    return change


def with_plugins(stored: Stored) -> None:
    """Resumed with the same plugin, a trial is one trial all the same."""
    made_with("plugins", *([one] for one in ("mine.py 01", "mine.py 45", "mine.py 01", "its 1.0")))(
        stored
    )
    for result in stored:
        result["earlier_environments"] = [result["environment"]]


NEW, OLD = "2.14.0.dev20260101+cu128", "2.14.0.dev20260301+cu128"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda stored: stored[0]["data"].update(official=False),
            "1 of 6 trials were trained and tested on files that are not the published ones "
            "(digits).",
        ),
        (
            lambda stored: stored[0]["data"].update(train_sha256="0" * 64),
            "Not all trials on digits were trained and tested on the same images: a difference "
            "between them is not one of methods alone.",
        ),
        (made_with("revision", "0123456789" * 4), f"source revision {'0123456789' * 4}, "),
        (made_with("ranks", 8), "processes a trial 1, 8."),
        (made_with("torch", *[NEW, OLD] * 3), f"PyTorch {NEW}, {OLD}."),
        (resumed(1), f"PyTorch 1.0, {torch.__version__}."),
        (with_plugins, ": plugin mine.py 01, 45."),
        (
            made_with("instruction_set", "AVX2", "AVX512", *["AVX2"] * 4),
            "In 1 of 2 cells the trials ran on processors with different instruction sets "
            "(AVX2, AVX512): their last digits may differ.",
        ),
    ],
)
def test_what_is_not_as_expected_is_said(
    change: Callable[[Stored], object], says: str, tmp_path: Path
) -> None:
    assert any(says in one for one in changed(tmp_path, change).cautions)


def test_what_is_said_stands_above_the_tables(tmp_path: Path) -> None:
    layout = changed(tmp_path, made_with("ranks", 8))
    (says,) = (one for one in layout.cautions if "processes a trial" in one)
    page = write_report(layout.results, tmp_path / "report", figures=False).read_text()
    assert page.index(says) < page.index("<table")
    text = (tmp_path / "report/table.md").read_text(encoding="utf-8")
    assert text.index(says) < text.index("| --- |")
    assert escaped(says) in latex(layout)


@pytest.mark.parametrize(
    "change",
    [
        made_with("processor", "another"),
        lambda stored: [one["environment"].pop("instruction_set", None) for one in stored[:3]],
    ],
)
def test_another_machine_is_not_spoken_of(
    change: Callable[[Stored], object], tmp_path: Path
) -> None:
    assert len(changed(tmp_path, change).cautions) == 1  # that it is a part of the study


def test_a_run_whose_metrics_cannot_be_read_is_named_and_not_drawn(tmp_path: Path) -> None:
    root = shutil.copytree(finished_study().root, tmp_path / "runs")
    sgd, sbs = (cell.trial(0) for cell in STUDY.cells(SCALE, ONLY))
    for trial, line in ((sgd, '{"epoch": 0, "lr": "fast"}'), (sbs, '["epoch", 0]')):
        path = root / trial.folder / "metrics.jsonl"
        path.write_text(f"{line}\n" + path.read_text())
    layout = Layout.of(collect(STUDY, SCALE, root, only=ONLY))
    assert [cell.n for cell in layout.statistics.cells] == [3, 3]
    drawn = [cell.outcomes for cell in layout.along("method", {"batch size": "16"}).values()]
    assert [[outcome.seed for outcome in cell] for cell in drawn] == [[1, 2], [1, 2]]
    page = write_report(layout.results, tmp_path / "report", figures=False).read_text()
    table = (tmp_path / "report/table.md").read_text()
    for trial in (sgd, sbs):
        assert any(trial.folder in caution for caution in layout.cautions)
        assert page.index(trial.folder) < page.index("<table")
        assert table.index(trial.folder) < table.index("| --- |")


def test_a_part_says_that_it_is_one_and_the_whole_says_nothing() -> None:
    study = finished_study()
    assert Layout.of(collect(STUDY, SCALE, study.root)).cautions == []
    part = collect(STUDY, SCALE, study.root, only=ONLY, repetitions=2)
    assert part.narrowed == "2 of 4 cells, 2 of 3 trials per cell"
    assert Layout.of(part).cautions == [
        "This is a part of the study: 2 of 4 cells, 2 of 3 trials per cell."
    ]
    assert collect(STUDY, SCALE, study.root, repetitions=4).narrowed == ""
    assert collect(STUDY, SCALES["paper"], study.root).narrowed == ""


def test_diverged_trials_are_seen_in_every_table(tmp_path: Path) -> None:
    layout = Layout.of(results([10.0, 10.0, 40.0], diverged=True))
    text = latex(layout)
    assert "(3, 3 diverged) &" in text
    write_report(layout.results, tmp_path, figures=False)
    assert "(3, 3 diverged)" in (tmp_path / "table.md").read_text(encoding="utf-8")
    assert ">3, 3 diverged</td>" in (tmp_path / "index.html").read_text(encoding="utf-8")
