"""The step as one call of compiled C++, for float32 parameters on the CPU.

``native.cpp`` gives the weights, averages and counts of the eager step
to the last bit. Where it cannot be built or does not apply, the eager step runs.
"""

from __future__ import annotations

from array import array
from collections.abc import MutableMapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stochbatch.optim.kernels.build import library, ready
from stochbatch.optim.kernels.fallback import UnavailableError, give_up, wanted
from stochbatch.optim.kinds import KINDS, kind_by_shape
from stochbatch.optim.optimizer import STEP
from stochbatch.optim.pieces import memory_layout
from stochbatch.optim.probability import CROSS_LAYER
from stochbatch.optim.roster import Layer
from stochbatch.optim.state import (
    BATCHES,
    GRAD_MEAN,
    MOMENTUM_BUFFER,
    SKIPPED_STEPS,
    TALLY,
    Counters,
    complete_state,
    counters_of,
)

_CPU = torch.device("cpu")
_TYPES = (Tensor, torch.nn.Parameter)
_FLOAT, _STRIDED = torch.float32, torch.strided


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


class _Row(NamedTuple):
    """A layer as it was checked: good as long as all of this is so."""

    where: tuple[int, ...]
    """Addresses of weight, mean, batches, buffer (0 without one) and tally."""
    shape: torch.Size
    stride: tuple[int, ...]


class _Gathered(NamedTuple):
    """The layers of a step, checked."""

    present: list[int]
    where: list[int]
    """The fields of ``Memory`` in native.cpp, layer by layer."""
    weights: list[Tensor]
    moved: list[dict[str, Tensor]]
    grads: list[Tensor]
    """Kept alive until the step is over."""


def _plain(tensor: Tensor) -> bool:
    """Return whether a tensor's memory is what it seems: float32 numbers on the CPU."""
    return (
        type(tensor) in _TYPES
        and tensor.dtype is torch.float32
        and tensor.layout is torch.strided
        and tensor.is_cpu
    )


def _all_float32(groups: Sequence[dict[str, Any]]) -> bool:
    """Return whether all parameters are that may move; those at rest may be anything."""
    return all(
        weight.dtype is torch.float32
        for group in groups
        for weight in group["params"]
        if weight.requires_grad or weight.grad is not None
    )


def _step(
    groups: Sequence[dict[str, Any]],
    count: int,
    memory: array[int],
    facts: array[int],
    counters: Counters,
    known: int | None = None,
    seen: int | None = None,
) -> bool:
    options = array("d", [field for group in groups for field in _options(group)])
    first = groups[0]
    counts = library().step(
        count,
        memory.buffer_info()[0],
        facts.buffer_info()[0],
        options.buffer_info()[0],
        first["seed"],
        counters.step.data_ptr(),
        counters.skipped_steps.data_ptr(),
        first["skip_nonfinite"],
        torch.get_num_threads(),
        known,
        seen,
    )
    return bool(counts)


class NativeParts:
    """A step of layers that are parts of tensors; made for each, as gradients come and go.

    Args:
        groups: of the optimizer.
        layers: from which :func:`can_move` has returned True, with their states complete.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], layers: Sequence[Layer]) -> None:
        self.groups, self.layers = groups, layers
        places = {id(group): place for place, group in enumerate(groups)}
        self._held: list[Tensor] = []
        where: list[int] = []
        numbers: list[int] = []
        for layer in layers:
            weight, grad, mean, batches, *buffer = layer.tensors()
            if not grad.data_ptr() or grad.stride() != weight.stride() or grad.is_neg():
                grad = torch.empty_like(weight).copy_(grad)
            self._held += (weight, grad, mean, batches, *buffer)
            held = [tensor.data_ptr() for tensor in (weight, grad, mean, batches, *buffer)]
            where += (*held, *([] if buffer else [0]), 0)
            layout = memory_layout(weight, layer.window)
            assert layout is not None, "checked before"
            kind, place = KINDS.index(layer.kind), places[id(layer.group)]
            numbers += (weight.numel(), layer.size, *layout, layer.index, kind, place)
        self._memory, self._facts = array("q", where), array("q", numbers)

    def sums(self) -> Tensor:
        """Return sum and sum of squared deviations of the parts' |g|, as two rows."""
        result = torch.empty(len(self.layers), 2, dtype=torch.float64, device=_CPU)
        library().measure(
            len(self.layers),
            self._memory.buffer_info()[0],
            self._facts.buffer_info()[0],
            torch.get_num_threads(),
            result.data_ptr(),
        )
        return result.T

    def take(self, sums: Tensor, counters: Counters) -> tuple[bool, Tensor]:
        """Take the step, given the sums of the whole tensors.

        Returns:
            Whether it counts; sums of probabilities and batches, one row a layer.
        """
        known = sums.T.contiguous()
        seen = torch.zeros(len(self.layers), 2, dtype=torch.float64, device=_CPU)
        counts = _step(
            self.groups,
            len(self.layers),
            self._memory,
            self._facts,
            counters,
            known.data_ptr(),
            seen.data_ptr(),
        )
        torch.autograd.graph.increment_version([layer.weight for layer in self.layers])
        return counts, seen


def can_move(layers: Sequence[Layer], counters: Counters) -> bool:
    """Return whether a native step can move these layers, of which some are ``DTensor``."""
    return counters.step.is_cpu and all(
        _plain(layer.weight)
        and _plain(layer.grad)
        and layer.grad.shape == layer.weight.shape
        and memory_layout(layer.weight, layer.window) is not None
        for layer in layers
    )


class NativeStep:
    """Takes the steps of one optimizer.

    A call costs some ten reads of tensor attributes a layer. So layouts are looked at only
    when an address is not the last step's.
    """

    def __init__(self) -> None:
        self._wanted: tuple[bool | None, bool] | None = None
        self._rows: dict[int, _Row] = {}
        self._facts: tuple[object, array[int]] | None = None

    def wanted(self, groups: Sequence[dict[str, Any]]) -> bool:
        """Return whether to try; a failure to build is told once."""
        fused = groups[0]["fused"]
        if self._wanted is None or self._wanted[0] is not fused:
            eligible = wanted(groups, ("cpu",))
            if eligible and not _all_float32(groups):
                return False  # not for good: a network may become one of float32
            if eligible and not fused and not ready():
                return False  # for now: eager steps give the same weights
            try:
                if eligible:
                    library()
            except UnavailableError as reason:
                eligible = False
                give_up(fused, reason)
            self._wanted = (fused, eligible)
        return self._wanted[1]

    def take(
        self,
        groups: Sequence[dict[str, Any]],
        states: MutableMapping[Tensor, dict[str, Tensor]],
    ) -> bool:
        """Take a step, or return False if it cannot, with nothing changed."""
        gathered = self._gather(groups, states)
        if gathered is None and self._settle(groups, states):
            gathered = self._gather(groups, states)
        if gathered is None:
            return False
        if gathered.present:
            if not gathered.moved[0][STEP].is_cpu:  # others moved, on another device
                return False
            counters = Counters(gathered.moved[0][STEP], gathered.moved[0][SKIPPED_STEPS])
            self._call(groups, gathered.present, gathered.where, counters)
            torch.autograd.graph.increment_version(gathered.weights)
        return True

    def _gather(
        self,
        groups: Sequence[dict[str, Any]],
        states: MutableMapping[Tensor, dict[str, Tensor]],
    ) -> _Gathered | None:
        """Return the layers with a gradient; None if one is not as it was last time.

        This is the part of a step that is paid for every tensor, so it is written flat.
        """
        result = _Gathered([], [], [], [], [])
        present, where, weights, moved, grads = result
        rows, number = self._rows, -1
        for group in groups:
            momentum = bool(group["momentum"])
            for weight in group["params"]:
                number += 1
                grad = weight.grad
                if grad is None:
                    continue
                row = rows.get(number)
                state = states.get(weight)
                if (
                    row is None
                    or state is None
                    or GRAD_MEAN not in state
                    or (momentum and MOMENTUM_BUFFER not in state)
                ):
                    if weight.numel():
                        return None
                    continue
                own = (
                    weight.data_ptr(),
                    state[GRAD_MEAN].data_ptr(),
                    state[BATCHES].data_ptr(),
                    state[MOMENTUM_BUFFER].data_ptr() if momentum else 0,
                    state[TALLY].data_ptr(),
                )
                stride = row.stride
                if (
                    own != row.where
                    or weight.stride() != stride
                    or weight.shape != row.shape
                    or weight.dtype is not _FLOAT
                    or grad.dtype is not _FLOAT
                    or grad.shape != row.shape
                    or type(grad) not in _TYPES
                    or grad.layout is not _STRIDED
                ):
                    return None
                address = grad.data_ptr()  # 0 if forward-mode differentiation left no memory
                if not address or grad.stride() != stride or grad.is_neg():
                    grad = torch.empty_like(weight).copy_(grad)
                    address = grad.data_ptr()
                present.append(number)
                where += (own[0], address, own[1], own[2], own[3], own[4])
                weights.append(weight)
                moved.append(state)
                grads.append(grad)
        return result

    def _settle(
        self,
        groups: Sequence[dict[str, Any]],
        states: MutableMapping[Tensor, dict[str, Tensor]],
    ) -> bool:
        """Check all layers, complete their states and note where they are.

        Return whether they are for this step; if not, nothing has been changed.
        """
        members = [(group, weight) for group in groups for weight in group["params"]]
        layers = [
            (number, weight, bool(group["momentum"]))
            for number, (group, weight) in enumerate(members)
            if weight.grad is not None
        ]
        counters = counters_of(states, _CPU)
        if not counters.step.is_cpu or not all(
            _plain(weight)
            and _plain(weight.grad)
            and weight.grad.shape == weight.shape
            and memory_layout(weight) is not None
            for _, weight, _ in layers
        ):
            return False
        for number, weight, momentum in layers:
            if not weight.numel():
                continue
            state = states[weight]
            complete_state(state, weight, counters, momentum)
            names = (GRAD_MEAN, BATCHES, MOMENTUM_BUFFER, TALLY)
            held = [state[n].data_ptr() if momentum or n != MOMENTUM_BUFFER else 0 for n in names]
            self._rows[number] = _Row((weight.data_ptr(), *held), weight.shape, weight.stride())
        self._facts = None
        return True

    def _call(
        self,
        groups: Sequence[dict[str, Any]],
        present: list[int],
        where: list[int],
        counters: Counters,
    ) -> None:
        memory, facts = array("q", where), self._layer_facts(groups, present)
        _step(groups, len(present), memory, facts, counters)

    def _layer_facts(self, groups: Sequence[dict[str, Any]], present: list[int]) -> array[int]:
        """Return the fields of ``Facts`` in native.cpp, one row a layer."""
        key = (present, [(group.get("kind"), len(group["params"])) for group in groups])
        if self._facts is None or self._facts[0] != key:
            numbers: list[int] = []
            members = ((place, p) for place, g in enumerate(groups) for p in g["params"])
            chosen = set(present)
            for number, (place, weight) in enumerate(members):
                if number in chosen:
                    layout = memory_layout(weight)
                    assert layout is not None, "checked when the layer was first seen"
                    kind = groups[place].get("kind") or kind_by_shape(weight)
                    size = weight.numel()
                    numbers += (size, size, *layout, number, KINDS.index(kind), place)
            self._facts = (key, array("q", numbers))
        return self._facts[1]
