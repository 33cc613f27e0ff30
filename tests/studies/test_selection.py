"""Invariant: cells are chosen by what is printed of them, and a slip of the pen is answered."""

from __future__ import annotations

import re

import pytest

from stochbatch.studies import SCALES, STUDIES, Cell, StudyError
from stochbatch.studies.cell import with_labels

PAPER = SCALES["paper"]
READINGS = STUDIES["readings"].cells(PAPER)


def test_only_narrows_by_label() -> None:
    study = STUDIES["comparison"]
    kept = study.cells(PAPER, {"method": ["sgd", "SBS"], "batch size": ["16"]})
    assert len(kept) == 18
    with pytest.raises(StudyError, match=re.escape("method has no 'adam'. There are: SGD; Drop")):
        study.cells(PAPER, {"method": ["adam"]})
    with pytest.raises(StudyError, match="the study has no axis 'colour'. There are: dataset,"):
        study.cells(PAPER, {"colour": ["red"]})


def test_a_text_is_a_label_or_a_list_of_some() -> None:
    kept = with_labels(READINGS, "reading", ["SBS,rate 0.1", "fixed 1/2 , local only"])
    assert [cell.key[0] for cell in kept] == ["SBS, rate 0.1", "fixed 1/2", "local only"]
    with pytest.raises(StudyError, match="reading has no 'SBS'. There are: SGD, rate 0.2; SGD, "):
        with_labels(READINGS, "reading", ["fixed 1/2", "SBS, rate 7"])


def test_labels_that_differ_in_capitals_alone_are_all_kept() -> None:
    cells = [Cell({"x": label}, {}) for label in ("a", "A", "b")]
    assert with_labels(cells, "x", ["a"]) == cells[:2]
