"""Invariant: resampling changes the running statistics of batch norms, to those that an
evaluation needs, and nothing else."""

import copy

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import update_bn

from stochbatch.nets import NETWORKS, resample_batch_norm, vgg_tiny
from tests.nets.test_networks import SMALL, images_for

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def is_statistic(key: str) -> bool:
    return key.endswith(STATISTICS)


def snapshot(network: nn.Module) -> dict[str, torch.Tensor]:
    return {key: value.clone() for key, value in network.state_dict().items()}


def moved(name: str = "vgg_tiny", **options) -> nn.Module:
    """Return a network whose running statistics are not those of its weights."""
    network = NETWORKS[name](width=SMALL, **options)
    network(3 * images_for(name) + 1)
    return network


@pytest.mark.parametrize("name", ["vgg_tiny", "resnet18"])
def test_without_dropout_statistics_are_those_of_update_bn(name: str) -> None:
    batches = [images_for(name, count=count) for count in (8, 8, 3)]
    network = moved(name)
    other = copy.deepcopy(network)
    resample_batch_norm(network, iter(batches))
    update_bn(batches, other)
    expected, found = other.state_dict(), network.state_dict()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


@pytest.mark.parametrize("dropout", ["head", "block", "all", "adaptive"])
def test_dropout_is_off(dropout) -> None:
    plain = moved()
    dropping = vgg_tiny(width=SMALL, dropout=dropout)
    dropping.load_state_dict(plain.state_dict())
    batches = [images_for("vgg_tiny", count=8)]
    for network in (plain, dropping):
        resample_batch_norm(network.train(), batches)
    found = dropping.state_dict()
    assert all(torch.equal(found[key], value) for key, value in plain.state_dict().items())


def test_after_one_batch_evaluation_normalises_that_batch() -> None:
    norm = nn.BatchNorm2d(3, eps=1e-9).eval()
    images = 5 * torch.randn(64, 3, 8, 8) - 2
    resample_batch_norm(norm, [images])
    output = norm(images).transpose(0, 1).flatten(1)
    torch.testing.assert_close(output.mean(1), torch.zeros(3), rtol=0, atol=1e-5)
    torch.testing.assert_close(output.var(1), torch.ones(3))


def test_each_batch_counts_the_same() -> None:
    norm = nn.BatchNorm1d(1, momentum=0.3)
    resample_batch_norm(norm, [torch.full((2, 1), 4.0), torch.full((50, 1), 1.0)])
    assert norm.running_mean.item() == 2.5


@pytest.mark.parametrize("name", ["vgg_tiny", "resnet18"])
def test_weights_gradients_and_generator_are_untouched(name: str) -> None:
    network = moved(name, dropout="adaptive")
    before = snapshot(network)
    images = images_for(name)
    generator = torch.get_rng_state()
    resample_batch_norm(network, [images])
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(p.grad is None for p in network.parameters())
    for key, value in network.state_dict().items():
        assert torch.equal(value, before[key]) != is_statistic(key) or key.endswith("tracked")


def test_no_graph_is_kept() -> None:
    network = moved()
    kept = []
    network.register_forward_hook(lambda _module, _given, logits: kept.append(logits.requires_grad))
    resample_batch_norm(network, [images_for("vgg_tiny")] * 2)
    assert kept == [False, False]


def frozen_in_part() -> tuple[nn.Module, dict[str, bool]]:
    network = moved(dropout="all")
    network.features[1].eval()
    network.features[1].momentum = 0.25
    network.features[5].momentum = None
    return network, {key: module.training for key, module in network.named_modules()}


def check_restored(network: nn.Module, modes: dict[str, bool]) -> None:
    assert {key: module.training for key, module in network.named_modules()} == modes
    momenta = [
        module.momentum for module in network.modules() if isinstance(module, nn.BatchNorm2d)
    ]
    assert momenta == [0.25, None, 0.1]


def test_modes_and_momenta_are_restored() -> None:
    network, modes = frozen_in_part()
    resample_batch_norm(network, [images_for("vgg_tiny")])
    check_restored(network, modes)


def failing_batches():
    yield images_for("vgg_tiny")
    raise RuntimeError("the disk is gone")


@pytest.mark.parametrize(
    ("batches", "error", "message"),
    [
        (lambda: [], ValueError, "batches must hold at least one batch, got none"),
        (failing_batches, RuntimeError, "the disk is gone"),
        (lambda: [torch.zeros(2, 1, 4, 4)], ValueError, "images must be at least 8x8 for"),
    ],
    ids=["empty", "loader fails", "network fails"],
)
def test_after_an_error_modes_and_momenta_are_restored(batches, error, message: str) -> None:
    network, modes = frozen_in_part()
    with pytest.raises(error, match=message):
        resample_batch_norm(network, batches())
    check_restored(network, modes)


def test_a_network_without_statistics_takes_no_batches() -> None:
    batches = iter([torch.zeros(2, 3)])
    resample_batch_norm(nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)), batches)
    resample_batch_norm(nn.BatchNorm1d(3, track_running_stats=False), batches)
    assert next(batches).shape == (2, 3)


def test_a_compiled_network_is_resampled_and_stays_compiled() -> None:
    torch.compiler.reset()
    network = moved()
    batches = [images_for("vgg_tiny", count=4) for _ in range(3)]
    other = copy.deepcopy(network)
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph

    compiled = torch.compile(network, backend=backend, fullgraph=True)
    compiled(batches[0])
    resample_batch_norm(compiled, batches)
    resample_batch_norm(other, batches)
    found = network.state_dict()
    assert all(torch.equal(found[key], value) for key, value in other.state_dict().items())
    compiled(batches[0])
    assert len(graphs) == 1
