"""Invariant: what is told about a study is shown as it is, whatever it is."""

from __future__ import annotations

import pytest

from stochbatch.studies.progress import PlainWatcher, RichWatcher
from tests.training.runs import small_trial


@pytest.mark.parametrize("kind", [PlainWatcher, RichWatcher])
def test_an_error_with_brackets_is_shown_as_it_is(
    kind: type[PlainWatcher | RichWatcher], capsys: pytest.CaptureFixture[str]
) -> None:
    watcher, trial = kind(), small_trial()
    watcher.begin(2)
    watcher.note("[/red] is no colour")
    watcher.epoch(trial, 1)
    watcher.end_of(trial, "failed", "KeyError: [/bold]")
    watcher.close()
    shown = capsys.readouterr().err
    assert "[/red] is no colour" in shown
    assert "failed  KeyError: [/bold]" in shown
