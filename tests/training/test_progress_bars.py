"""Invariant: a terminal gets a bar, everything else whole plain lines, and quiet nothing."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from stochbatch.training import Observer, Trial
from stochbatch.training.observers import Start
from stochbatch.training.progress_bars import PlainProgress, RichProgress, choose_progress

METRICS: dict[str, Any] = {
    "epoch": 2,
    "lr": 0.0993,
    "train_loss": 0.42,
    "train_accuracy": 88.1,
    "test_loss": 0.4,
    "test_accuracy": 91.3,
    "seconds": 2.0,
    "images_per_second": 1240.0,
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def begin(progress: Observer, epoch: int = 0, batch: int = 0, note: str | None = None) -> None:
    progress.on_start(Start(Trial(epochs=30), Path("runs/0123"), epoch, batch, 11, note))


@pytest.mark.parametrize(
    ("stream", "term", "quiet", "kind"),
    [
        (Terminal(), "xterm", False, RichProgress),
        (Terminal(), "dumb", False, PlainProgress),  # it cannot move its cursor
        (io.StringIO(), "xterm", False, PlainProgress),
        (Terminal(), "xterm", True, Observer),
    ],
)
def test_the_stream_decides_what_is_shown(
    stream: io.StringIO, term: str, quiet: bool, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    assert type(choose_progress(quiet, stream)) is kind


def test_an_epoch_is_one_line() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = PlainProgress(stream, clock)
    begin(progress)
    clock.now = 6.0
    progress.on_epoch(METRICS)
    progress.close()
    assert stream.getvalue() == (
        "epoch 3/30  loss 0.42  train 88.1 %  test 91.3 %  lr 0.0993  "
        "1,240 images/s  0:00:54 left\n"
    )


def test_numbers_that_are_none_are_dashes() -> None:
    stream = io.StringIO()
    progress = PlainProgress(stream)
    begin(progress)
    progress.on_epoch({**METRICS, "train_loss": None, "test_accuracy": float("nan")})
    assert "loss -  train 88.1 %  test - %" in stream.getvalue()


def test_a_note_and_a_resumption_are_said() -> None:
    stream = io.StringIO()
    begin(PlainProgress(stream), epoch=4, batch=7, note="checkpoint-5 is damaged")
    assert stream.getvalue().splitlines() == [
        "checkpoint-5 is damaged",
        "resumed: 4 of 30 epochs and 7 of 11 batches are done",
    ]


def test_time_left_counts_only_what_this_process_did() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = PlainProgress(stream, clock)
    begin(progress, epoch=28)
    for clock.now, epoch in ((60.0, 28), (120.0, 29)):
        progress.on_epoch({**METRICS, "epoch": epoch})
    left = [line.split("  ")[-1] for line in stream.getvalue().splitlines()[1:]]
    assert left == ["0:01:00 left", "0:00:00 left"]


def rich_text(**changes: Any) -> str:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=120, color_system=None)
    progress = RichProgress(console, Clock())
    begin(progress, **changes)
    progress.on_batch({**METRICS, "batch": 5, "batches": 11})
    progress._bars.refresh()
    progress.on_epoch(METRICS)
    progress.close()
    return stream.getvalue()


def test_a_bar_has_the_epochs_and_the_numbers() -> None:
    shown = rich_text()
    for part in ("epoch 2.45/30", "epoch 3.00/30", "loss 0.42", "test 91.3 %", " left"):
        assert part in shown


def test_a_note_with_brackets_is_shown_as_it_is() -> None:
    assert "[/red] was damaged" in rich_text(note="[/red] was damaged")


def test_closing_a_bar_that_never_began_is_harmless() -> None:
    stream = io.StringIO()
    progress = RichProgress(Console(file=stream, force_terminal=True))
    progress.close()
    assert stream.getvalue() == ""
