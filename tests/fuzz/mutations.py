"""Inputs made from good ones by a few changes, and what must hold for each.

A run is the same every time. ``STOCHBATCH_FUZZ_EXAMPLES=10000`` tries that many inputs per test.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st

EXAMPLES = "STOCHBATCH_FUZZ_EXAMPLES"


def fuzz(examples: int, **inputs: st.SearchStrategy[Any]) -> Callable[..., Any]:
    """Run a test with so many inputs, or as many as the environment says."""
    settings = hypothesis.settings(
        max_examples=int(os.environ.get(EXAMPLES, examples)),
        derandomize=True,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    return lambda test: settings(hypothesis.given(**inputs)(test))


def used_or_refused(use: Callable[[], Any], *refusals: type[Exception]) -> Any:
    """Return what ``use`` returns, or None if it refuses its input by one line of its own."""
    try:
        return use()
    except refusals as error:
        refusal = error
    assert type(refusal).__module__.startswith("stochbatch."), repr(refusal)
    assert len(str(refusal).splitlines()) == 1, repr(refusal)
    return None


def contents(folder: Path) -> dict[str, bytes]:
    """Return all files of a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


TIMES = st.integers(1, 3)
PLACES = st.floats(0, 1, exclude_max=True)
BLOCKS = st.one_of(
    st.sampled_from([b"", b"\0", b"\xff", b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff"]),
    st.binary(max_size=8),
)


@st.composite
def mutated_bytes(draw: st.DrawFn, content: bytes, head: int | None = None) -> bytes:
    """Bytes cut short, overwritten, left out, put in or repeated at a few places.

    Half of the places are in the first ``head`` bytes, where a format says what follows.
    """
    for _ in range(draw(TIMES)):
        reach = len(content) if head is None or draw(st.booleans()) else min(head, len(content))
        at = int(draw(PLACES) * reach)
        block = draw(BLOCKS)
        end = at + draw(st.integers(1, 64))
        match draw(st.sampled_from(["cut", "overwrite", "insert", "remove", "repeat", "flip"])):
            case "cut":
                content = content[:at]
            case "overwrite":
                content = content[:at] + block + content[at + len(block) :]
            case "insert":
                content = content[:at] + block + content[at:]
            case "remove":
                content = content[:at] + content[end:]
            case "repeat":
                content = content[:end] + content[at:]
            case "flip":
                flipped = bytes(byte ^ (1 << end % 8) for byte in content[at : at + 1])
                content = content[:at] + flipped + content[at + 1 :]
    return content


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, -1, 1, 2, 7, 10**11, 2**63, 2**64, -(10**30), 10**400]),
    st.sampled_from([0.0, -0.0, 0.5, 1e-320, 1e300, -1e300, float("inf"), float("nan")]),
    st.sampled_from(["", "null", "sgd", "digits", "../x", "a\nb", "\x1b[31m", "\u2028", "x" * 99]),
    st.sampled_from([[], {}, [[]], [1, 2], [0.5, None], {"": 1}, {"lr": {}}]).map(copy.deepcopy),
    st.floats(),
    st.text(max_size=5),
)


@st.composite
def mutated_value(draw: st.DrawFn, value: Any) -> Any:
    """A value of JSON or TOML in which a few parts are others, gone, doubled or new."""
    value = copy.deepcopy(value)
    for _ in range(draw(TIMES)):
        parent, key, at = None, None, value
        while isinstance(at, dict | list) and at and (parent is None or draw(st.booleans())):
            keys = sorted(at, key=str) if isinstance(at, dict) else range(len(at))
            parent, key = at, draw(st.sampled_from(list(keys)))
            at = parent[key]
        if parent is None:
            return draw(ODD)
        match draw(st.sampled_from(["other", "other", "gone", "new"])):
            case "other":
                parent[key] = draw(ODD)
            case "gone":
                del parent[key]
            case "new" if isinstance(parent, dict):
                parent[draw(st.text(max_size=5))] = draw(ODD)
            case "new":
                parent.insert(key, copy.deepcopy(at))
    return value
