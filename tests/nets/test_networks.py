"""Invariant: the networks are the ones that the article's field knows by these names."""

import pytest
import torch
from torch import nn

from stochbatch.nets import resnet18, resnet50, vgg11

NETWORKS = {
    vgg11: (9_231_114, 34),
    resnet18: (11_173_962, 62),
    resnet50: (23_520_842, 161),
}


@pytest.mark.parametrize("make", NETWORKS, ids=lambda make: make.__name__)
def test_number_of_parameters(make) -> None:
    parameters = list(make().parameters())
    assert (sum(p.numel() for p in parameters), len(parameters)) == NETWORKS[make]


@pytest.mark.parametrize("size", [32, 96])
@pytest.mark.parametrize("make", NETWORKS, ids=lambda make: make.__name__)
def test_images_of_both_sizes_give_logits_and_gradients(make, size: int) -> None:
    network = make(width=0.125)
    network(torch.randn(2, 3, size, size)).sum().backward()
    assert all(p.grad is not None for p in network.parameters())


@pytest.mark.parametrize("make", NETWORKS, ids=lambda make: make.__name__)
def test_a_memory_layout_does_not_change_the_logits(make) -> None:
    network: nn.Module = make(width=0.125).eval()
    images = torch.randn(2, 3, 32, 32)
    expected = network(images)
    network.to(memory_format=torch.channels_last)
    found = network(images.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
