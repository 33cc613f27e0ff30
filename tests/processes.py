"""Processes that talk to each other by gloo, and run functions for tests.

They are started once for each number of processes: importing torch takes longer than most
tests. No port is fixed (they meet in a file), and whatever happens none of them is left over.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

TIMEOUT = 90.0
"""Seconds after which a function is taken to hang."""


class ProcessError(AssertionError):
    """A function failed in one of the processes."""


class Processes:
    """So many processes, each with a rank."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._workers: list[tuple[SpawnProcess, Connection]] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call a function of a module in every process; return what it returned, by rank."""
        if not self._workers:
            self._start()
        for _, pipe in self._workers:
            pipe.send((function, arguments))
        deadline = time.monotonic() + TIMEOUT
        answers: dict[int, Any] = {}
        waiting = {pipe: rank for rank, (_, pipe) in enumerate(self._workers)}
        while waiting:
            ready = wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                self.stop()
                raise ProcessError(f"ranks {list(waiting.values())}: no answer in {TIMEOUT:.0f} s")
            for pipe in ready:
                rank = waiting.pop(pipe)  # type: ignore[call-overload]
                answers[rank] = self._answer(rank, pipe)  # type: ignore[arg-type]
        return [answers[rank] for rank in range(self.count)]

    def _answer(self, rank: int, pipe: Connection) -> Any:
        try:
            fine, answer = pipe.recv()
        except EOFError:
            fine, answer = False, "died"
        if not fine:
            self.stop()  # the others may be waiting for it
            raise ProcessError(f"rank {rank}: {answer}")
        return answer

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory()
        meeting = os.path.join(self._folder.name, "meeting")
        for rank in range(self.count):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_work, args=(theirs, rank, self.count, meeting), daemon=True
            )
            process.start()
            theirs.close()
            self._workers.append((process, ours))

    def close(self) -> None:
        """End all processes, as `contextlib.closing` calls it."""
        self.stop()

    def stop(self) -> None:
        """End all processes."""
        for process, pipe in self._workers:
            pipe.close()
            process.kill()
        for process, _ in self._workers:
            process.join()
        self._workers = []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def _work(pipe: Connection, rank: int, count: int, meeting: str) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=TIMEOUT),
    )
    while True:
        try:
            function, arguments = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer = (True, function(*arguments))
        except BaseException:
            answer = (False, traceback.format_exc())
        pipe.send(answer)
