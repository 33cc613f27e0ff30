"""A process that kills itself in the midst of a training.

A server imports this once, with all that the first trial of a process imports; its children then
start at once.
"""

import os
import signal
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from stochbatch import data
from stochbatch.training import Trial, run

data.load(Trial().dataset)


def survive(description: str, root: str, event: int) -> None:
    """Train, saving after every step, up to an event: a step, or a stage of writing a file.

    Killed when a file is about to be confirmed by the disk, only half of it is there.
    """
    torch.set_num_threads(1)
    left = event
    fsync, replace, unlink = os.fsync, os.replace, os.unlink

    def count(file: int | None = None) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            if file is not None:
                os.ftruncate(file, os.fstat(file).st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    def counted_fsync(file: int) -> None:
        count(file)
        fsync(file)

    def counted_replace(*paths: Any) -> None:
        count()
        replace(*paths)
        count()

    def counted_unlink(path: Any) -> None:
        count()
        unlink(path)

    os.fsync, os.replace, os.unlink = counted_fsync, counted_replace, counted_unlink
    register_optimizer_step_post_hook(lambda *_: count())
    run(Trial.from_file(description), root, checkpoint_seconds=0.0)
