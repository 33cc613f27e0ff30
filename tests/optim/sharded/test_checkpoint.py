"""A checkpoint of two processes goes on in one, two or four as if nothing had happened."""

from __future__ import annotations

from pathlib import Path

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

from stochbatch import SBS, param_groups
from tests.optim.sharded.test_fsdp import OPTIONS, Net, sharded
from tests.optim.sharded.trainings import full, mesh_of
from tests.processes import Processes

pytestmark = pytest.mark.distributed

BEFORE, AFTER = 4, 4


def optimizer_of(model: nn.Module) -> SBS:
    return SBS(param_groups(model), **OPTIONS)


def train(model: nn.Module, optimizer: SBS, steps: range) -> None:
    """Take steps with gradients that depend on nothing but the step."""
    for step in steps:
        for number, parameter in enumerate(model.parameters()):
            generator = torch.Generator().manual_seed(1000 * step + number)
            grad = torch.randn(parameter.shape, generator=generator)
            parameter.grad = torch.zeros_like(parameter)
            _fill(parameter.grad, grad)
        optimizer.step()


def _fill(target: torch.Tensor, whole: torch.Tensor) -> None:
    from torch.distributed.tensor import DTensor, distribute_tensor

    if isinstance(target, DTensor):
        whole = distribute_tensor(whole, target.device_mesh, target.placements)
    target.copy_(whole)


def outcome(model: nn.Module, optimizer: SBS) -> dict[str, torch.Tensor]:
    """Return all weights and averages, whole."""
    found = {}
    for name, parameter in model.named_parameters():
        found[name] = full(parameter.detach()).clone()
        for key in ("batches", "grad_mean", "momentum_buffer"):
            found[f"{key} of {name}"] = full(optimizer.state[parameter][key]).double()
    found["steps"] = torch.tensor(optimizer.steps)
    return found


def undisturbed() -> dict[str, torch.Tensor]:
    model = Net()
    optimizer = optimizer_of(model)
    train(model, optimizer, range(BEFORE + AFTER))
    return outcome(model, optimizer)


def _save(folder: str) -> None:
    model = sharded(mesh_of(2))
    optimizer = optimizer_of(model)
    train(model, optimizer, range(BEFORE))
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder)


def _go_on(folder: str, model: nn.Module) -> dict[str, torch.Tensor]:
    optimizer = optimizer_of(model)
    weights, state = get_state_dict(model, optimizer)
    assert optimizer.steps == 0  # the step that made the state does not count
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    train(model, optimizer, range(BEFORE, BEFORE + AFTER))
    return outcome(model, optimizer)


def _go_on_sharded(folder: str, count: int) -> dict[str, torch.Tensor]:
    return _go_on(folder, sharded(mesh_of(count)))


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> list[str]:
    """Return the names of what differs."""
    assert one.keys() == two.keys()
    return [name for name in one if not torch.equal(one[name], two[name])]


@pytest.fixture(scope="module")
def saved(two: Processes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    two.run(_save, str(folder))
    return folder


def test_loading_in_two_processes(saved: Path, two: Processes) -> None:
    for found in two.run(_go_on_sharded, str(saved), 2):
        assert same(found, undisturbed()) == []


def test_loading_in_four_processes(saved: Path, four: Processes) -> None:
    for found in four.run(_go_on_sharded, str(saved), 4):
        assert same(found, undisturbed()) == []


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_loading_in_one_process(saved: Path) -> None:
    assert same(_go_on(str(saved), Net()), undisturbed()) == []


def _net(cut: str) -> nn.Module:
    """Return a network that is whole, in parts, or in parts but for one layer."""
    from torch.distributed.fsdp import fully_shard

    model = Net()
    parts = {"whole": (), "mixed": (model.first, model.second, model.last)}
    for part in parts.get(cut, (model.first, model.second, model)):
        fully_shard(part, mesh=mesh_of(2))
    return model


def _handed_over(source: str, target: str) -> dict[str, torch.Tensor]:
    """Train, gather the state in rank 0, give it to a network cut in another way, and go on."""
    import torch.distributed as dist

    model, other = _net(source), _net(target)
    first, second = optimizer_of(model), optimizer_of(other)
    train(model, first, range(BEFORE))
    gathered = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_optimizer_state_dict(model, first, options=gathered)
    assert bool(state) == (dist.get_rank() == 0)
    for entry in state.get("state", {}).values():
        assert entry["batches"].dtype == torch.int32
    with torch.no_grad():
        for one, two in zip(model.parameters(), other.parameters(), strict=True):
            _fill(two, full(one))
    given = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_optimizer_state_dict(other, second, optim_state_dict=state, options=given)
    train(other, second, range(BEFORE, BEFORE + AFTER))
    for parameter in other.parameters():
        sharded = hasattr(parameter, "placements")
        dtype = second.state[parameter]["batches"].dtype
        assert dtype == (torch.int32 if sharded else torch.int16)
    return outcome(other, second)


@pytest.mark.parametrize("target", ["whole", "mixed", "cut"])
@pytest.mark.parametrize("source", ["whole", "mixed", "cut"])
def test_a_state_goes_from_any_cut_to_any_other(source: str, target: str, two: Processes) -> None:
    for found in two.run(_handed_over, source, target):
        assert same(found, undisturbed()) == []


def _own_state_dict() -> dict[str, torch.Tensor]:
    model, other = sharded(mesh_of(2)), sharded(mesh_of(2))
    optimizer, second = optimizer_of(model), optimizer_of(other)
    train(model, optimizer, range(BEFORE))
    other.load_state_dict(model.state_dict())
    second.load_state_dict(optimizer.state_dict())
    train(other, second, range(BEFORE, BEFORE + AFTER))
    return outcome(other, second)


def test_the_optimizers_own_state_dict(two: Processes) -> None:
    for found in two.run(_own_state_dict):
        assert same(found, undisturbed()) == []


def _state_of_a_whole_optimizer() -> tuple[dict[str, torch.Tensor], str]:
    whole = Net()
    first = optimizer_of(whole)
    train(whole, first, range(BEFORE))
    model = sharded(mesh_of(2))
    optimizer = optimizer_of(model)
    for part, value in zip(model.parameters(), whole.parameters(), strict=True):
        with torch.no_grad():
            _fill(part, value.detach())
    optimizer.load_state_dict(first.state_dict())
    train(model, optimizer, range(BEFORE, BEFORE + AFTER))
    refused = ""
    try:
        first.load_state_dict(optimizer.state_dict())
    except ValueError as error:
        refused = str(error)
    return outcome(model, optimizer), refused


def test_a_whole_state_is_cut_and_a_cut_one_is_not_taken_for_whole(two: Processes) -> None:
    for found, refused in two.run(_state_of_a_whole_optimizer):
        assert same(found, undisturbed()) == []
        assert "torch.distributed.checkpoint" in refused


def _bad(what: str) -> str:
    from torch.distributed.tensor import DTensor, Partial, Replicate

    values = torch.zeros(4, dtype=torch.complex64 if what == "complex" else torch.float32)
    placement = Partial() if what == "partial" else Replicate()
    tensor = DTensor.from_local(values, mesh_of(2), [placement], run_check=False)
    try:
        SBS([tensor.requires_grad_()], lr=0.1)
    except TypeError as error:
        return str(error)
    return "nothing was raised"


@pytest.mark.parametrize(("what", "says"), [("complex", "complex"), ("partial", "sum over")])
def test_parts_that_cannot_be_moved_are_refused(what: str, says: str, two: Processes) -> None:
    for text in two.run(_bad, what):
        assert says in text
