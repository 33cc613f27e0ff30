"""A step as a few launches of Triton's functions, for parameters on a GPU.

One launch measures all layers and one per parameter group moves them, so the number of layers
hardly shows in the time of a step. Nothing is compiled anew when a rate, a gradient or the step
number changes, and nothing waits for the device.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from itertools import groupby
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stochbatch.optim.kernels.eager import Verdict
from stochbatch.optim.kernels.fallback import UnavailableError, give_up
from stochbatch.optim.layers import Layer
from stochbatch.optim.memory import PLAIN
from stochbatch.optim.pieces import memory_layout
from stochbatch.optim.plan import Plan
from stochbatch.optim.probability import Scores
from stochbatch.optim.update import rates_of, rule_of

DEVICES = ("cuda", "xpu")
"""Types of device that Triton compiles for."""
WORTH = 1 << 14
"""Number of scalars from which on it is worth the first compilation, unless ``fused`` is True."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""What weights and gradients may be."""
BLOCK, WARPS = 2048, 8

_LARGEST = 1 << 31
_failure: UnavailableError | None = None
_tried: set[tuple[object, ...]] = set()
"""Variants of ``triton_step.move`` that are known to compile."""


def _code() -> ModuleType:
    """Return the functions in Triton's language, which comes with torch for GPUs."""
    from stochbatch.optim.kernels import triton_step

    return triton_step


def fits(layer: Layer, grad: Tensor) -> bool:
    """Return whether this kernel can move a layer."""
    weight, held = layer.weight, layer.scalars.held()
    return (
        weight.device.type in DEVICES
        and all(
            type(tensor) in PLAIN and tensor.layout is torch.strided for tensor in (*held, grad)
        )
        and weight.dtype in DTYPES
        and grad.dtype in DTYPES
        and weight.numel() < _LARGEST
        and memory_layout(weight, layer.window) is not None
        and all(tensor.stride() == weight.stride() for tensor in held)
    )


def rows_of(plan: Plan, fused: bool | None) -> list[Rows]:
    """Return the layers that this kernel moves, by GPU; none if it cannot be had.

    Then there is one warning, or an error if ``fused``.
    """
    global _failure
    found: dict[torch.device, list[int]] = {}
    for place, (layer, grad) in enumerate(zip(plan.layers, plan.grads, strict=True)):
        if fits(layer, grad):
            found.setdefault(layer.weight.device, []).append(place)
    size = sum(plan.layers[place].weight.numel() for own in found.values() for place in own)
    if not found or (size < WORTH and not fused):
        return []
    if _failure is None:
        try:
            return [Rows(plan, places) for places in found.values()]
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # a compiler can fail in any way; the step must go on
            first = str(error).strip().splitlines()[:1] or [""]
            _failure = UnavailableError(f"Triton failed: {type(error).__name__}: {first[0]}")
            give_up(fused, _failure)
    elif fused:
        give_up(fused, _failure)
    return []


class _Launch(NamedTuple):
    """Layers that are moved by one launch: of one parameter group, of the same dtypes."""

    group: dict[str, Any]
    like: Tensor
    """The first one's weight."""
    first: int
    """Number of its first chunk."""
    chunks: int
    dtypes: tuple[Any, Any, Any]
    """Of weights, gradients and counts."""
    rule: dict[str, bool]


class Rows:
    """The layers of a plan that lie on one GPU, in tables.

    Args:
        plan: the plan.
        places: of the layers that are moved here.
    """

    def __init__(self, plan: Plan, places: list[int]) -> None:
        self.places = places
        layers = plan.layers
        self.device = layers[places[0]].weight.device
        self._weights = [layers[place].weight for place in places]
        self._addresses: list[int] = []
        self._grads = self._table([0] * len(places))
        self._memory = self._table([_memory(layers[place]) for place in places])
        self._facts = self._table([_facts(layers[place], place) for place in places])
        self._roots = plan.roots.to(self.device).contiguous()
        self._launches, chunks, ranges = _divide(plan, places)
        self._chunks = self._table(chunks).to(torch.int32)
        self._ranges = self._table(ranges).to(torch.int32)
        self._partials = torch.empty(len(chunks), 3, dtype=torch.float64, device=self.device)
        self._try_out(plan)

    def _table(self, rows: list[Any]) -> Tensor:
        table = torch.tensor(rows, dtype=torch.int64, device="cpu")
        if self.device.type == "cpu":
            return table
        return table.pin_memory().to(self.device, non_blocking=True)

    def _here(self) -> AbstractContextManager[Any]:
        """Return a context in which launches go to this GPU."""
        if self.device.type == "cpu":
            return nullcontext()
        context: AbstractContextManager[Any] = torch.get_device_module(self.device).device(
            self.device
        )
        return context

    def _try_out(self, plan: Plan) -> None:
        """Launch what was never launched before, without effect: it may fail to compile.

        So a failure comes before any weight has moved.
        """
        variants = {
            (self.device.type, *map(str, each.dtypes), *each.rule.items())
            for each in self._launches
        }
        if variants <= _tried:
            return
        step = torch.zeros((), dtype=torch.int64, device=self.device)
        nothing = torch.zeros((), dtype=torch.bool, device=self.device)
        scores = Scores(*torch.zeros(3, len(plan.layers), device=self.device).unbind())
        self.measure(plan)
        self._move(plan, scores, nothing, step)
        _tried.update(variants)

    def _find(self, plan: Plan) -> list[Tensor]:
        """Enter where the gradients are; return copies, to be kept until the step is over."""
        kept, addresses = [], []
        for place, weight in zip(self.places, self._weights, strict=True):
            grad = plan.grads[place]
            if grad.stride() != weight.stride() or grad.is_neg() or not grad.data_ptr():
                grad = torch.empty_like(weight, dtype=grad.dtype).copy_(grad)
                kept.append(grad)
            addresses.append(grad.data_ptr())
        if addresses != self._addresses:
            self._addresses, self._grads = addresses, self._table(addresses)
        return kept

    def measure(self, plan: Plan) -> Tensor:
        r"""Return [2, places]: sum of \|g\| and of its squared deviations of what is here."""
        code, kept = _code(), self._find(plan)
        with self._here():
            for dtypes, launches in groupby(self._launches, lambda each: each.dtypes[:2]):
                own = list(launches)
                code.measure[sum(launch.chunks for launch in own),](
                    *(self._grads, self._facts, self._chunks, self._partials, own[0].first),
                    GRAD=dtypes[1],
                    BLOCK=BLOCK,
                    num_warps=WARPS,
                    enable_fp_fusion=False,
                )
            result = self._combined(moments=True)
        del kept
        return result.T

    def move(self, plan: Plan, scores: Scores, verdict: Verdict) -> Tensor:
        """Move the layers; return [places, 2]: sums of probabilities and of batches."""
        applies = verdict.applies.to(self.device)
        own = Scores(*(vector.to(self.device) for vector in scores.in_dtype(torch.float32)))
        return self._move(plan, own, applies, plan.step.to(self.device))

    def _move(self, plan: Plan, scores: Scores, applies: Tensor, step: Tensor) -> Tensor:
        code, kept = _code(), self._find(plan)
        known, applies = torch.stack(scores), applies.to(torch.int32)
        with self._here():
            for launch in self._launches:
                rates, fixed = rates_of(launch.group, launch.like), launch.group["probability"]
                tensor = isinstance(rates.lr, Tensor)
                code.move[launch.chunks,](
                    *(self._memory, self._grads, self._facts, self._chunks, self._partials),
                    *(self._roots, known, step, applies, rates.lr if tensor else known),
                    *(launch.first, len(plan.layers), 0.0 if tensor else float(rates.lr)),
                    *(0.0 if fixed is None else float(fixed), float(rates.momentum)),
                    float(rates.weight_decay),
                    *launch.dtypes,
                    **launch.rule,
                    DECAYS=rule_of(launch.group).decays,
                    LR_TENSOR=tensor,
                    BLOCK=BLOCK,
                    num_warps=WARPS,
                    enable_fp_fusion=False,
                )
            result = self._combined(moments=False)
        del kept
        torch.autograd.graph.increment_version(self._weights)
        return result

    def _combined(self, moments: bool) -> Tensor:
        result = torch.empty(len(self.places), 2, dtype=torch.float64, device=self.device)
        _code().combine[len(self.places),](
            self._partials,
            self._ranges,
            result,
            MOMENTS=moments,
            BLOCK=256,
            enable_fp_fusion=False,
        )
        return result


def _memory(layer: Layer) -> list[int]:
    weight, mean, batches, buffer = layer.scalars
    return [0 if held is None else held.data_ptr() for held in (weight, mean, batches, buffer)]


def _facts(layer: Layer, place: int) -> list[int]:
    layout = memory_layout(layer.weight, layer.window)
    assert layout is not None, "it fits"
    return [layer.weight.numel(), place, layout.counts, *layout]


def _divide(
    plan: Plan, places: list[int]
) -> tuple[list[_Launch], list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the launches, the chunks as (row, start), and each row's range of chunks."""
    import triton.language as tl

    names = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
    counts = (tl.int16, tl.int32)
    found: list[tuple[Any, ...]] = []
    for row, place in enumerate(places):
        layer, grad = plan.layers[place], plan.grads[place]
        own = (DTYPES.index(layer.weight.dtype), DTYPES.index(grad.dtype), layer.wide)
        found.append((*own, row, layer))
    order = {id(layer.group): number for number, layer in enumerate(plan.layers)}
    found.sort(key=lambda each: (*each[:3], order[id(each[4].group)], each[3]))
    launches: list[_Launch] = []
    chunks: list[tuple[int, int]] = []
    ranges = [(0, 0)] * len(places)
    for (weight, grad, wide, _), rows in groupby(
        found, lambda each: (*each[:3], id(each[4].group))
    ):
        first = len(chunks)
        for *_, row, layer in rows:
            begin = len(chunks)
            chunks += [(row, start) for start in range(0, layer.weight.numel(), BLOCK)]
            ranges[row] = begin, len(chunks)
            head = layer
        if len(chunks) > first:
            dtypes = names[DTYPES[weight]], names[DTYPES[grad]], counts[wide]
            more = len(chunks) - first
            launches.append(_Launch(head.group, head.weight, first, more, dtypes, _rule(head)))
    return launches, chunks, ranges


def _rule(layer: Layer) -> dict[str, bool]:
    """Return what a variant of ``triton_step.move`` is compiled for."""
    rule, coin = rule_of(layer.group), layer.scalars.batches is not None
    return {
        "COIN": coin,
        "ADAPTIVE": layer.group["probability"] is None,
        "MOMENTUM": layer.scalars.momentum_buffer is not None,
        "NESTEROV": rule.nesterov,
        "LINEAR": rule.lr_scaling == "linear" and coin,
        "MAXIMIZE": rule.maximize,
    }
