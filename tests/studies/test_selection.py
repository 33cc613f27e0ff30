"""Invariant: cells are chosen by what is printed of them, and a slip of the pen is answered."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stochbatch.studies import SCALES, STUDIES, Cell, StudyError, collect
from stochbatch.studies.selection import with_labels, with_names

PAPER = SCALES["paper"]
COMPARISON = STUDIES["comparison"].cells(PAPER)
READINGS = STUDIES["readings"].cells(PAPER)


def readings(*texts: str) -> list[str]:
    return [cell.key[0] for cell in with_names(READINGS, texts)]


def test_only_narrows_by_label() -> None:
    study = STUDIES["comparison"]
    kept = study.cells(PAPER, {"method": ["sgd", "SBS"], "batch size": ["16"]})
    assert len(kept) == 18
    with pytest.raises(StudyError, match=re.escape("method has no 'adam'. There are: SGD, Drop")):
        study.cells(PAPER, {"method": ["adam"]})
    with pytest.raises(StudyError, match="the study has no axis 'colour'. There are: dataset,"):
        study.cells(PAPER, {"colour": ["red"]})


def test_a_label_with_commas_may_come_in_its_parts() -> None:
    labels = ["SBS", " rate 0.1", "fixed 1/2", "fixed 1/2 ", " linear"]
    kept = with_labels(READINGS, "reading", labels)
    assert [cell.key[0] for cell in kept] == ["SBS, rate 0.1", "fixed 1/2", "fixed 1/2, linear"]
    with pytest.raises(StudyError, match="reading has no 'SBS'. There are: SGD, rate 0.2; SGD, "):
        with_labels(READINGS, "reading", ["fixed 1/2", "SBS", "rate 7"])


def test_labels_that_differ_in_capitals_alone_are_all_kept() -> None:
    cells = [Cell({"x": label}, {}) for label in ("a", "A", "b")]
    assert with_labels(cells, "x", ["a"]) == cells[:2]


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(COMPARISON))
def test_a_name_as_it_is_printed_means_its_cell(cell: Cell) -> None:
    assert with_names(COMPARISON, [str(cell)]) == [cell]
    assert with_names(COMPARISON, [str(cell).upper()]) == [cell]


def test_without_a_wildcard_a_pattern_may_stand_anywhere_in_a_name() -> None:
    assert readings("fixed 1/2") == ["fixed 1/2", "fixed 1/2, linear"]
    assert readings("SBS, rate 0.1") == ["SBS, rate 0.1"]
    found = {cell.key[3] for cell in with_names(COMPARISON, ["sgd"])}
    assert found == {"SGD", "Entropy-SGD", "Entropy-SGD, printed rate", "Accelerated-SGD"}


def test_with_a_wildcard_a_pattern_is_the_whole_name() -> None:
    assert {cell.key[3] for cell in with_names(COMPARISON, ["*method SGD"])} == {"SGD"}
    assert readings("*fixed ?/2, training*") == ["fixed 1/2"]
    assert len(readings("*")) == 21
    with pytest.raises(StudyError, match="no cell's name matches 'batch size 16.'"):
        with_names(COMPARISON, ["batch size 16*"])


def test_several_patterns_are_a_union_in_the_order_of_the_study() -> None:
    assert readings("fixed 1/2, linear", "SGD, rate 0.1") == ["SGD, rate 0.1", "fixed 1/2, linear"]


def test_where_nothing_matches_the_command_that_prints_the_names_is_told() -> None:
    with pytest.raises(StudyError, match="matches 'bach size 16'; `stochbatch study plan NAME --l"):
        with_names(COMPARISON, ["SGD", "bach size 16"])


def test_names_are_looked_for_in_what_labels_left(tmp_path) -> None:
    study = STUDIES["comparison"]
    found = collect(
        study, SCALES["demo"], tmp_path, only={"method": ["SBS"]}, named=["batch size 16"]
    )
    assert [str(cell.cell) for cell in found.cells] == [
        "dataset digits, network vgg_tiny, batch size 16, method SBS"
    ]
    with pytest.raises(StudyError, match="no cell's name matches 'SGD'"):
        collect(study, SCALES["demo"], tmp_path, only={"method": ["SBS"]}, named=["SGD"])
