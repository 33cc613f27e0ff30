"""Invariant: a report takes away what an earlier report made, and nothing else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from stochbatch.report import study as report
from stochbatch.report import write_report
from stochbatch.studies import StudyResults
from tests.report.finished_study import STUDY, begun_study, finished_study

PICTURE = "figures/curves-16.png"


def without_claims() -> StudyResults:
    """Return a study that has neither claims nor, as only SGD is left, figures of batches."""
    found = finished_study()
    study = STUDY.model_copy(update={"claims": []})
    return StudyResults(study, found.scale, found.root, found.cells[:1])


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


def test_what_the_new_report_does_not_make_is_removed(tmp_path: Path) -> None:
    write_report(finished_study(), tmp_path)
    assert {"claims.csv", "figures/batches-16.png", "figures/batches-16.pdf"} <= files(tmp_path)
    write_report(without_claims(), tmp_path)
    assert files(tmp_path) == {
        *("index.html", "report-manifest.json", "table.csv", "table.md", "table.tex"),
        *(PICTURE, "figures/curves-16.pdf"),
    }


def test_the_folder_is_the_same_whatever_was_there_before(tmp_path: Path) -> None:
    for results in (begun_study(), finished_study(), without_claims()):
        write_report(results, tmp_path / "again")
    write_report(without_claims(), tmp_path / "once")
    assert files(tmp_path / "again") == files(tmp_path / "once")
    for name in files(tmp_path / "once"):
        again, once = ((tmp_path / one / name).read_bytes() for one in ("again", "once"))
        assert again == once, name


def test_files_of_others_stay(tmp_path: Path) -> None:
    write_report(finished_study(), tmp_path)
    for name in ("notes.csv", "figures/mine.png"):
        (tmp_path / name).write_text("mine")
    write_report(without_claims(), tmp_path)
    assert {"notes.csv", "figures/mine.png"} <= files(tmp_path)


def test_a_figure_that_somebody_changed_is_theirs(tmp_path: Path) -> None:
    write_report(finished_study(), tmp_path)
    (tmp_path / "figures/batches-16.png").write_text("retouched")
    write_report(without_claims(), tmp_path)
    assert (tmp_path / "figures/batches-16.png").read_text() == "retouched"
    assert "figures/batches-16.pdf" not in files(tmp_path)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"files": 3}', '{"files": {"figures/batches-16.png": 3}}'],
)
def test_a_manifest_that_cannot_be_read_removes_nothing(tmp_path: Path, text: str) -> None:
    write_report(finished_study(), tmp_path)
    (tmp_path / "report-manifest.json").write_text(text)
    write_report(without_claims(), tmp_path)
    assert "figures/batches-16.png" in files(tmp_path)


def test_a_manifest_is_not_believed_about_files_elsewhere(tmp_path: Path) -> None:
    folder = tmp_path / "report"
    write_report(finished_study(), folder)
    manifest = json.loads((folder / "report-manifest.json").read_text())
    content = report.digest(b"precious")
    for name in ("../precious.csv", "figures/../../precious.csv", str(tmp_path / "precious.csv")):
        manifest["files"][name] = content
    (folder / "report-manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "precious.csv").write_bytes(b"precious")
    write_report(without_claims(), folder)
    assert (tmp_path / "precious.csv").exists()


def test_a_report_that_is_stopped_over_another_leaves_nothing_unlisted(
    tmp_path: Path, monkeypatch
) -> None:
    def files_of(version: bytes) -> dict[str, bytes]:
        return {"table.csv": version, PICTURE: version, "index.html": version}

    report._write(tmp_path, files_of(b"old"))
    writing = report.write_atomically

    def stops(path: Path, write: object) -> None:
        if path.suffix == ".png":
            raise KeyboardInterrupt
        writing(path, write)

    for version in (b"newer", b"newest"):
        monkeypatch.setattr(report, "write_atomically", stops)
        with pytest.raises(KeyboardInterrupt):
            report._write(tmp_path, files_of(version))
        monkeypatch.undo()
    assert (tmp_path / PICTURE).read_bytes() == b"old"
    report._write(tmp_path, {"table.csv": b"last", "index.html": b"last"})
    assert files(tmp_path) == {"index.html", "report-manifest.json", "table.csv"}


def test_what_a_killed_report_was_writing_goes_with_a_later_one(tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    left = [tmp_path / ".table.md.0123.tmp", tmp_path / "figures/.curves-16.png.4567.tmp"]
    for path in left:
        path.write_bytes(b"half")
        os.utime(path, (0, 0))
    write_report(without_claims(), tmp_path)
    assert not any(path.exists() for path in left)


def test_a_report_that_is_stopped_leaves_nothing_unlisted(tmp_path: Path, monkeypatch) -> None:
    writing = report.write_atomically

    def stops(path: Path, write: object) -> None:
        if path.name == "index.html":
            raise KeyboardInterrupt
        writing(path, write)

    monkeypatch.setattr(report, "write_atomically", stops)
    with pytest.raises(KeyboardInterrupt):
        write_report(finished_study(), tmp_path)
    monkeypatch.undo()
    assert "figures/batches-16.png" in files(tmp_path)
    write_report(without_claims(), tmp_path)
    assert "figures/batches-16.png" not in files(tmp_path)
