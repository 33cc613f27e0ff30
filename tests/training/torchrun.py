"""Programs under torchrun, and their processes, none of which is left over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SECONDS = 300
"""A launch that takes longer hangs."""


class Launch:
    """A program in several processes, with its output in a folder."""

    def __init__(self, folder: Path, count: int, *words: object) -> None:
        folder.mkdir(exist_ok=True)
        self._out, self._err = folder / "stdout", folder / "stderr"
        torchrun = Path(sys.executable).with_name("torchrun")
        command = [torchrun, "--standalone", "--nproc-per-node", count, *words]
        with self._out.open("w") as out, self._err.open("w") as err:
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            self.process = subprocess.Popen(
                [str(word) for word in command], stdout=out, stderr=err, env=environment
            )

    @property
    def out(self) -> list[str]:
        return self._out.read_text().splitlines()

    @property
    def err(self) -> list[str]:
        return self._err.read_text().splitlines()

    @property
    def errors(self) -> list[str]:
        """The lines by which the command reports an error."""
        return [line for line in self.err if line.startswith("error: ")]

    def workers(self) -> list[int]:
        """Return the process ids of the ranks that are there, by rank."""
        command = ["pgrep", "-P", str(self.process.pid)]
        listed = subprocess.run(command, capture_output=True, text=True)
        return sorted(map(int, listed.stdout.split()))

    def wait_for(self, beginning: str) -> None:
        """Wait until a line of standard error begins so."""
        deadline = time.monotonic() + SECONDS
        while not any(line.startswith(beginning) for line in self.err):
            assert self.process.poll() is None, self.err
            assert time.monotonic() < deadline, self.err
            time.sleep(0.05)

    def end(self) -> int:
        """Wait until it is over, and return torchrun's exit code."""
        return self.process.wait(timeout=SECONDS)


@contextmanager
def launched(folder: Path, count: int, *words: object) -> Iterator[Launch]:
    """Enter a launch; whatever happens, none of its processes is left."""
    launch = Launch(folder, count, *words)
    try:
        yield launch
    finally:
        if launch.process.poll() is None:
            for pid in [*launch.workers(), launch.process.pid]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            launch.process.wait()
