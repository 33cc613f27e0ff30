"""A step as one call of compiled C++, for parameters on the CPU.

``native.cpp`` gives the weights, averages and counts of the eager step to the last bit.
"""

from __future__ import annotations

from array import array
from typing import Any

import torch
from torch import Tensor

from stochbatch.optim.kernels.build import library, ready
from stochbatch.optim.kernels.eager import Verdict
from stochbatch.optim.kernels.fallback import UnavailableError, give_up
from stochbatch.optim.layers import Layer
from stochbatch.optim.memory import PLAIN
from stochbatch.optim.pieces import MemoryLayout, memory_layout
from stochbatch.optim.plan import Plan
from stochbatch.optim.probability import CROSS_LAYER, Scores, compute_dtype

__all__ = ["Rows", "fits", "library", "ready", "rows_of"]

_MEMORY = 6
"""Fields of ``Memory`` in native.cpp."""
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
"""What weights and gradients may be, in the order of ``Dtype`` in native.cpp."""
_NOWHERE = MemoryLayout(1, 1, 1)


def fits(layer: Layer, grad: Tensor) -> bool:
    """Return whether this kernel can move a layer."""
    dtype = layer.weight.dtype
    if not _plain(layer.weight) or not _plain(grad):
        return False
    if grad.dtype not in (dtype, compute_dtype(dtype)):
        return False
    layout = memory_layout(layer.weight, layer.window)
    return layout is not None and all(
        memory_layout(held, layer.window) == layout for held in layer.scalars.held()
    )


def rows_of(plan: Plan, fused: bool | None) -> tuple[list[Rows], bool]:
    """Return the layers that this kernel moves, and whether it is still being built.

    There are none while it is being built, nor if it cannot be had: then there is one warning, or
    an error if ``fused``.
    """
    if not plan.step.is_cpu:
        return [], False
    pairs = zip(plan.layers, plan.grads, strict=True)
    places = [place for place, pair in enumerate(pairs) if fits(*pair)]
    if not places or (not fused and not ready()):
        return [], bool(places)
    try:
        library()
    except UnavailableError as reason:
        give_up(fused, reason)
        return [], False
    return [Rows(plan, places)], False


def _plain(tensor: Tensor) -> bool:
    """Return whether a tensor's memory is what it seems: real numbers on the CPU."""
    return (
        type(tensor) in PLAIN
        and tensor.dtype in DTYPES
        and tensor.layout is torch.strided
        and tensor.is_cpu
    )


def _options(group: dict[str, Any]) -> tuple[float, ...]:
    """Return the fields of ``Options`` in native.cpp."""
    fixed = group["probability"]
    return (
        float(group["lr"]),
        group["alpha"],
        group["lambd"],
        -1.0 if fixed is None else fixed,
        group["momentum"],
        group["weight_decay"],
        CROSS_LAYER.index(group["cross_layer"]),
        group["lr_scaling"] == "linear",
        group["nesterov"],
        group["maximize"],
    )


class Rows:
    """The layers of a plan as native.cpp sees them.

    Args:
        plan: the plan.
        places: of the layers that are moved here. The others are there to be compared with.
    """

    def __init__(self, plan: Plan, places: list[int]) -> None:
        self.places = places
        self._weights = [plan.layers[place].weight for place in places]
        # Strides are in the stamp of the plan.
        self._copied = [
            plan.grads[place].stride() != plan.layers[place].weight.stride() for place in places
        ]
        groups = {id(layer.group): layer.group for layer in plan.layers}
        self._groups = list(groups.values())
        numbers = {key: number for number, key in enumerate(groups)}
        self._memory = array("q", [0] * (_MEMORY * len(plan.layers)))
        facts: list[int] = []
        chosen = set(places)
        for place, layer in enumerate(plan.layers):
            layout = memory_layout(layer.weight, layer.window) if place in chosen else None
            count = layer.weight.numel() if layout else 0
            own = (plan.classes[place], numbers[id(layer.group)], layer.wide)
            facts += (count, layer.size, *(layout or _NOWHERE), layer.member.number, *own)
            dtypes = (layer.weight.dtype, plan.grads[place].dtype) if layout else DTYPES[:1] * 2
            facts += map(DTYPES.index, dtypes)
        self._facts = array("q", facts)
        for place in places:
            weight, mean, batches, buffer = plan.layers[place].scalars
            tensors = (weight, None, mean, batches, buffer, plan.layers[place].tally)
            for field, tensor in enumerate(tensors):
                address = 0 if tensor is None else tensor.data_ptr()
                self._memory[_MEMORY * place + field] = address
        self._layers = (
            len(plan.layers),
            self._memory.buffer_info()[0],
            self._facts.buffer_info()[0],
        )
        self._counters = plan.step.data_ptr(), plan.skipped.data_ptr()
        self._library = library()

    def _find(self, plan: Plan) -> list[Tensor]:
        """Enter where the gradients are; return copies, to be kept until the step is over."""
        kept, memory, grads = [], self._memory, plan.grads
        for place, weight, copied in zip(self.places, self._weights, self._copied, strict=True):
            grad = grads[place]
            address = grad.data_ptr()  # 0 if forward-mode differentiation left no memory
            if copied or not address or grad.is_neg():
                grad = torch.empty_like(weight).copy_(grad)
                address = grad.data_ptr()
                kept.append(grad)
            memory[_MEMORY * place + 1] = address
        return kept

    def measure(self, plan: Plan) -> Tensor:
        r"""Return [2, places]: sum of \|g\| and of its squared deviations of what is here."""
        kept = self._find(plan)
        result = torch.empty(len(plan.layers), 2, dtype=torch.float64, device="cpu")
        self._library.measure(*self._layers, torch.get_num_threads(), result.data_ptr())
        del kept
        return result[self.places].T

    def move(self, plan: Plan, scores: Scores, verdict: Verdict) -> Tensor:
        """Move the layers, given the scores of all, if the step counts.

        Return [places, 2]: sums of probabilities and of batches of what is here.
        """
        seen = torch.zeros(len(plan.layers), 2, dtype=torch.float64, device="cpu")
        if verdict.applies:  # the layers are on the CPU: nothing waits
            known = torch.stack(scores, dim=1).contiguous()
            more = (torch.get_num_threads(), known.data_ptr(), seen.data_ptr())
            self._call(self._library.move, plan, self._counters[:1], more)
        return seen[self.places]

    def step(self, plan: Plan) -> None:
        """Measure and move all layers of a plan, count the step and enter it into the tallies."""
        more = (plan.options["skip_nonfinite"], torch.get_num_threads())
        self._call(self._library.step, plan, self._counters, more)

    def _call(
        self, function: Any, plan: Plan, counters: tuple[int, ...], more: tuple[int, ...]
    ) -> None:
        kept = self._find(plan)
        options = array("d", [field for group in self._groups for field in _options(group)])
        seed = plan.options["seed"]
        function(*self._layers, options.buffer_info()[0], seed, *counters, *more)
        del kept
        torch.autograd.graph.increment_version(self._weights)
