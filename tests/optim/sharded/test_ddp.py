"""Under DDP every process draws the same coins, so all weights stay the same."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stochbatch import SBS, param_groups
from tests.processes import Processes

pytestmark = pytest.mark.distributed


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 100)
    )


def _train(bucket_view: bool, fused: bool) -> tuple[list[str], bool]:
    import torch.distributed as dist

    rank = dist.get_rank()
    model = network()
    alone = copy.deepcopy(model)
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=bucket_view)
    options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3, "lambd": -1.0, "fused": fused}
    optimizer, other = (SBS(param_groups(net), **options) for net in (model, alone))
    torch.manual_seed(1234 + rank)  # what no coin may depend on
    fingerprints, same = [], True
    for _ in range(5):
        parallel(torch.randn(4, 3, 8, 8)).square().mean().backward()
        for one, two in zip(model.parameters(), alone.parameters(), strict=True):
            two.grad = one.grad.clone()
        optimizer.step()
        other.step()
        optimizer.zero_grad()
        weights = torch.cat([weight.flatten() for weight in model.parameters()])
        fingerprints.append(weights.detach().numpy().tobytes().hex())
        same &= all(
            torch.equal(one, two)
            for one, two in zip(model.parameters(), alone.parameters(), strict=True)
        )
    return fingerprints, same


@pytest.mark.parametrize("fused", [False, True], ids=["eager", "fused"])
@pytest.mark.parametrize("bucket_view", [False, True], ids=["own", "bucket-view"])
def test_all_ranks_stay_the_same_and_equal_one_process_with_the_same_gradient(
    bucket_view: bool, fused: bool, two: Processes
) -> None:
    (first, alone), (second, alone_too) = two.run(_train, bucket_view, fused)
    assert first == second
    assert len(set(first)) == len(first)
    assert alone
    assert alone_too


def _flattened(original: bool) -> str:
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(
        nn.Linear(4, 4), device_id=torch.device("cpu"), use_orig_params=original
    )
    try:
        SBS(model.parameters(), lr=0.1)
    except TypeError as error:
        return str(error)
    return "nothing was raised"


@pytest.mark.parametrize("original", [False, True])
def test_flattened_parameters_are_refused(original: bool, two: Processes) -> None:
    for text in two.run(_flattened, original):
        assert "fully_shard" in text
