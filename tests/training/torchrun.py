"""Programs under torchrun, and their processes, none of which is left over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

SECONDS = 120
"""After so many seconds a launch is taken to hang."""


class Launch:
    """A program in several processes.

    Args:
        count: how many.
        *args: the program and its arguments; ``-m`` before a module.
    """

    def __init__(self, count: int, *args: object) -> None:
        torchrun = Path(sys.executable).with_name("torchrun")
        words = [torchrun, "--standalone", "--nproc-per-node", count]
        self._process = subprocess.Popen(
            [str(word) for word in (*words, *args)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100"},
        )
        self.out: list[str] = []
        self.err: list[str] = []
        self._readers = [
            threading.Thread(target=_read, args=(stream, lines), daemon=True)
            for stream, lines in (
                (self._process.stdout, self.out),
                (self._process.stderr, self.err),
            )
        ]
        for reader in self._readers:
            reader.start()
        self._workers: set[int] = set()

    def workers(self) -> list[int]:
        """Return the process ids of the workers that are there, by rank."""
        listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True)
        pairs = [tuple(map(int, line.split())) for line in listed.stdout.splitlines()]
        found = sorted(pid for pid, parent in pairs if parent == self._process.pid)
        self._workers |= set(found)
        return found

    def wait_for(self, beginning: str) -> None:
        """Wait until a line of standard error begins so."""
        deadline = time.monotonic() + SECONDS
        while not any(line.startswith(beginning) for line in list(self.err)):
            assert self._process.poll() is None, "".join(self.err)
            assert time.monotonic() < deadline, "".join(self.err)
            time.sleep(0.02)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to torchrun itself."""
        self.workers()
        self._process.send_signal(number)

    def end(self, seconds: float = SECONDS) -> int:
        """Wait until it is over, and return torchrun's exit code."""
        code = self._process.wait(timeout=seconds)
        for reader in self._readers:
            reader.join(timeout=10)
        return code

    def ours(self) -> list[str]:
        """Return the lines of standard error that are the command's, not torchrun's."""
        beginnings = ("epoch ", "resumed: ", "error: ", "unexpected ")
        return [line for line in self.err if line.startswith(beginnings)]

    def tracebacks(self) -> list[str]:
        """Return what was raised in the workers: torchrun's own tracebacks do not count."""
        return [line for line in self.err if "stochbatch/" in line and "File" in line]

    def leftovers(self) -> list[int]:
        """Return the workers that are still there."""
        return [pid for pid in self._workers if _is_alive(pid)]

    def stop(self) -> None:
        """End everything, whatever state it is in."""
        self.workers()
        with suppress(subprocess.TimeoutExpired):
            self._process.terminate()
            self._process.wait(timeout=5)
        for pid in [self._process.pid, *self._workers]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        for reader in self._readers:
            reader.join(timeout=10)


@contextmanager
def launched(count: int, *args: object) -> Iterator[Launch]:
    """Enter a launch."""
    launch = Launch(count, *args)
    try:
        yield launch
    finally:
        launch.stop()


def _read(stream: IO[str], lines: list[str]) -> None:
    with stream:
        for line in stream:
            lines.append(line)  # as they come, not when all are there


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
