"""Invariant: the documentation speaks of code that is there."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parent.parent / "docs"


def article_map() -> ModuleType:
    pytest.importorskip("docutils")
    spec = importlib.util.spec_from_file_location("article_map", DOCS / "article_map.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_equation_and_algorithm_of_the_article_is_mapped() -> None:
    mapped = " ".join(entry.where for entry in article_map().MAP)
    for number in [*range(9, 22)]:
        assert f"Eq. {number}" in mapped
    assert "Algorithm 1" in mapped
    assert "Algorithm 2" in mapped


def test_every_line_in_the_map_exists_once() -> None:
    module = article_map()
    for entry in module.MAP:
        if entry.file:
            number, line = module.line_of(entry)
            assert number > 0
            assert entry.text in line
