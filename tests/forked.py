"""Python in processes of its own, forked from one that has torch and the lab loaded.

A command then starts in a tenth of a second of CPU time instead of three seconds, and is a real
process all the same: with exit code, streams, signals, working folder and environment of its own.
Tests of how an interpreter starts, of imports and of the installed script start one themselves.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired

PRELOADED = [
    "stochbatch.cli.app",
    "stochbatch.report.page",
    "stochbatch.studies.local_engine",
    "stochbatch.training.runner",
    "torch._dynamo",  # which torch's optimizers import at their first step
    "tests.training.survivor",
]
COMMAND = "stochbatch"


class Forked:
    """A running command; ``words`` are those of a shell: ``python -c CODE``, ``stochbatch ...``."""

    def __init__(
        self,
        words: Sequence[object],
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.words = [str(word) for word in words]
        self._folder = tempfile.TemporaryDirectory()
        streams = [os.path.join(self._folder.name, name) for name in ("out", "err")]
        for stream in streams:
            Path(stream).touch()
        self.stdout, self.stderr = map(Path, streams)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        variables = dict(os.environ if env is None else env)
        arguments = (self.words, str(cwd or os.getcwd()), variables, *streams)
        self._process: ForkServerProcess = context.Process(target=_call, args=arguments)
        self._process.start()
        self.pid = self._process.pid

    def send_signal(self, number: int) -> None:
        """Send a signal."""
        assert self.pid is not None
        os.kill(self.pid, number)

    def poll(self) -> int | None:
        """Return the exit code, or None if it is still running."""
        return self._process.exitcode

    def wait(self, timeout: float = 120.0) -> CompletedProcess[str]:
        """Return what the command left; end it if it takes too long."""
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            self._process.kill()
            self._process.join()
            raise TimeoutExpired(
                self.words, timeout, self.stdout.read_text(), self.stderr.read_text()
            )
        out, err = self.stdout.read_text(), self.stderr.read_text()
        self._folder.cleanup()
        return CompletedProcess(self.words, code, out, err)


def forked(
    words: Sequence[object],
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 120.0,
) -> CompletedProcess[str]:
    """Run a command to its end, as ``subprocess.run`` does."""
    return Forked(words, cwd, env).wait(timeout)


def _call(words: list[str], cwd: str, env: Mapping[str, str], out: str, err: str) -> None:
    """Become the process of a command: in the child."""
    for number, path in ((0, os.devnull), (1, out), (2, err)):
        file = os.open(path, os.O_RDWR | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, mode) for n, mode in enumerate("rww"))
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # as in a shell
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.path[:0] = [place for place in env.get("PYTHONPATH", "").split(os.pathsep) if place]
    program, *arguments = words
    try:
        if Path(program).name == COMMAND:
            sys.argv = [program, *arguments]
            runpy.run_module(COMMAND, run_name="__main__", alter_sys=True)
        elif arguments[0] == "-c":
            sys.path.insert(0, "")
            sys.argv = ["-c", *arguments[2:]]
            exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
        elif arguments[0] == "-m":
            sys.argv = arguments[1:]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(arguments[0]).parent))
            sys.argv = arguments
            runpy.run_path(arguments[0], run_name="__main__")
    finally:
        sys.stdout.flush()
