"""The step as one call of compiled C++, for float32 parameters on the CPU.

``native.cpp`` is built with the machine's C++ compiler at first use, in about 3 seconds,
and kept in the user's cache. It gives the weights, averages and counts of the eager step
to the last bit. Where it cannot be built or does not apply, the eager step runs.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from array import array
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch  # brings its OpenMP library, which the compiled step then shares
from torch import Tensor

from stochbatch.optim.fusing import UnavailableError, give_up, wanted
from stochbatch.optim.kinds import KINDS, kind_by_shape
from stochbatch.optim.pieces import memory_layout
from stochbatch.optim.probability import CROSS_LAYER
from stochbatch.optim.state import (
    BATCHES,
    GRAD_MEAN,
    MOMENTUM_BUFFER,
    SKIPPED_STEPS,
    STEP,
    TALLY,
    complete_state,
    counters_of,
)

SOURCE = Path(__file__).with_name("native.cpp")
FLAGS = (
    "-O2",
    "-march=native",
    "-std=c++17",
    "-fPIC",
    "-shared",
    "-fopenmp",
    "-ffp-contract=off",  # fuse only where torch fuses
    "-fno-math-errno",  # neither this
    "-fno-trapping-math",  # nor this changes a value
    "-fschedule-insns",  # keeps vectors that are written side by side, side by side
    "-Wno-psabi",  # a remark about passing vectors between compilers: nothing here does
)
BUILD_SECONDS = 120
_EPOCH_OVER = 4  # the bit of the C function's answer that says so


def compiler() -> str:
    """Return the C++ compiler: the one that CXX names, or the usual one."""
    return os.environ.get("CXX") or "g++"


def cache_folder() -> Path:
    """Return where built libraries are kept."""
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "stochbatch"


def _machine() -> bytes:
    """Return what ``-march=native`` looks at: several machines may share one cache."""
    try:
        first = Path("/proc/cpuinfo").read_bytes().split(b"\n\n")[0]
    except OSError:
        return platform.processor().encode()
    return b"".join(
        line for line in first.splitlines() if line.startswith((b"flags", b"model", b"Features"))
    )


def build() -> Path:
    """Return the built library: the cached one, if there is one for this machine."""
    program = shutil.which(compiler())
    if program is None:
        raise UnavailableError(f"no C++ compiler: {compiler()!r} is not on the PATH")
    identity = hashlib.sha256(SOURCE.read_bytes())
    version = subprocess.run([program, "--version"], capture_output=True, check=False).stdout
    for part in (version, " ".join(FLAGS).encode(), _machine(), platform.platform().encode()):
        identity.update(part)
    target = cache_folder() / f"native-{identity.hexdigest()[:24]}.so"
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Built beside, then renamed: processes that build at once do each other no harm.
        handle, partial = tempfile.mkstemp(suffix=".partial", dir=target.parent)
        os.close(handle)
    except OSError as error:
        raise UnavailableError(f"the cache cannot be written: {error}") from error
    try:
        subprocess.run(
            [program, *FLAGS, str(SOURCE), "-o", partial],
            capture_output=True,
            text=True,
            check=True,
            timeout=BUILD_SECONDS,
        )
        os.replace(partial, target)
    except subprocess.CalledProcessError as error:
        complaint = next((line for line in error.stderr.splitlines() if "error" in line), "")
        raise UnavailableError(f"{program} failed: {complaint or error}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"{program} failed: {error}") from error
    finally:
        Path(partial).unlink(missing_ok=True)
    return target


@functools.cache
def _load() -> Any:
    try:
        function = ctypes.CDLL(str(build())).sbs_step
    except UnavailableError as error:
        return error
    except OSError as error:
        return UnavailableError(f"the built library does not load: {error}")
    integer, pointer = ctypes.c_int64, ctypes.c_void_p
    function.argtypes = [
        *(integer, pointer, pointer, pointer),  # number of layers, Memory, Facts, Options
        *(ctypes.c_uint64, pointer, pointer, integer),  # seed, step, skipped steps, period
        *(ctypes.c_int, ctypes.c_int, pointer),  # skip_nonfinite, threads, scores
    ]
    function.restype = ctypes.c_int
    return function


def library() -> Any:
    """Return the step's C function; raise ``UnavailableError`` if there is none. Tried once."""
    found = _load()
    if isinstance(found, UnavailableError):
        raise found
    return found


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
        group["momentum_mode"] == "push",
        group["maximize"],
    )


class _Row(NamedTuple):
    """A layer as it was checked: good until one of its addresses is another."""

    where: tuple[int, ...]
    stride: tuple[int, ...]


class Taken(NamedTuple):
    """What is known of a step that was taken."""

    epoch_over: bool
    moved: list[dict[str, Tensor]]
    """The states of the parameters that had a gradient."""


class NativeStep:
    """Takes the steps of one optimizer.

    A call costs some ten reads of tensor attributes a layer. So layouts are looked at only
    when an address is not the last step's.
    """

    def __init__(self) -> None:
        self._wanted: bool | None = None
        self._rows: dict[int, _Row] = {}
        self._facts: tuple[object, array[int]] | None = None

    def wanted(self, groups: Sequence[dict[str, Any]]) -> bool:
        """Return whether to try; decided once, with a warning if it cannot be had."""
        if self._wanted is None:
            self._wanted = wanted(groups, ("cpu",))
            if self._wanted:
                try:
                    library()
                except UnavailableError as reason:
                    self._wanted = False
                    give_up(groups[0]["fused"], reason)
        return self._wanted

    def take(
        self,
        groups: Sequence[dict[str, Any]],
        states: MutableMapping[Tensor, dict[str, Tensor]],
    ) -> Taken | None:
        """Take a step, or return None if it cannot, with nothing changed."""
        present: list[int] = []
        where: list[int] = []
        moved: list[dict[str, Tensor]] = []
        weights: list[Tensor] = []
        kept: list[Tensor] = []  # gradients in another layout: alive until the call is over
        number = -1
        for group in groups:
            momentum = bool(group["momentum"])
            for weight in group["params"]:
                number += 1
                grad = weight.grad
                if grad is None:
                    continue
                if weight.dtype is not torch.float32 or grad.layout is not torch.strided:
                    return None
                state = states.get(weight)
                if not state or (momentum and MOMENTUM_BUFFER not in state):
                    if not weight.is_cpu:
                        return None
                    if not weight.numel():
                        continue
                    state = states[weight]
                    complete_state(state, weight, counters_of(states, weight.device), momentum)
                own = (
                    weight.data_ptr(),
                    state[GRAD_MEAN].data_ptr(),
                    state[BATCHES].data_ptr(),
                    state[MOMENTUM_BUFFER].data_ptr() if momentum else 0,
                    state[TALLY].data_ptr(),
                )
                row = self._rows.get(number)
                if row is None or row.where != own:
                    row = self._check(weight, state, own)
                    if row is None:
                        return None
                    self._rows[number] = row
                    self._facts = None
                if grad.stride() != row.stride:
                    grad = torch.empty_like(weight).copy_(grad)
                    kept.append(grad)
                present.append(number)
                moved.append(state)
                weights.append(weight)
                where += (own[0], grad.data_ptr(), *own[1:])
        if not present:
            return Taken(False, moved)
        answer = self._call(groups, present, where, moved[0])
        torch.autograd.graph.increment_version(weights)
        return Taken(bool(answer & _EPOCH_OVER), moved)

    @staticmethod
    def _check(weight: Tensor, state: dict[str, Tensor], where: tuple[int, ...]) -> _Row | None:
        shaped = [state[name] for name in (GRAD_MEAN, BATCHES, MOMENTUM_BUFFER) if name in state]
        alike = all(tensor.stride() == weight.stride() for tensor in shaped)
        if not weight.is_cpu or memory_layout(weight) is None or not alike:
            return None
        return _Row(where, weight.stride())

    def _call(
        self,
        groups: Sequence[dict[str, Any]],
        present: list[int],
        where: list[int],
        state: dict[str, Tensor],
    ) -> int:
        memory = array("q", where)
        facts = self._layer_facts(groups, present)
        options = array("d", [field for group in groups for field in _options(group)])
        first = groups[0]
        answer: int = library()(
            len(present),
            memory.buffer_info()[0],
            facts.buffer_info()[0],
            options.buffer_info()[0],
            first["seed"],
            state[STEP].data_ptr(),
            state[SKIPPED_STEPS].data_ptr(),
            first["steps_per_epoch"] or 0,
            first["skip_nonfinite"],
            torch.get_num_threads(),
            None,
        )
        return answer

    def _layer_facts(self, groups: Sequence[dict[str, Any]], present: list[int]) -> array[int]:
        """Return the fields of ``Facts`` in native.cpp, one row a layer."""
        key = (present, [group.get("kind") for group in groups])
        if self._facts is None or self._facts[0] != key:
            numbers: list[int] = []
            members = ((place, p) for place, g in enumerate(groups) for p in g["params"])
            chosen = set(present)
            for number, (place, weight) in enumerate(members):
                if number in chosen:
                    layout = memory_layout(weight)
                    assert layout is not None, "checked when the layer was first seen"
                    kind = groups[place].get("kind") or kind_by_shape(weight)
                    numbers += (weight.numel(), *layout, number, KINDS.index(kind), place)
            self._facts = (key, array("q", numbers))
        return self._facts[1]
