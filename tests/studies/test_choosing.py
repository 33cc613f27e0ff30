"""Invariant: cells are chosen by what is printed of them, and a slip of the pen is answered."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stochbatch.studies import SCALES, STUDIES, Cell, StudyError, collect
from stochbatch.studies.choosing import with_labels, with_names

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
    with pytest.raises(StudyError, match="reading has no 'sbs'. There are: SGD, rate 0.2; SGD, "):
        with_labels(READINGS, "reading", ["fixed 1/2", "SBS", "rate 7"])


def test_labels_that_differ_in_capitals_alone_are_all_kept() -> None:
    cells = [Cell({"x": label}, {}) for label in ("a", "A", "b")]
    assert with_labels(cells, "x", ["a"]) == cells[:2]


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(COMPARISON))
def test_a_name_as_it_is_printed_means_its_cell(cell: Cell) -> None:
    assert with_names(COMPARISON, [str(cell)]) == [cell]
    assert with_names(COMPARISON, [str(cell).upper().replace(" ", "  ")]) == [cell]


def test_a_whole_name_means_its_cell_alone_even_if_it_is_part_of_another() -> None:
    assert readings("reading fixed 1/2, training accuracy") == ["fixed 1/2"]
    assert readings("fixed 1/2") == ["fixed 1/2", "fixed 1/2, linear"]


def test_parts_between_commas_must_all_be_there_in_any_order() -> None:
    kept = with_names(COMPARISON, ["method SBS, batch size 16"])
    assert len(kept) == 9
    assert {(cell.key[2], cell.key[3]) for cell in kept} == {("16", "SBS")}


def test_words_are_whole() -> None:
    assert {cell.key[3] for cell in with_names(COMPARISON, ["SGD"])} == {"SGD"}
    assert readings("rate 0.2") == ["SGD, rate 0.2", "SBS, rate 0.2"]
    assert readings("SBS, rate 0.02*") == ["SBS, rate 0.025"]


def test_a_star_is_anything() -> None:
    assert {cell.key[3] for cell in with_names(COMPARISON, ["*SGD"])} == {
        *("SGD", "Entropy-SGD", "Accelerated-SGD")
    }
    assert readings("combined*lambda") == [
        "combined, total, lambda -1",
        "combined, total, lambda -2",
    ]
    assert len(readings("*")) == 21


def test_several_texts_are_a_union_in_the_order_of_the_study() -> None:
    assert readings("fixed 1/2, linear", "SGD, rate 0.1") == ["SGD, rate 0.1", "fixed 1/2, linear"]


def test_signs_of_patterns_are_signs() -> None:
    for text in ("(", "[0-9]", "rate 0.?", ".", "\\"):
        with pytest.raises(StudyError):
            with_names(READINGS, [text])


def test_where_nothing_matches_near_names_are_told() -> None:
    with pytest.raises(StudyError) as caught:
        with_names(COMPARISON, ["SGD", "dataset svhn, bach size 16, method SBS"])
    text = str(caught.value)
    assert text.startswith("no cell has 'dataset svhn, bach size 16, method SBS' in its name. Near")
    assert "'dataset svhn, network vgg11, batch size 16, method SBS'" in text
    assert text.count("'dataset ") == 4
    assert "\n" not in text


@pytest.mark.parametrize("text", ["", " ", ",", " , "])
def test_no_words_mean_no_cell(text: str) -> None:
    with pytest.raises(StudyError, match="no cell has"):
        with_names(READINGS, [text])


def test_names_are_looked_for_in_what_labels_left(tmp_path) -> None:
    study = STUDIES["comparison"]
    found = collect(
        study, SCALES["demo"], tmp_path, only={"method": ["SBS"]}, named=["batch size 16"]
    )
    assert [str(cell.cell) for cell in found.cells] == [
        "dataset digits, network vgg_tiny, batch size 16, method SBS"
    ]
    with pytest.raises(StudyError, match="no cell has 'SGD'"):
        collect(study, SCALES["demo"], tmp_path, only={"method": ["SBS"]}, named=["SGD"])
