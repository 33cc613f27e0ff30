"""Signals that ask a training to stop are noted, and obeyed where the state is whole."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class StopSignals:
    """Notes SIGINT and SIGTERM while it is entered; a second SIGINT interrupts at once.

    Only the main thread can receive signals: elsewhere nothing is noted.

    Args:
        at_once: whether to note them from the beginning, or from :meth:`listen` on.
    """

    NUMBERS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, at_once: bool = True) -> None:
        self.received: int | None = None
        self._at_once = at_once
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if self._at_once:
            self.listen()
        return self

    def listen(self) -> None:
        """Note signals from now on."""
        if threading.current_thread() is threading.main_thread() and not self._before:
            self._before = {number: signal.signal(number, self._note) for number in self.NUMBERS}

    def keep(self) -> None:
        """Go on noting them after the end, so that none of them ends the process."""
        self._before.clear()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received == signal.SIGINT == number:
            raise KeyboardInterrupt
        self.received = number
