"""Invariant: a report takes the place of an earlier one as a whole, and of nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stochbatch.report import ReportError, write_report
from stochbatch.report.page import written
from stochbatch.studies import StudyResults
from tests.report.finished_study import STUDY, finished_study


def without_claims() -> StudyResults:
    """Return a study that has neither claims nor, as only SGD is left, figures of batches."""
    found = finished_study()
    study = STUDY.model_copy(update={"claims": []})
    return StudyResults(study, found.scale, found.root, found.cells[:1])


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if not path.is_dir()
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_report(finished_study(), tmp_path / "report", figures=False)
    return tmp_path / "report"


def test_the_folder_is_the_same_whatever_report_was_there_before(folder: Path) -> None:
    (folder / "figures").mkdir()
    (folder / "figures" / "batches-16.png").touch()
    assert "claims.csv" in files(folder)
    write_report(without_claims(), folder, figures=False)
    write_report(without_claims(), folder.with_name("once"), figures=False)
    assert files(folder) == files(folder.with_name("once"))
    assert {path.name for path in folder.parent.iterdir()} == {"report", "once"}


@pytest.mark.parametrize("name", ["notes.txt", "figures/mine.svg", "more/index.html"])
def test_a_folder_with_files_of_others_is_refused(folder: Path, name: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("mine")
    before = files(folder)
    with pytest.raises(ReportError, match=f"not a report's .{name.split('/')[0]}.*--to"):
        write_report(without_claims(), folder, figures=False)
    assert files(folder) == before


def test_a_report_that_cannot_be_written_leaves_the_earlier_one(folder: Path) -> None:
    before = files(folder)
    with pytest.raises(ReportError, match="File exists|Not a directory"):
        written(folder, lambda: {"table.csv": b"new", "table.csv/inside": b"impossible"})
    assert files(folder) == before
    assert list(folder.parent.iterdir()) == [folder]


@pytest.mark.parametrize("killed", ["while writing", "before the end"])
def test_the_next_report_takes_the_place_of_one_that_was_killed(folder: Path, killed: str) -> None:
    new = folder.with_name(".report.new")
    new.mkdir()
    (new / "table.csv").write_bytes(b"half")
    if killed == "before the end":
        shutil.rmtree(folder)
    write_report(without_claims(), folder, figures=False)
    write_report(without_claims(), folder.with_name("once"), figures=False)
    assert files(folder) == files(folder.with_name("once"))
    assert {path.name for path in folder.parent.iterdir()} == {"report", "once"}


def test_a_link_to_a_folder_stays_a_link(folder: Path) -> None:
    link = folder.with_name("link")
    link.symlink_to(folder)
    write_report(without_claims(), link, figures=False)
    assert link.is_symlink()
    assert "claims.csv" not in files(folder)
