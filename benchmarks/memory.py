"""Bytes of state for each scalar, and the largest temporaries of a step."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.models import MODELS, with_gradients
from benchmarks.result import Goal, Result
from benchmarks.step import OPTIMIZERS


class PeakMemory(TorchDispatchMode):
    """Counts the bytes of tensors that operations make, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known: set[int] = set()

    def _free(self, address: int, size: int) -> None:
        self.now -= size
        self.known.discard(address)

    def __torch_dispatch__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = {
            tensor.untyped_storage().data_ptr()
            for tensor in args
            if isinstance(tensor, torch.Tensor)
        }
        made = function(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (tuple, list)) else [made]:
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                address, size = storage.data_ptr(), storage.nbytes()
                if address and address not in given and address not in self.known:
                    self.known.add(address)
                    self.now += size
                    self.peak = max(self.peak, self.now)
                    weakref.finalize(storage, self._free, address, size)
        return made


def run(quick: bool) -> Result:
    """Measure state and temporaries on ResNet18, and on ResNet50 unless in a hurry."""
    result = Result(
        "memory: bytes of state a scalar; peak temporaries of a step, percent of the parameters",
        ["parameters", "optimizer", "bytes a scalar", "temporaries %"],
    )
    limits = {"SBS fused": 5.0, "SBS eager": 25.0}
    for name in ("ResNet18",) if quick else ("ResNet18", "ResNet50"):
        for key, maker in OPTIMIZERS.items():
            model = with_gradients(MODELS[name]())
            optimizer = maker(model)
            optimizer.step()
            scalars = sum(p.numel() for p in model.parameters())
            state = sum(
                value.numel() * value.element_size()
                for entry in optimizer.state.values()
                for value in entry.values()
                if isinstance(value, torch.Tensor)
            )
            with PeakMemory() as memory:
                optimizer.step()
            share = 100 * memory.peak / (4 * scalars)
            result.rows.append([name, key, state / scalars, share])
            for start, limit in limits.items():
                if key.startswith(start):
                    result.goals.append(Goal(f"{name}, {key}, temporaries %", share, limit))
    result.notes.append(
        "Temporaries are those that torch allocates; the compiled step itself holds a few "
        "kilobytes a thread and 40 bytes for each 65,536 scalars."
    )
    return result
