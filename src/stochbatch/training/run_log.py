"""``log.txt`` of a run: when it started, resumed and ended, and what it warned of."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

LOGGER = logging.getLogger("stochbatch")
LOGGER.addHandler(logging.NullHandler())  # nothing on standard error unless the program asks for it


class RunLog(logging.Handler):
    """Appends warnings and errors of the logger ``stochbatch`` to a file, and lines of its own.

    A log that cannot be written does not stop a training.

    Args:
        path: the file; None writes nothing.
    """

    def __init__(self, path: Path | None) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        self._path, self._is_open = path, False
        self._held = ""

    def open(self) -> None:
        """Write the records so far, and later ones at once: a start that fails leaves no file."""
        self._is_open = True
        self.flush()

    def info(self, text: str) -> None:
        """Log a line; it reaches the file whatever the level of the logger is."""
        self.emit(LOGGER.makeRecord(LOGGER.name, logging.INFO, __file__, 0, text, (), None))
        LOGGER.info(text)  # for other handlers: this one takes warnings only

    def emit(self, record: logging.LogRecord) -> None:
        """Append a record."""
        self._held += self.format(record).replace("\n", " ") + "\n"
        self.flush()

    def flush(self) -> None:
        """Write what is held, once the log is open."""
        if self._path is not None and self._is_open and self._held:
            text, self._held = self._held, ""
            options = {"encoding": "utf-8", "errors": "backslashreplace"}
            with suppress(OSError), self._path.open("a", **options) as file:  # type: ignore[call-overload]
                file.write(text)


@contextmanager
def logged(path: Path | None) -> Iterator[RunLog]:
    """Log to a file the records of the logger ``stochbatch``, and Python's warnings."""
    log = RunLog(path)
    LOGGER.addHandler(log)
    try:
        with warnings.catch_warnings():
            show = warnings.showwarning

            def show_and_log(message: Warning | str, category: type[Warning], *place: Any) -> None:
                LOGGER.warning("%s: %s", category.__name__, message)
                show(message, category, *place)

            warnings.showwarning = show_and_log  # type: ignore[assignment]
            yield log
    finally:
        LOGGER.removeHandler(log)
