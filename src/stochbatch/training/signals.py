"""Signals that ask a training to stop are noted, and obeyed where the state is whole."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class StopSignals:
    """Notes SIGINT and SIGTERM while it is entered; a second SIGINT interrupts at once.

    Only the main thread can receive signals: elsewhere nothing is noted.
    """

    NUMBERS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in self.NUMBERS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received == signal.SIGINT == number:
            raise KeyboardInterrupt
        self.received = number
