"""A sharded parameter moves as the whole one would: the same coins, and the same weights.

Statistics are sums in double precision, whose order depends on how a tensor is cut. They are
rounded to float32 before a coin sees them, so that for float32 parameters everything is the
same to the last bit (but for one step in about 10**8, estimated). With float64 the last places
of a weight may differ.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from stochbatch import SBS
from stochbatch.optim import shards
from tests.optim.sharded.trainings import NAMES, Pair, compare, full, mesh_of, placements
from tests.processes import Processes

pytestmark = pytest.mark.distributed

OPTIONS: list[dict[str, Any]] = [
    {"lr": 0.1},
    {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "lambd": -1.0},
    {"lr": 0.1, "momentum": 0.9, "cross_layer": "weighted"},
    {"lr": 0.1, "probability": 0.3, "lr_scaling": "linear", "maximize": True},
]


@pytest.mark.parametrize("fused", [False, True], ids=["eager", "fused"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("axis", [0, 1])
def test_parts_move_as_the_whole_to_the_last_bit(
    axis: int, options: dict[str, Any], fused: bool, two: Processes
) -> None:
    for collectives, different in two.run(compare, (2,), (axis,), {**options, "fused": fused}):
        assert different == []
        assert collectives == [1, 1, 1, 1]


@pytest.mark.parametrize("fused", [False, True], ids=["eager", "fused"])
@pytest.mark.parametrize(
    "axes", [(0, 0), (0, 1), (1, 0), (1, 1), (None, 0), (0, None), (None, 1)], ids=str
)
def test_on_a_mesh_of_two_axes(axes: tuple[int | None, ...], fused: bool, four: Processes) -> None:
    options = {"lr": 0.1, "momentum": 0.5, "fused": fused}
    for collectives, different in four.run(compare, (2, 2), axes, options):
        assert different == []
        assert collectives == [1, 1, 1, 1]


def test_four_processes_for_tensors_with_fewer_rows(four: Processes) -> None:
    shapes = [(2, 3), (1,), (3, 2), (5,)]
    for collectives, different in four.run(compare, (4,), (0,), {"lr": 0.1}, shapes):
        assert different == []
        assert collectives == [1, 1, 1, 1]


def test_replicated_parameters_need_no_collective(two: Processes) -> None:
    for fused in (False, True):
        for collectives, different in two.run(compare, (2,), (None,), {"lr": 0.1, "fused": fused}):
            assert different == []
            assert collectives == [0, 0, 0, 0]


def test_parts_cut_along_several_late_dimensions(four: Processes) -> None:
    shapes = [(3, 4, 5, 2), (40, 30, 20)]
    for axes in ((1, 2), (2, 1)):
        for _, different in four.run(compare, (2, 2), axes, {"lr": 0.1}, shapes):
            assert different == []


def _gradients_of_whole_tensors_alone(fused: bool) -> tuple[int, bool, bool]:
    whole = torch.arange(24.0).reshape(8, 3)
    cut = nn.Parameter(distribute_tensor(whole, mesh_of(2), placements([0])))
    ours, theirs = nn.Parameter(torch.ones(60)), nn.Parameter(torch.ones(60))
    optimizer, reference = (SBS(weights, fused=fused) for weights in ([cut, ours], [whole, theirs]))
    for step in range(4):
        ours.grad = torch.arange(60.0) * (step + 1)
        theirs.grad = ours.grad.clone()
        optimizer.step()
        reference.step()
    return optimizer.steps, torch.equal(ours, theirs), torch.equal(full(cut), whole)


@pytest.mark.parametrize("fused", [False, True], ids=["eager", "fused"])
def test_whole_tensors_beside_parts_may_be_the_only_ones_to_move(
    fused: bool, two: Processes
) -> None:
    for found in two.run(_gradients_of_whole_tensors_alone, fused):
        assert found == (4, True, True)


def _mixed_ways_of_cutting() -> tuple[list[int], list[str]]:
    mesh = mesh_of(2)
    ways = [placements([axis]) for axis in (0, None, 1, 0, None, 1)]
    pair = Pair(mesh, ways, lr=0.1, momentum=0.5)
    return [pair.step() for _ in range(4)], pair.differences()


def test_parameters_may_be_cut_each_in_its_own_way(two: Processes) -> None:
    for collectives, different in two.run(_mixed_ways_of_cutting):
        assert different == []
        assert collectives == [1, 1, 1, 1]


def _other_dtype(name: str) -> tuple[float, bool]:
    dtype = getattr(torch, name)
    pair = Pair(mesh_of(2), [placements([0])] * 6, dtype=dtype, lr=0.1, momentum=0.5)
    for _ in range(4):
        pair.step()
    gaps = [
        float((whole - full(part)).abs().max())
        for whole, part in zip(pair.whole, pair.parts, strict=True)
    ]
    return max(gaps), all("batches" not in name for name in pair.differences())


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("bfloat16", 0.0)])
def test_other_dtypes(dtype: str, tolerance: float, two: Processes) -> None:
    for gap, same_coins in two.run(_other_dtype, dtype):
        assert same_coins
        assert gap <= tolerance


def _skipped_step() -> tuple[list[str], int, int]:
    import torch.distributed as dist

    pair = Pair(mesh_of(2), [placements([0])] * 6, lr=0.1)
    pair.step()
    pair.grads()
    for parameter in (*pair.whole, *pair.parts):
        if parameter is pair.whole[2]:
            parameter.grad[-1, 0] = torch.inf
        if parameter is pair.parts[2] and dist.get_rank() == 1:  # the last rows are there
            parameter.grad.to_local()[-1, 0] = torch.inf
    pair.of_whole.step()
    pair.of_parts.step()
    skipped = pair.of_parts.skipped_steps
    pair.step()
    return pair.differences(), skipped, pair.of_parts.steps


def test_an_infinity_in_one_process_stops_the_step_in_all(two: Processes) -> None:
    for different, skipped, steps in two.run(_skipped_step):
        assert different == []
        assert (skipped, steps) == (1, 2)


def _a_gradient_is_missing_here() -> tuple[list[str], list[str]]:
    import torch.distributed as dist

    pair = Pair(mesh_of(2), [placements([0])] * 6, lr=0.1)
    pair.step()
    said = []
    for missing in ((0, 3), range(6)):
        seed = pair.seed
        pair.grads()
        if dist.get_rank() == 1:
            for number in missing:
                pair.parts[number].grad = None
        try:
            pair.of_parts.step()
        except RuntimeError as error:
            said.append(str(error))
        pair.seed = seed
    pair.step()
    return said, pair.differences()


def test_a_gradient_that_one_process_lacks_is_said_by_all_and_changes_nothing(
    two: Processes,
) -> None:
    for said, different in two.run(_a_gradient_is_missing_here):
        assert len(said) == 2
        assert all("no gradient where others have one" in text for text in said)
        assert different == []


def _nobody_has_it() -> list[str]:
    pair = Pair(mesh_of(2), [placements([0])] * 6, lr=0.1)
    for missing in ((0, 3), range(6), ()):
        pair.grads()
        for number in missing:
            pair.parts[number].grad = pair.whole[number].grad = None
        pair.of_whole.step()
        pair.of_parts.step()
    return pair.differences()


def test_a_gradient_that_nobody_has_is_left_out(two: Processes) -> None:
    assert two.run(_nobody_has_it) == [[], []]


def _other_order() -> str:
    import torch.distributed as dist

    pair = Pair(mesh_of(2), [placements([0])] * 6, lr=0.1)
    pair.grads()
    parts = pair.parts if dist.get_rank() == 0 else pair.parts[::-1]
    try:
        type(pair.of_parts)(parts, lr=0.1).step()
    except RuntimeError as error:
        return str(error)
    return "nothing was raised"


def test_parameters_in_another_order_are_noticed(two: Processes) -> None:
    for text in two.run(_other_order):
        assert "another order" in text


def _groups_after_loading() -> list[int]:
    """Count process groups: a mesh that is not the world has those of its dimensions."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

    mesh = DeviceMesh("cpu", [[0], [1]])  # of which all processes must know
    made = len(dist.distributed_c10d._world.pg_map)
    if dist.get_rank() > 1:
        return []
    pair = Pair(mesh, [placements([0, None])] * 6, lr=0.1)
    found = []
    for _ in range(3):
        pair.step()
        pair.of_parts.load_state_dict(pair.of_parts.state_dict())
        found.append(len(dist.distributed_c10d._world.pg_map) - made)
    return found if pair.differences() == [] else [-1]


def test_a_mesh_that_is_not_the_world_needs_no_group_more(four: Processes) -> None:
    """To make one, NCCL may want all processes, of which some know nothing of the mesh."""
    assert four.run(_groups_after_loading) == [[0, 0, 0], [0, 0, 0], [], []]


def _on_a_part_of_the_world(
    ranks: list[list[int]], cuts: list[int | None]
) -> tuple[list[int], list[str]]:
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

    mesh = DeviceMesh("cpu", ranks)
    if dist.get_rank() not in mesh.mesh:
        return [], []
    pair = Pair(mesh, [placements(cuts)] * 6, lr=0.1, momentum=0.9)
    return [pair.step() for _ in range(4)], pair.differences()


def test_a_mesh_of_two_dimensions_that_is_not_the_world() -> None:
    with closing(Processes(5)) as five:
        for ranks, cuts in (
            ([[0, 3], [1, 4]], [0, 1]),
            ([[0, 3], [1, 4]], [None, 0]),
            ([[1, 2], [3, 4]], [0, 0]),
            ([[1, 2, 4]], [0, 0]),
            ([[0], [2], [3]], [0, None]),
        ):
            members = {rank for row in ranks for rank in row}
            for rank, found in enumerate(five.run(_on_a_part_of_the_world, ranks, cuts)):
                # One collective a dimension.
                assert found == ([2] * 4 if rank in members else [], [])


def _gradient_with_other_placements() -> list[str]:
    mesh = mesh_of(2)
    pair = Pair(mesh, [placements([0])] * 6, lr=0.1)
    for _ in range(3):
        pair.grads()
        for part in pair.parts:
            part.grad = part.grad.redistribute(mesh, placements([None]))
        pair.of_whole.step()
        pair.of_parts.step()
    return pair.differences()


def test_a_gradient_that_is_cut_otherwise_is_cut_anew(two: Processes) -> None:
    assert two.run(_gradient_with_other_placements) == [[], []]


def _reports(fused: bool) -> tuple[list[Any], list[Any], list[Any]]:
    options = {"lr": 0.1, "lambd": -1.0, "fused": fused}
    pair = Pair(mesh_of(2), [placements([axis]) for axis in (0, None, 1, 0, 1, 0)], **options)
    for _ in range(3):
        pair.step()
    of_whole = [(row.size, row.probability, row.batches) for row in pair.of_whole.layer_report()]
    seen = pair.of_parts.layer_report()
    of_parts = [(row.size, row.probability, row.batches) for row in seen]
    pair.step()
    rest = [row.batches for row in pair.of_parts.layer_report()]
    return of_whole, of_parts, rest


@pytest.mark.parametrize("fused", [False, True], ids=["eager", "fused"])
def test_a_report_is_of_the_whole_layers(fused: bool, two: Processes) -> None:
    for of_whole, of_parts, rest in two.run(_reports, fused):
        for one, other in zip(of_whole, of_parts, strict=True):
            assert other == pytest.approx(one, rel=1e-5)
        assert all(batches >= 1 for batches in rest)


def _new_epoch() -> list[str]:
    pair = Pair(mesh_of(2), [placements([0])] * 6, lr=0.1)
    for _ in range(2):
        pair.step()
        pair.of_whole.new_epoch()
        pair.of_parts.new_epoch()
    pair.step()
    return pair.differences()


def test_a_new_epoch_forgets_the_averages_of_parts(two: Processes) -> None:
    assert two.run(_new_epoch) == [[], []]


def _named_mesh_and_submesh() -> list[str]:
    mesh = mesh_of(2, 2)
    inner = mesh[NAMES[1]]
    pair = Pair(mesh, [placements([0, 1])] * 6, lr=0.1)
    # The first two parameters know nothing of the other axis.
    for number in (0, 1):
        value = full(pair.parts[number].data)
        pair.parts[number] = torch.nn.Parameter(distribute_tensor(value, inner, placements([0])))
    pair.of_parts = type(pair.of_parts)(pair.parts, lr=0.1)
    for _ in range(3):
        pair.grads()
        for number in (0, 1):
            grad = pair.whole[number].grad
            pair.parts[number].grad = distribute_tensor(grad.clone(), inner, placements([0]))
        pair.of_whole.step()
        pair.of_parts.step()
    return pair.differences()


def test_some_parameters_on_a_part_of_the_mesh(four: Processes) -> None:
    assert four.run(_named_mesh_and_submesh) == [[], [], [], []]


def _without_looking() -> tuple[str, list[int], bool]:
    """Drop a gradient in one process, with steps that look only if something changed."""
    import torch.distributed as dist

    pair = Pair(mesh_of(2), [placements([0])] * 6, lr=0.1)
    may_look, shards._may_look = shards._may_look, lambda device: False
    try:
        for _ in range(2):
            pair.step()
        pair.grads()
        before = [part.data.to_local().clone() for part in pair.parts]
        if dist.get_rank() == 0:
            pair.parts[2].grad = None
        try:
            pair.of_parts.step()
            said = ""
        except RuntimeError as error:
            said = str(error)
    finally:
        shards._may_look = may_look
    after = [part.data.to_local() for part in pair.parts]
    still = all(torch.equal(one, two) for one, two in zip(before, after, strict=True))
    return said, [pair.of_parts.steps, pair.of_parts.skipped_steps], still


def test_who_does_not_look_does_not_move_either(two: Processes) -> None:
    (said, *first), (silent, *second) = two.run(_without_looking)
    assert "some ranks have no gradient where others have one" in said
    assert silent == ""
    assert first == [[2, 0], True]
    assert second == [[2, 1], True]


def _new_gradients() -> tuple[int, list[float]]:
    import torch.distributed as dist

    from stochbatch.optim import plan

    built = []
    real = plan._build
    plan._build = lambda *given: (built.append(1), real(*given))[1]
    try:
        mesh = mesh_of(2)
        weight = nn.Parameter(distribute_tensor(torch.zeros(6, 4), mesh, placements([0])))
        optimizer = SBS([weight], probability=0.25, lr=0.1)
        kept = []
        for step in range(5):
            grad = torch.full((6, 4), 1.0 + step)
            if dist.get_rank() == 0 or step == 0:  # ranks may differ in where gradients lie
                weight.grad = DTensor.from_local(grad, mesh, placements([None]), run_check=False)
                kept.append(weight.grad)
            optimizer.step()
        return len(built), [row.probability for row in optimizer.layer_report()]
    finally:
        plan._build = real


def test_gradients_elsewhere_in_memory_need_no_new_plan(two: Processes) -> None:
    for built, probabilities in two.run(_new_gradients):
        assert built == 1
        assert probabilities == [pytest.approx(0.25)]


def _copies() -> list[float]:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 1))
    weight = nn.Parameter(distribute_tensor(torch.zeros(6, 4), mesh, placements([None, 0])))
    optimizer = SBS([weight], probability=0.25)
    weight.grad = distribute_tensor(torch.ones(6, 4), mesh, placements([None, 0]))
    optimizer.step()
    return [row.probability for row in optimizer.layer_report()]


def test_a_report_counts_copies_once(two: Processes) -> None:
    assert two.run(_copies) == [[pytest.approx(0.25)]] * 2


def _sharded_later() -> list[bool]:
    weight = nn.Parameter(torch.zeros(6, 4))
    optimizer = SBS([weight])
    optimizer.layer_report()
    mesh = mesh_of(2)
    sharded = nn.Parameter(distribute_tensor(weight.data, mesh, placements([0])))
    optimizer.param_groups[0]["params"][0] = sharded
    sharded.grad = distribute_tensor(torch.ones(6, 4), mesh, placements([0]))
    optimizer.step()
    return [layer.window is not None for layer in optimizer._plans._plan.layers]


def test_parameters_that_are_sharded_later_are_seen_so(two: Processes) -> None:
    assert two.run(_sharded_later) == [[True]] * 2
