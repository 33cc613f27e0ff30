"""``log.txt`` of a run: when it started, resumed and ended, and what it warned of."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

LOG = logging.getLogger("stochbatch")
LOG.addHandler(logging.NullHandler())  # nothing on standard error unless the program asks for it


class RunLog(logging.Handler):
    """Appends records of the logger ``stochbatch`` to a file, once there is something to keep.

    A log that cannot be written does not stop a training.

    Args:
        path: the file; None writes nothing.
    """

    def __init__(self, path: Path | None) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        self._path, self._held = path, list[str]()
        self._is_open = False

    def open(self) -> None:
        """Write the records so far, and later ones at once: a start that fails leaves no file."""
        self._is_open = True
        self._flush()

    def note(self, level: int, text: str) -> logging.LogRecord:
        """Append a line to the file only."""
        record = LOG.makeRecord(LOG.name, level, __file__, 0, text, (), None)
        self.emit(record)
        return record

    def info(self, text: str) -> None:
        """Log a line; it reaches the file whatever the level of the logger is."""
        record = self.note(logging.INFO, text)
        if LOG.isEnabledFor(logging.INFO):
            LOG.handle(record)  # for other handlers; this one takes warnings only

    def emit(self, record: logging.LogRecord) -> None:
        """Append a record."""
        self._held.append(self.format(record))
        if self._is_open:
            self._flush()

    def _flush(self) -> None:
        text = "".join(line.replace("\n", " ") + "\n" for line in self._held)
        self._held.clear()
        with suppress(OSError):
            if self._path is not None and text:
                with self._path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                    file.write(text)


@contextmanager
def logged(path: Path | None) -> Iterator[RunLog]:
    """Log to a file the records of the logger ``stochbatch``, and Python's warnings."""
    log = RunLog(path)
    LOG.addHandler(log)
    try:
        with warnings.catch_warnings():
            show = warnings.showwarning

            def show_and_log(message: Warning | str, category: type[Warning], *place: Any) -> None:
                log.note(logging.WARNING, f"{category.__name__}: {message}")
                show(message, category, *place)

            warnings.showwarning = show_and_log  # type: ignore[assignment]
            yield log
    finally:
        LOG.removeHandler(log)
