"""FSDP2: any cut of a network trains as the whole network does."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from stochbatch import SBS, param_groups
from tests.optim.sharded.trainings import NAMES, counted, full, mesh_of
from tests.processes import Processes

pytestmark = pytest.mark.distributed

OPTIONS: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3, "lambd": -1.0}


class Net(nn.Module):
    """Odd widths, so that no cut is even; a bias of three, so that some parts are empty."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(10, 70)
        self.norm = nn.LayerNorm(70)
        self.second = nn.Linear(70, 33)
        self.last = nn.Linear(33, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.second(torch.relu(self.norm(self.first(x))))))


class Training:
    """A network in parts, and beside it a whole one that is given the same gradients."""

    def __init__(self, model: nn.Module, whole: nn.Module, **options: Any) -> None:
        self.model, self.whole = model, whole
        self.optimizer = SBS(param_groups(model), **{**OPTIONS, **options})
        self.other = SBS(param_groups(whole), **{**OPTIONS, **options})
        self.steps = 0
        self.collectives: list[int] = []

    def step(self) -> None:
        self.steps += 1
        generator = torch.Generator().manual_seed(self.steps)
        batch = torch.randn(8, 10, generator=generator)
        self.model(batch).square().mean().backward()
        for part, whole in zip(self.model.parameters(), self.whole.parameters(), strict=True):
            whole.grad = full(part.grad).to(whole.dtype).clone()
        before = self.collectives[-1] if self.collectives else -1
        self.collectives.append(counted(self.optimizer, before))
        self.other.step()
        self.optimizer.zero_grad()

    def differences(self) -> list[str]:
        pairs = zip(self.model.named_parameters(), self.whole.parameters(), strict=True)
        found = []
        for (name, part), whole in pairs:
            if not torch.equal(full(part), whole):
                found.append(name)
            for key in ("batches", "grad_mean", "momentum_buffer"):
                held = self.optimizer.state[part][key]
                if not isinstance(held, DTensor) or held.placements != part.placements:
                    found.append(f"{key} of {name} is not cut as its weight is")
                if not torch.equal(full(held).double(), self.other.state[whole][key].double()):
                    found.append(f"{key} of {name}")
        return found


def sharded(mesh: Any = None, **options: Any) -> Net:
    model = Net()
    for part in (model.first, model.second):
        fully_shard(part, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def _train(shape: tuple[int, ...], fused: bool) -> tuple[list[str], list[int]]:
    training = Training(sharded(mesh_of(*shape)), Net(), fused=fused)
    for _ in range(5):
        training.step()
    return training.differences(), training.collectives


@pytest.mark.parametrize("fused", [False, True], ids=["eager", "fused"])
def test_two_processes(fused: bool, two: Processes) -> None:
    for different, collectives in two.run(_train, (2,), fused):
        assert different == []
        assert collectives == [1] * 5


@pytest.mark.parametrize("fused", [False, True], ids=["eager", "fused"])
@pytest.mark.parametrize("shape", [(4,), (2, 2)], ids=["sharded", "hybrid"])
def test_four_processes(shape: tuple[int, ...], fused: bool, four: Processes) -> None:
    for different, collectives in four.run(_train, shape, fused):
        assert different == []
        assert collectives == [1] * 5


def _even() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 32))


def _last_dimension() -> list[str]:
    def place(parameter: nn.Parameter) -> Shard:
        return Shard(parameter.dim() - 1)

    # FSDP2 cuts other dimensions than the first only evenly.
    model = fully_shard(_even(), mesh=mesh_of(2), shard_placement_fn=place)
    training = Training(model, _even())
    for _ in range(3):
        training.step()
    return training.differences()


def test_cut_along_the_last_dimension(two: Processes) -> None:
    assert two.run(_last_dimension) == [[], []]


def _mixed_precision() -> tuple[list[str], bool]:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    training = Training(sharded(mesh_of(2), mp_policy=policy), Net())
    for _ in range(4):
        training.step()
    return training.differences(), all(
        parameter.dtype == torch.float32 for parameter in training.model.parameters()
    )


def test_mixed_precision(two: Processes) -> None:
    for different, single in two.run(_mixed_precision):
        assert different == []
        assert single


def _tensor_parallel() -> tuple[list[str], list[int], list[str]]:
    mesh = mesh_of(2, 2)
    model = Net()
    whole = copy.deepcopy(model)
    plan = {"first": ColwiseParallel(use_local_output=True), "second": RowwiseParallel()}
    del model.norm, whole.norm  # it would see half of the features
    model.norm = whole.norm = nn.Identity()
    parallelize_module(model, mesh[NAMES[1]], plan)
    fully_shard(model, mesh=mesh[NAMES[0]])
    training = Training(model, whole)
    for _ in range(4):
        training.step()
    kinds = sorted({str(parameter.placements) for parameter in model.parameters()})
    return training.differences(), training.collectives, kinds


def test_with_tensor_parallelism(four: Processes) -> None:
    for different, collectives, kinds in four.run(_tensor_parallel):
        assert different == []
        assert collectives == [1] * 4
        assert len(kinds) > 2  # cut by one, by the other, by both


def _against_one_process() -> float:
    model, alone = sharded(mesh_of(2)), Net()
    optimizers = [SBS(param_groups(net), **OPTIONS) for net in (model, alone)]
    for step in range(10):
        batch = torch.randn(8, 10, generator=torch.Generator().manual_seed(step))
        for net, optimizer in zip((model, alone), optimizers, strict=True):
            net(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    pairs = zip(model.parameters(), alone.parameters(), strict=True)
    return max(float((full(part) - whole).abs().max()) for part, whole in pairs)


def test_a_whole_training_ends_as_in_one_process(two: Processes) -> None:
    assert max(two.run(_against_one_process)) < 1e-6
