"""Under DDP and FSDP2 the masks of ``Masked`` are those of one process, also after a resume."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from stochbatch import Masked, param_groups
from tests.optim.sharded.test_checkpoint import AFTER, BEFORE, same, train
from tests.optim.sharded.test_fsdp import Net, sharded
from tests.optim.sharded.trainings import NAMES, full, mesh_of
from tests.processes import Processes

pytestmark = pytest.mark.distributed

OPTIONS: list[dict[str, Any]] = [
    {"probability": 0.5},
    {"probability": 0.5, "coin": "tensor", "rescale": True},
    {"probability": None, "lambd": -1.0, "alpha": 0.5},
    {"probability": None, "lambd": -1.0, "coin": "none"},
]


def optimizer_of(model: nn.Module, options: dict[str, Any]) -> Masked:
    return Masked(torch.optim.AdamW(param_groups(model), lr=0.01), seed=3, **options)


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: full(p.detach()).clone() for name, p in model.named_parameters()}


def alone(options: dict[str, Any], steps: int = BEFORE + AFTER) -> dict[str, torch.Tensor]:
    model = Net()
    train(model, optimizer_of(model, options), range(steps))
    return weights(model)


def _fsdp(shape: tuple[int, ...]) -> tuple[list[list[str]], list[int]]:
    """Return what differs from one process, and the collectives of an adaptive step."""
    differences, collectives = [], []
    for options in OPTIONS:
        model = sharded(mesh_of(*shape))
        optimizer = optimizer_of(model, options)
        train(model, optimizer, range(BEFORE + AFTER))
        differences.append(same(weights(model), alone(options)))
        with CommDebugMode() as communication:
            optimizer.step()
        collectives.append(int(communication.get_total_counts()))
    return differences, collectives


def test_two_shards(two: Processes) -> None:
    for differences, collectives in two.run(_fsdp, (2,)):
        assert differences == [[]] * len(OPTIONS)
        assert collectives == [0, 0, 1, 1]


@pytest.mark.parametrize("shape", [(4,), (2, 2)], ids=["sharded", "hybrid"])
def test_four_shards(shape: tuple[int, ...], four: Processes) -> None:
    for differences, collectives in four.run(_fsdp, shape):
        assert differences == [[]] * len(OPTIONS)
        assert collectives == [0, 0, 1, 1]


def _tensor_parallel() -> list[list[str]]:
    differences = []
    for options in OPTIONS:
        mesh = mesh_of(2, 2)
        model = Net()
        model.norm = nn.Identity()  # it would see half of the features
        whole = copy.deepcopy(model)
        plan = {"first": ColwiseParallel(), "second": RowwiseParallel()}
        parallelize_module(model, mesh[NAMES[1]], plan)
        fully_shard(model, mesh=mesh[NAMES[0]])
        optimizer, other = optimizer_of(model, options), optimizer_of(whole, options)
        for step in range(3):
            batch = torch.randn(8, 10, generator=torch.Generator().manual_seed(step))
            model(batch).square().mean().backward()
            for part, p in zip(model.parameters(), whole.parameters(), strict=True):
                p.grad = full(part.grad).clone()
            optimizer.step()
            other.step()
            optimizer.zero_grad()
        differences.append(same(weights(model), weights(whole)))
    return differences


def test_with_tensor_parallelism(four: Processes) -> None:
    for differences in four.run(_tensor_parallel):
        assert differences == [[]] * len(OPTIONS)


def _ddp() -> list[tuple[bytes, bool]]:
    found = []
    for options in OPTIONS:
        model = Net()
        whole = copy.deepcopy(model)
        parallel = DistributedDataParallel(model)
        optimizer, other = optimizer_of(model, options), optimizer_of(whole, options)
        torch.manual_seed(1234 + torch.distributed.get_rank())  # what no coin may depend on
        for _ in range(4):
            parallel(torch.randn(4, 10)).square().mean().backward()
            for one, two in zip(model.parameters(), whole.parameters(), strict=True):
                two.grad = one.grad.clone()
            optimizer.step()
            other.step()
            optimizer.zero_grad()
        values = torch.cat([p.detach().flatten() for p in model.parameters()])
        found.append((values.numpy().tobytes(), same(weights(model), weights(whole)) == []))
    return found


def test_ddp(two: Processes) -> None:
    first, second = two.run(_ddp)
    assert first == second
    assert all(equal for _, equal in first)


def _save(folder: str, options: dict[str, Any]) -> None:
    model = sharded(mesh_of(2))
    optimizer = optimizer_of(model, options)
    train(model, optimizer, range(BEFORE))
    values, state = get_state_dict(model, optimizer)
    dcp.save({"model": values, "optimizer": state}, checkpoint_id=folder)


def _go_on(folder: str, options: dict[str, Any], model: nn.Module) -> dict[str, torch.Tensor]:
    optimizer = optimizer_of(model, options)
    values, state = get_state_dict(model, optimizer)
    assert optimizer.steps == 0  # the step that made the state does not count
    dcp.load({"model": values, "optimizer": state}, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=values, optim_state_dict=state)
    assert optimizer.steps == BEFORE
    train(model, optimizer, range(BEFORE, BEFORE + AFTER))
    return weights(model)


def _go_on_sharded(folder: str, options: dict[str, Any], count: int) -> dict[str, torch.Tensor]:
    return _go_on(folder, options, sharded(mesh_of(count)))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
@pytest.mark.parametrize("options", [OPTIONS[0], OPTIONS[2]], ids=["fixed", "adaptive"])
def test_a_resume_into_another_world_size(
    options: dict[str, Any], two: Processes, four: Processes, tmp_path: Path
) -> None:
    folder, expected = str(tmp_path), alone(options)
    two.run(_save, folder, options)
    assert same(_go_on(folder, options, Net()), expected) == []
    for processes in (two, four):
        for found in processes.run(_go_on_sharded, folder, options, processes.count):
            assert same(found, expected) == []


def _full_state(options: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Gather the whole state in rank 0, and give it to other shards by way of rank 0."""
    model, other = sharded(mesh_of(2)), sharded(mesh_of(2))
    optimizer, second = optimizer_of(model, options), optimizer_of(other, options)
    train(model, optimizer, range(BEFORE))
    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_optimizer_state_dict(model, optimizer, options=whole)
    other.load_state_dict(model.state_dict())
    by_rank_0 = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_optimizer_state_dict(other, second, optim_state_dict=state, options=by_rank_0)
    train(other, second, range(BEFORE, BEFORE + AFTER))
    return weights(other)


def test_a_full_state_dict_by_way_of_one_rank(two: Processes) -> None:
    for found in two.run(_full_state, OPTIONS[2]):
        assert same(found, alone(OPTIONS[2])) == []


def _rate_of_zero() -> tuple[int, int]:
    """Step at a rate of 0, as a warm-up may begin, with a gradient that only rank 0 sees."""
    model = sharded(mesh_of(2))
    optimizer = Masked(torch.optim.SGD(model.parameters(), lr=0.0))
    for number, parameter in enumerate(model.parameters()):
        parameter.grad = torch.zeros_like(parameter)
        if number == 0 and torch.distributed.get_rank() == 0:
            parameter.grad.to_local()[0] = 1.0
    optimizer.step()
    steps = optimizer.steps
    for parameter in model.parameters():
        parameter.grad.zero_()
    optimizer.step()
    return steps, optimizer.steps


def test_ranks_agree_on_what_a_dummy_step_is(two: Processes) -> None:
    assert two.run(_rate_of_zero) == [(1, 1), (1, 1)]


def _flattened() -> list[str]:
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(nn.Linear(4, 4), device_id=torch.device("cpu"))
    found = []
    optimizer = Masked(torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1))
    for call in (
        lambda: Masked(torch.optim.SGD(model.parameters(), lr=0.1)),
        lambda: optimizer.add_param_group({"params": model.parameters()}),
    ):
        try:
            call()
        except TypeError as error:
            found.append(str(error))
    assert len(optimizer.param_groups) == 1
    return found


def test_flattened_parameters_are_refused(two: Processes) -> None:
    for texts in two.run(_flattened):
        assert len(texts) == 2
        assert all("fully_shard" in text for text in texts)


def _gradients_on_one_rank() -> str:
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = mesh_of(2)
    weight = nn.Parameter(distribute_tensor(torch.zeros(6, 4), mesh, [Shard(0)]))
    optimizer = Masked(torch.optim.SGD([weight], lr=0.1), probability=None)
    grad = distribute_tensor(torch.ones(6, 4), mesh, [Shard(0)])
    if dist.get_rank() == 0:
        weight.grad = grad
    try:
        optimizer.step()
    except RuntimeError as error:
        return str(error)
    return "moved"


def test_gradients_on_one_rank_alone_are_an_error_on_all(two: Processes) -> None:
    for said in two.run(_gradients_on_one_rank):
        assert "some ranks have no gradient where others have one" in said
