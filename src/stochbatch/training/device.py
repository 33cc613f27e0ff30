"""The device that a training runs on, and its memory."""

from __future__ import annotations

import torch

from stochbatch.training.exceptions import RunError


def choose_device(name: str) -> torch.device:
    """Return the device of this name; ``"auto"`` is the best there is."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, ValueError) as error:
        raise RunError(f"no device {name!r} here: {str(error).splitlines()[0]}") from None
    return device


def is_out_of_memory(error: Exception) -> bool:
    """Return whether memory ran out, of the host or of a device."""
    # torch's error of the host's memory has no class of its own, but names the allocator.
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    )
