"""What the process does that will be killed.

A server imports this once, with all that the first trial of a process makes torch import; its
children then start at once.
"""

import os
import time

import torch

from stochbatch.training import Trial, run

Trial()


def survive(description: str, root: str) -> None:
    """Train, on a disk that is slow to confirm a write."""
    torch.set_num_threads(1)
    confirm = os.fsync

    def slowly(file: int) -> None:
        time.sleep(0.03)
        confirm(file)

    os.fsync = slowly
    run(Trial.from_file(description), root, checkpoint_seconds=0.02)
