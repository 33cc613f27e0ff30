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


def changed(tmp_path: Path, change: Callable[[dict[str, Any]], None], count: int = 1) -> Layout:
    """Return the small study with other facts in some of its results."""
    root = shutil.copytree(finished_study().root, tmp_path / "runs")
    for path in sorted(root.glob("*/result.json"))[:count]:
        result = json.loads(path.read_text())
        change(result)
        path.write_text(json.dumps(result))
    return Layout.of(collect(STUDY, SCALE, root, only=ONLY))


def test_what_is_as_expected_is_not_spoken_of() -> None:
    study = finished_study()
    assert Layout.of(collect(STUDY, SCALE, study.root)).cautions == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda result: result["data"].update(official=False),
            "1 of 6 trials were trained and tested on files that are not the published ones "
            "(digits).",
        ),
        (
            lambda result: result["data"].update(train_sha256="0" * 64),
            "Not all trials on digits were trained and tested on the same images: a difference "
            "between them is not one of methods alone.",
        ),
        (
            lambda result: result["environment"].update(revision="0123456789" * 4),
            "012345678901 (1)",
        ),
        (
            lambda result: result["environment"].update(revision=f"{'01' * 20}-dirty"),
            "010101010101-dirty (1)",
        ),
        (lambda result: result["environment"].update(ranks=8), "processes a trial 1 (5), 8 (1)."),
        (
            lambda result: result.update(
                earlier_environments=[{**result["environment"], "torch": "1.0"}]
            ),
            f"PyTorch 1.0 then {torch.__version__} (1), {torch.__version__} (5).",
        ),
    ],
)
def test_what_is_not_is_said_above_the_tables(
    change: Callable[[dict[str, Any]], None], says: str, tmp_path: Path
) -> None:
    layout = changed(tmp_path, change)
    page = write_report(layout.results, tmp_path / "report", figures=False).read_text()
    assert page.index(says) < page.index("<table")
    text = (tmp_path / "report/table.md").read_text(encoding="utf-8")
    assert text.index(says) < text.index("| --- |")
    assert escaped(says) in latex(layout)


def test_trials_that_were_all_resumed_with_another_version_are_spoken_of(tmp_path: Path) -> None:
    layout = changed(
        tmp_path,
        lambda result: result.update(
            earlier_environments=[{**result["environment"], "torch": "1.0"}]
        ),
        count=6,
    )
    assert f"PyTorch 1.0 then {torch.__version__} (6)." in layout.cautions[-1]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2.14.0.dev20260101+cu128", "2.14.0.dev20260301+cu128"),
        ("2.13.0+rocm6.3", "2.13.0+rocm6.4"),
    ],
)
def test_builds_that_begin_alike_are_told_apart(one: str, other: str, tmp_path: Path) -> None:
    builds = iter([one, other] * 3)
    layout = changed(
        tmp_path, lambda result: result["environment"].update(torch=next(builds)), count=6
    )
    assert f"PyTorch {one} (3), {other} (3)." in layout.cautions[-1]


def test_versions_of_a_plugin_are_spoken_of_where_there_are_several(tmp_path: Path) -> None:
    labels = iter(["mine.py 0123", "mine.py 4567", "mine.py 0123", "other 1.0"])

    def plugged(result: dict[str, Any]) -> None:
        result["environment"]["plugins"] = [next(labels)]
        result["earlier_environments"] = [result["environment"]]  # which is one trial all the same

    layout = changed(tmp_path, plugged, count=4)
    assert layout.cautions[-1].endswith(": plugin mine.py 0123 (2), 4567 (1).")


def test_another_machine_is_not_spoken_of(tmp_path: Path) -> None:
    layout = changed(tmp_path, lambda result: result["environment"].update(processor="another"))
    assert len(layout.cautions) == 1  # that it is a part of the study


def test_instruction_sets_that_differ_within_a_cell_are_spoken_of(tmp_path: Path) -> None:
    both = iter(["AVX2", "AVX512", "AVX2", "AVX2", "AVX2", "AVX2"])
    layout = changed(
        tmp_path,
        lambda result: result["environment"].update(instruction_set=next(both)),
        count=6,
    )
    assert layout.cautions[-1] == (
        "In 1 of 2 cells the trials ran on processors with different instruction sets "
        "(AVX2, AVX512): their last digits may differ."
    )


def test_an_instruction_set_that_an_older_result_lacks_is_not_spoken_of(tmp_path: Path) -> None:
    def older(result: dict[str, Any]) -> None:
        result["environment"].pop("instruction_set", None)

    assert len(changed(tmp_path, older, count=3).cautions) == 1


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


def test_a_part_says_that_it_is_one() -> None:
    study = finished_study()
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
