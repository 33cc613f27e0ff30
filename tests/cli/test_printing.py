"""Invariant: a table loses nothing, however narrow the terminal and however long a name."""

from __future__ import annotations

import io
from contextlib import redirect_stdout

import pytest

from stochbatch.cli.errors import _report
from stochbatch.cli.printing import say, table
from stochbatch.training import RunError

ROWS = [("classifier.weight", "linear", "2,359,296", "0.0993"), ("0.bias", "bias", "64", "0.5")]


class Terminal(io.StringIO):
    """What is printed, by what takes it for a terminal."""

    def isatty(self) -> bool:
        return True


def printed(stream: io.StringIO, *args: object, **options: object) -> str:
    with redirect_stdout(stream):
        table(*args, **options)
    return stream.getvalue()


@pytest.fixture(params=[10, 40, 200])
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("COLUMNS", str(request.param))
    return request.param


def test_a_narrow_terminal_cuts_no_number(width: int) -> None:
    head = ("layer", "kind", "size", "probability")
    lines = printed(Terminal(), ROWS, head, right=(2, 3)).strip().splitlines()
    assert lines[0].split() == list(head)
    assert [tuple(line.split()) for line in lines[2:]] == ROWS


def test_the_last_column_folds_to_the_terminal(width: int) -> None:
    words = " ".join(f"word{number}" for number in range(60))
    lines = printed(Terminal(), [("name", words)]).splitlines()
    assert max(map(len, lines)) <= max(width, 40)
    assert " ".join(" ".join(lines).split()) == f"name {words}"


def test_a_long_name_leaves_room_for_what_is_said_of_it(width: int) -> None:
    path = "/a/folder" * 30 + "/digit.png"
    (line,) = printed(Terminal(), [(path, "3 99.1%, 9 0.5%")]).splitlines()
    assert line.split(maxsplit=1) == [path, "3 99.1%, 9 0.5%"]


def test_a_file_has_no_width_that_a_name_could_exceed() -> None:
    path = "/a/folder" * 30 + "/digit.png"
    assert printed(io.StringIO(), [(path, "3")]) == f"{path}  3\n"


def test_a_terminal_obeys_no_name(capsys: pytest.CaptureFixture[str]) -> None:
    """Escapes, line breaks, overrides of the writing direction, bytes that are no text."""
    name = "runs/\x1b]0;title\x07\x9b2J\r\u202e\udcff"
    table([(name, name)])
    say(f"{name}\nnext")
    _report(RunError(f"{name} is not a run folder"))
    shown = r"runs/\x1b]0;title\x07\x9b2J\r\u202e\udcff"
    out, err = capsys.readouterr()
    assert out == f"{shown}  {shown}\n{shown}\nnext\n"
    assert err.startswith(r"error: runs/\x1b]0;title\x07\x9b2J")
    assert err.isascii()


def test_nothing_is_a_table_too() -> None:
    assert printed(Terminal(), []).strip() == ""
    assert printed(Terminal(), [], ("layer", "kind")).split()[:2] == ["layer", "kind"]
