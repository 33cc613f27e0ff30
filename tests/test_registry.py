"""Invariant: what is registered can be listed and found; what is not is refused helpfully."""

import re

import pytest

from stochbatch import registry
from stochbatch.registry import Registry, UnknownNameError


@pytest.fixture
def animals() -> Registry[int]:
    registry: Registry[int] = Registry("animal")
    registry.add("spider", "Spins.", 8)
    registry.add("horse", "Runs.", 4)
    return registry


def test_names_come_in_order_with_their_lines(animals: Registry[int]) -> None:
    assert list(animals.items()) == [("spider", 8), ("horse", 4)]
    assert [animals.summary(name) for name in animals] == ["Spins.", "Runs."]
    assert "horse" in animals
    assert "cow" not in animals


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hose", "no animal is called 'hose', did you mean 'horse'? There are: spider, horse"),
        ("HORSE", "no animal is called 'HORSE', did you mean 'horse'?"),
        ("xyz", "no animal is called 'xyz'. There are: spider, horse"),
        (3, "no animal is called 3. There are: spider, horse"),
    ],
)
def test_an_unknown_name_gets_the_nearest_and_all(animals, name: object, message: str) -> None:
    for ask in (animals.__getitem__, animals.summary):
        with pytest.raises(UnknownNameError, match=re.escape(message)):
            ask(name)
    assert animals.get(name) is None
    assert animals.get("horse") == 4


def test_a_name_is_given_once(animals: Registry[int]) -> None:
    with pytest.raises(ValueError, match="two animals are called 'horse'"):
        animals.add("horse", "Another.", 4)
    assert len(animals) == 2


@pytest.mark.parametrize("summary", ["", "  ", "two\nlines"])
def test_a_summary_is_one_line(animals: Registry[int], summary: str) -> None:
    with pytest.raises(ValueError, match="the summary of 'cow' must be one line"):
        animals.add("cow", summary, 4)


@pytest.mark.parametrize("name", ["METHODS", "SCHEDULES", "NETWORKS", "DATASETS", "STUDIES"])
def test_behind_each_of_the_own_names_there_is_a_thing(name: str) -> None:
    own = getattr(registry, name)
    assert all(own[one] for one in own)  # which imports them
