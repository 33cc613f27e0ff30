"""A step is right, or refused before anything has moved: whatever was done to the tensors."""

from __future__ import annotations

import faulthandler
import os
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode

from stochbatch import SBS
from tests.optim.sharded.trainings import full, mesh_of
from tests.processes import Processes

both = pytest.mark.parametrize("fused", [False, True], ids=["eager", "native"])

STATE = ("grad_mean", "batches", "momentum_buffer", "step", "skipped_steps")
LARGE = 5000
"""So many floats that a step which writes beyond a tensor's memory does not go unnoticed."""


class Training:
    """Two parameters after one step, with the gradients of the next one."""

    def __init__(self, fused: bool | None, **options: Any) -> None:
        self.bystander, self.victim = Parameter(torch.randn(7, 5)), Parameter(torch.randn(LARGE))
        options = {"lr": 0.1, "momentum": 0.9, "probability": 0.5, **options}
        self.optimizer = SBS([self.bystander, self.victim], **options, fused=fused)
        self.grads()
        self.optimizer.step()
        self.grads()

    def grads(self) -> None:
        for weight in (self.bystander, self.victim):
            weight.grad = torch.randn(weight.shape)

    def tensor(self, what: str) -> Tensor:
        held = {"weight": self.victim.data, "gradient": self.victim.grad}
        return held[what] if what in held else self.optimizer.state[self.victim][what]

    def unharmed(self) -> list[Tensor]:
        """Return copies of what no test touches: a step that is refused leaves it alone."""
        state = self.optimizer.state[self.bystander]
        held = [self.bystander, state["grad_mean"], state["batches"], state["momentum_buffer"]]
        return [tensor.detach().clone() for tensor in held]

    def outcome(self) -> str:
        """Step; return "refused", or else what happened."""
        before = self.unharmed()
        try:
            self.optimizer.step()
        except (RuntimeError, ValueError):
            same = all(map(torch.equal, before, self.unharmed()))
            return "refused" if same else "refused after something had moved"
        return "stepped"


def survived(function: Callable[[], str]) -> str:
    """Return what a function returns in a forked process, or how the process died."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's threads are not used there
        child = os.fork()
    if child == 0:
        try:
            faulthandler.disable()
            torch.set_num_threads(1)
            os.write(writing, function().encode())
        except BaseException as error:
            os.write(writing, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read().decode()
    status = os.waitpid(child, 0)[1]
    return answer if status == 0 else f"died of signal {os.WTERMSIG(status)}"


# ---- A step is all or nothing ----


@pytest.mark.parametrize("option", ["lr", "weight_decay"])
def test_what_float32_cannot_hold_is_the_same_to_every_kernel(option: str) -> None:
    seen = []
    for fused in (False, True):
        weight = Parameter(torch.ones(20))
        try:
            optimizer = SBS([weight], **{option: 1e39}, probability=1.0, fused=fused)
            weight.grad = torch.ones(20)
            optimizer.step()
            seen.append(str(weight.tolist()))
        except (RuntimeError, ValueError) as error:
            assert torch.equal(weight, torch.ones(20))
            seen.append(type(error).__name__)
    assert seen[0] == seen[1]


@pytest.mark.parametrize("fused", [False, None], ids=["eager", "chosen"])
def test_a_parameter_that_cannot_be_written_stops_the_others_too(fused: bool | None) -> None:
    first, expanded = Parameter(torch.ones(3)), Parameter(torch.ones(1).expand(5))
    optimizer = SBS([first, expanded], probability=1.0, fused=fused)
    first.grad, expanded.grad = torch.ones(3), torch.ones(5)
    with pytest.raises((RuntimeError, ValueError)):
        optimizer.step()
    assert torch.equal(first, torch.ones(3))
    assert optimizer.steps == 0


# ---- Memory ----


def _freed(fused: bool, what: str, bytes_left: int) -> str:
    training = Training(fused)
    training.tensor(what).untyped_storage().resize_(bytes_left)
    return training.outcome()


@both
@pytest.mark.parametrize("what", ["weight", "gradient", *STATE])
def test_freed_memory_is_not_touched(
    what: str, fused: bool, request: pytest.FixtureRequest
) -> None:
    assert survived(lambda: _freed(fused, what, 0)) == "refused"


@both
@pytest.mark.parametrize("what", ["weight", "gradient", "grad_mean", "batches", "momentum_buffer"])
def test_memory_that_ends_early_is_not_overrun(
    what: str, fused: bool, request: pytest.FixtureRequest
) -> None:
    assert survived(lambda: _freed(fused, what, 40)) == "refused"


CHANGES: dict[str, Callable[[dict[str, Tensor], str], object]] = {
    "resized": lambda state, name: state[name].resize_(3),
    "cut by its data": lambda state, name: setattr(state[name], "data", state[name][:3].clone()),
    "cut": lambda state, name: state.update({name: state[name][:3].clone()}),
    "longer": lambda state, name: state.update({name: state[name].repeat(2)}),
    "on another device": lambda state, name: state.update({name: state[name].to("meta")}),
}
UNSAFE = {
    "resized": ("grad_mean", "batches", "momentum_buffer"),
    "cut by its data": ("batches", "momentum_buffer"),
    "cut": ("batches", "momentum_buffer"),
    "longer": ("batches", "momentum_buffer"),
    "on another device": ("batches", "momentum_buffer"),
}


@both
@pytest.mark.parametrize("what", ["grad_mean", "batches", "momentum_buffer"])
@pytest.mark.parametrize("change", CHANGES)
def test_state_that_does_not_fit_is_refused(
    change: str, what: str, fused: bool, request: pytest.FixtureRequest
) -> None:
    def changed() -> str:
        training = Training(fused)
        CHANGES[change](training.optimizer.state[training.victim], what)
        return training.outcome()

    assert survived(changed) == "refused"


@both
def test_the_count_of_batches_stays_at_its_largest(fused: bool) -> None:
    largest = 2**15 - 1
    training = Training(fused, probability=1e-7)
    batches = training.tensor("batches").fill_(largest - 1)
    for gradient in (1.0, float("nan"), 1.0):
        training.victim.grad.fill_(gradient)
        training.optimizer.step()
        assert torch.equal(batches, torch.full_like(batches, largest))


def test_misaligned_weights_and_gradients_move_like_others() -> None:
    def at_odd_address(values: Tensor) -> Tensor:
        raw = bytearray(b"\0" + values.numpy().tobytes())
        return torch.frombuffer(raw, dtype=torch.float32, offset=1)

    values, grads = torch.randn(1003), torch.randn(1003)
    weights = [Parameter(values.clone()), Parameter(at_odd_address(values))]
    for weight, grad in zip(weights, (grads.clone(), at_odd_address(grads)), strict=True):
        weight.grad = grad
        SBS([weight], momentum=0.9, fused=True).step()
    assert weights[1].data_ptr() % 4
    assert torch.equal(*weights)


# ---- What sees every operation ----


class Recorder(TorchDispatchMode):
    """Notes the names of all operations."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("fused", [None, True], ids=["chosen", "native"])
def test_a_dispatch_mode_sees_the_step(fused: bool | None) -> None:
    torch.manual_seed(1)
    watched = Training(fused)
    torch.manual_seed(1)
    other = Training(fused)
    with Recorder() as recorder:
        watched.optimizer.step()
    other.optimizer.step()
    assert any("aten.div" in name for name in recorder.seen)  # the average is the only division
    assert torch.equal(watched.victim, other.victim)


def test_a_traced_step_contains_the_update() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    training = Training(None)

    def step(scale: Tensor) -> Tensor:
        training.optimizer.step()
        return training.victim * scale

    traced = make_fx(step)(torch.ones(()))
    before = training.victim.detach().clone()
    with torch.no_grad():
        traced(torch.ones(()))
    assert not torch.equal(training.victim, before)


# ---- One odd parameter must not slow down all ----


class Subclass(Tensor):
    """Changes nothing."""


ODD: dict[str, Callable[[], Tensor]] = {
    "a float64 scalar": lambda: torch.tensor(0.5, dtype=torch.float64),
    "a transposed weight": lambda: torch.randn(12, 8).T,
    "a subclass": lambda: torch.randn(8).as_subclass(Subclass),
    "a complex vector": lambda: torch.randn(8, dtype=torch.complex64),
}


def _with_odd(odd: Tensor | None, fused: bool | None) -> tuple[SBS, list[Tensor]]:
    torch.manual_seed(2)
    plain = [Parameter(torch.randn(512, 512)) for _ in range(8)]
    weights: list[Tensor] = [*plain, *([] if odd is None else [Parameter(odd.clone())])]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    return SBS(weights, momentum=0.9, lambd=-1.0, fused=fused), weights


def _seconds(optimizer: SBS) -> float:
    start = time.process_time()
    optimizer.step()
    return time.process_time() - start


@pytest.mark.parametrize("odd", ODD)
def test_one_odd_parameter_does_not_slow_down_the_others(odd: str) -> None:
    value = ODD[odd]()
    (with_it, _), (without, _) = _with_odd(value, None), _with_odd(None, None)
    for optimizer in (with_it, without):
        optimizer.step()
    times = [(_seconds(with_it), _seconds(without)) for _ in range(9)]
    slow, fast = (sorted(column)[4] for column in zip(*times, strict=True))
    assert slow < 3 * fast


@pytest.mark.parametrize("odd", ODD)
def test_beside_an_odd_parameter_every_bit_is_the_eager_one(odd: str) -> None:
    value = ODD[odd]()
    (chosen, weights), (eager, others) = _with_odd(value, None), _with_odd(value, False)
    for _ in range(3):
        chosen.step()
        eager.step()
    for weight, other in zip(weights, others, strict=True):
        assert torch.equal(weight, other)
        for name in ("grad_mean", "batches", "momentum_buffer", "step"):
            assert torch.equal(chosen.state[weight][name], eager.state[other][name])


# ---- Shards ----


def _place(names: Sequence[str]) -> list[Any]:
    """Return placements; "0/2" is a strided cut of dimension 0 with the split factor 2."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    result: list[Any] = []
    for name in names:
        axis, _, factor = name.partition("/")
        if name == "all":
            result.append(Replicate())
        else:
            cut = _StridedShard(int(axis), split_factor=int(factor)) if factor else Shard(int(axis))
            result.append(cut)
    return result


def _coins(mesh: Sequence[int], names: Sequence[str], fused: bool) -> str:
    from torch.distributed.tensor import distribute_tensor

    shape = (16, 6)
    how, values = _place(names), torch.arange(96.0).view(shape)
    sharded = Parameter(distribute_tensor(values.clone(), mesh_of(*mesh), how))
    whole = Parameter(values.clone())
    whole.grad = torch.ones(shape)
    sharded.grad = distribute_tensor(torch.ones(shape), mesh_of(*mesh), how)
    try:
        SBS([sharded], probability=0.5, fused=fused).step()
    except (TypeError, ValueError, NotImplementedError):
        return "right or refused"
    SBS([whole], probability=0.5).step()
    return "right or refused" if torch.equal(full(sharded), whole) else "other coins"


@both
@pytest.mark.distributed
def test_a_strided_cut_without_a_second_one(fused: bool, two: Processes) -> None:
    assert two.run(_coins, (2,), ["0/2"], fused) == ["right or refused"] * 2


@both
@pytest.mark.parametrize("names", [["0", "0/2"], ["0/2", "all"], ["all", "0/2"]])
@pytest.mark.distributed
def test_strided_cuts_on_a_mesh_of_two_axes(names: list[str], fused: bool, four: Processes) -> None:
    assert four.run(_coins, (2, 2), names, fused) == ["right or refused"] * 4


@both
@pytest.mark.parametrize("names", [["0/2", "0"], ["0", "0"], ["0", "1"]])
@pytest.mark.distributed
def test_cuts_of_fsdp_with_tensor_parallelism_are_right(
    names: list[str], fused: bool, four: Processes
) -> None:
    assert four.run(_coins, (2, 2), names, fused) == ["right or refused"] * 4


def _join(fused: bool) -> tuple[list[float], int] | str:
    import torch.distributed as dist

    torch.manual_seed(0)
    network = nn.parallel.DistributedDataParallel(nn.Linear(4, 3))
    optimizer = SBS(network.parameters(), probability=0.5, fused=fused)

    def train(batches: int) -> None:
        for _ in range(batches):
            network(torch.ones(2, 4)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    try:
        with network.join():
            train(2 + 3 * dist.get_rank())
        train(2)
    except (RuntimeError, ValueError):
        return "refused"
    return network.module.weight.flatten().tolist(), optimizer.steps


@both
@pytest.mark.distributed
@pytest.mark.xfail(strict=True, reason="nothing tells an optimizer of DDP's join()")
def test_after_uneven_inputs_all_ranks_move_alike(fused: bool, two: Processes) -> None:
    one, other = two.run(_join, fused)
    assert one == other
