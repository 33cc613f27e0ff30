"""Invariant: divided among processes, a batch is normalised as in one process."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from stochbatch.nets import (
    NETWORKS,
    SyncBatchNorm2d,
    resample_batch_norm,
    synchronise_batch_norm,
)
from tests.processes import Processes


@pytest.mark.parametrize("name", NETWORKS)
def test_the_network_keeps_its_parameters_and_names(name: str) -> None:
    network = NETWORKS[name](width=0.0625)
    before = {name: id(tensor) for name, tensor in network.named_parameters()}
    names = list(network.state_dict())
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    made = synchronise_batch_norm(network)
    assert len(made) == len(norms) > 0
    assert {name: id(tensor) for name, tensor in network.named_parameters()} == before
    assert list(network.state_dict()) == names
    assert [module for module in network.modules() if type(module) is nn.BatchNorm2d] == []


def test_evaluation_is_that_of_batch_norm() -> None:
    network = nn.Sequential(nn.BatchNorm2d(3))
    network[0].running_mean.normal_()
    images = torch.randn(4, 3, 5, 5)
    expected = network.eval()(images)
    synchronise_batch_norm(network)
    assert not network[0].training
    assert torch.equal(network(images), expected)


def test_a_batch_norm_without_weights_is_refused() -> None:
    with pytest.raises(ValueError, match="only batch norms with weights can be synchronised"):
        synchronise_batch_norm(nn.Sequential(nn.BatchNorm2d(3, affine=False)))


def _batch_norm(seed: int, momentum: float | None) -> nn.BatchNorm2d:
    generator = torch.Generator().manual_seed(seed)
    norm = nn.BatchNorm2d(5, momentum=momentum)
    for tensor in (norm.weight.data, norm.bias.data, norm.running_mean):
        tensor.normal_(generator=generator)
    return norm


def _pass(norm: nn.Module, images: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    """Return outputs and the gradient of the images of a loss that is no mean."""
    images = images.clone().requires_grad_()
    output = norm(images)
    (output.to(factor.dtype) * factor).square().sum().backward()
    return output.detach(), images.grad


def normalise(
    dtype: torch.dtype,
    momentum: float | None,
    layout: torch.memory_format,
    all_to_one: bool = False,
) -> dict[str, list[Tensor]]:
    """Return by name what all processes give, and what torch's gives one in double precision."""
    rank, count = torch.distributed.get_rank(), torch.distributed.get_world_size()
    generator = torch.Generator().manual_seed(0)
    size = 11  # uneven parts
    images = torch.randn(size, 5, 3, 4, generator=generator) * 3 + 100  # means far from 0
    images = images.to(dtype).contiguous(memory_format=layout)
    factor = torch.randn(size, 5, 3, 4, generator=generator)
    mine = slice(size * rank // count, size * (rank + 1) // count)
    if all_to_one:
        mine = slice(0, size if rank == 0 else 0)
    one = _batch_norm(1, momentum).double()
    network = nn.Sequential(_batch_norm(1, momentum))
    if dtype is torch.float64:
        network, factor = network.double(), factor.double()
    (many,) = synchronise_batch_norm(network)
    for _ in range(2):  # running statistics of two batches
        output, grad = _pass(one, images.double(), factor.double())
        part_output, part_grad = _pass(network, images[mine], factor[mine])
    for parameter in many.parameters():
        torch.distributed.all_reduce(parameter.grad)
    pairs = {
        "output": [part_output, output[mine]],
        "images": [part_grad, grad[mine]],
        "weight": [many.weight.grad, one.weight.grad],
        "bias": [many.bias.grad, one.bias.grad],
    }
    return pairs | {name: [b, dict(one.named_buffers())[name]] for name, b in many.named_buffers()}


def assert_near(found: Tensor, expected: Tensor, tolerance: float) -> None:
    assert found.shape == expected.shape
    assert (found.double() - expected).abs().max() <= tolerance * expected.abs().max()


@pytest.mark.distributed
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("momentum", [0.1, None])
def test_it_is_batch_norm_over_all_parts(
    momentum: float | None, layout: torch.memory_format, two: Processes
) -> None:
    for pairs in two.run(normalise, torch.float32, momentum, layout):
        for found, expected in pairs.values():
            assert_near(found, expected, 1e-5)
            assert found.is_contiguous(memory_format=layout) or found.dim() < 4


@pytest.mark.distributed
def test_double_precision_stays_double(two: Processes) -> None:
    for pairs in two.run(normalise, torch.float64, 0.1, torch.contiguous_format):
        for found, expected in pairs.values():
            assert_near(found, expected, 1e-12)


@pytest.mark.distributed
def test_a_process_without_images_changes_nothing(two: Processes) -> None:
    with_all, without = two.run(normalise, torch.float32, 0.1, torch.contiguous_format, True)
    for found, expected in with_all.values():
        assert_near(found, expected, 1e-5)
    for name in ("weight", "bias", "running_mean", "running_var"):
        assert_near(*without[name], 1e-5)
    assert without["images"][0].shape == (0, 5, 3, 4)


def normalise_one_value() -> str:
    rank = torch.distributed.get_rank()
    try:
        SyncBatchNorm2d(5)(torch.ones(1 - rank, 5, 1, 1))
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.distributed
def test_one_value_a_channel_is_refused_by_all(two: Processes) -> None:
    for message in two.run(normalise_one_value):
        assert "more than one value a channel in training, got 1" in message


@pytest.mark.distributed
def test_low_precision_is_normalised_in_single(two: Processes) -> None:
    """Images around 100 with a spread of 3 have three digits in bfloat16."""
    for pairs in two.run(normalise, torch.bfloat16, 0.1, torch.contiguous_format):
        assert pairs["output"][0].dtype == pairs["images"][0].dtype == torch.bfloat16
        for name, (found, expected) in pairs.items():
            assert_near(found, expected, 1e-5 if "running" in name else 0.02)


def resample() -> tuple[Tensor, Tensor]:
    """Return running variances, resampled on parts, and on whole batches in one process."""
    rank = torch.distributed.get_rank()
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randn(7, 5, 3, 4, generator=generator) for _ in range(3)]
    one = nn.Sequential(nn.BatchNorm2d(5))
    resample_batch_norm(one, batches)
    many = nn.Sequential(nn.BatchNorm2d(5))
    synchronise_batch_norm(many)
    resample_batch_norm(many, [batch[:3] if rank else batch[3:] for batch in batches])
    return many[0].running_var, one[0].running_var


@pytest.mark.distributed
def test_statistics_are_resampled_over_all_parts(two: Processes) -> None:
    for found, expected in two.run(resample):
        torch.testing.assert_close(found, expected)


def undivided() -> tuple[Tensor, Tensor]:
    """Return running variances after a batch that every process has whole."""
    images = torch.randn(2, 5, 1, 1, generator=torch.Generator().manual_seed(0))
    one, many = nn.BatchNorm2d(5), SyncBatchNorm2d(5)
    many.divided = False
    one(images)
    many(images)
    return many.running_var, one.running_var


@pytest.mark.distributed
def test_an_undivided_batch_counts_once(two: Processes) -> None:
    for found, expected in two.run(undivided):
        assert torch.equal(found, expected)
