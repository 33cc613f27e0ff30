"""Invariant: the layer report says what the layers did since it was last asked."""

import logging
import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from stochbatch import SBS, SlowLayersWarning, param_groups, update_probability
from tests.optim.networks import backward, small_network, train


def test_means_over_scalars_and_steps() -> None:
    weights = [nn.Parameter(torch.zeros(s)) for s in ((40_000,), (50, 3))]
    optimizer = SBS(weights, alpha=1.0)
    chances, batches = ([0.0, 0.0] for _ in range(2))
    for _ in range(4):
        grads = [torch.randn_like(w) for w in weights]
        for number, p in enumerate(update_probability(grads, alpha=1.0)):
            weights[number].grad = grads[number]
            chances[number] += p.double().mean().item() / 4
            state = optimizer.state.get(weights[number], {})
            k = state.get("batches", torch.ones(1))
            batches[number] += k.double().mean().item() / 4
        optimizer.step()
    for number, row in enumerate(optimizer.layer_report()):
        torch.testing.assert_close(row.probability, chances[number], rtol=1e-5, atol=0)
        torch.testing.assert_close(row.batches, batches[number], rtol=1e-5, atol=0)


def test_a_report_begins_a_new_account() -> None:
    network = small_network()
    optimizer = SBS(network.parameters(), probability=0.5)
    train(network, optimizer, range(3))
    optimizer.layer_report()
    assert all(math.isnan(row.probability) for row in optimizer.layer_report())
    for group in optimizer.param_groups:
        group["probability"] = 0.25
    train(network, optimizer, range(3, 4))
    assert all(row.probability == 0.25 for row in optimizer.layer_report())


def test_layers_have_names_kinds_and_sizes() -> None:
    network = small_network()
    optimizer = SBS(param_groups(network))
    backward(network, 0)
    network[8].bias.grad = None
    optimizer.step()
    report = optimizer.layer_report()
    rows = {row.name: row for row in report}
    assert set(rows) == {name for name, _ in network.named_parameters()}
    assert (rows["1.weight"].kind, rows["1.weight"].size) == ("norm_weight", 6)
    assert math.isnan(rows["8.bias"].probability)
    assert math.isnan(rows["8.bias"].batches)
    lines = str(report).splitlines()
    assert lines[0].split() == ["layer", "kind", "size", "probability", "batches"]
    assert len(lines) == 11
    assert len({len(line) for line in lines}) == 1


def test_parameters_without_names_are_known_by_number_and_shape() -> None:
    network = small_network()
    names = [row.name for row in SBS(network.parameters()).layer_report()]
    assert names[:2] == ["parameter 0 of shape (6, 2, 3, 3)", "parameter 1 of shape (6,)"]


def test_a_long_account_does_not_saturate() -> None:
    """A float32 sum of probabilities would stop growing; a running mean does not."""
    weight = nn.Parameter(torch.zeros(4))
    optimizer = SBS([weight], probability=0.3)
    weight.grad = torch.ones(4)
    optimizer.step()
    optimizer.state[weight]["tally"].copy_(torch.tensor([2.0**24, 0.3, 3.0]))
    optimizer.step()
    (row,) = optimizer.layer_report()
    assert row.probability == torch.tensor(0.3).item()


def two_layers(named: bool = True, **options: object) -> SBS:
    """Return an optimizer of two layers of a kind, of which the first has larger gradients."""
    weights = [nn.Parameter(torch.zeros(3, 4)) for _ in range(2)]
    weights[0].grad, weights[1].grad = 5 * torch.ones(3, 4), torch.ones(3, 4)
    return SBS([("large", weights[0]), ("small", weights[1])] if named else weights, **options)


def take(optimizer: SBS, steps: int) -> None:
    for _ in range(steps):
        optimizer.step()


def test_slow_layers_are_named_once_at_the_hundredth_step() -> None:
    optimizer = two_layers()
    take(optimizer, 99)
    with pytest.warns(SlowLayersWarning, match=r"hardly move \(1 of 2, .*: large\. .* lambd=-4"):
        optimizer.step()
    take(optimizer, 101)
    optimizer.new_epoch()
    tallies = [state["tally"] for state in optimizer.state.values()]
    assert [tally[0].item() for tally in tallies] == [201, 201]
    assert optimizer.layer_report()[0].probability < 0.02


@pytest.mark.parametrize("asked", [SBS.new_epoch, SBS.layer_report])
def test_slow_layers_are_named_at_the_end_of_an_epoch(asked: Callable[[SBS], object]) -> None:
    optimizer, short = two_layers(named=False), two_layers()
    take(optimizer, 25)
    with pytest.warns(SlowLayersWarning, match=r"parameter 0 of shape \(3, 4\)") as caught:
        asked(optimizer)
    assert caught[0].filename == __file__
    take(short, 5)
    asked(short)  # too few to judge by


def test_slow_layers_are_named_over_several_short_reports() -> None:
    optimizer = two_layers()
    for _ in range(2):
        take(optimizer, 8)
        optimizer.layer_report()
    take(optimizer, 8)
    with pytest.warns(SlowLayersWarning, match="large"):
        optimizer.layer_report()


@pytest.mark.parametrize("options", [{"probability": 0.01}, {"lambd": -1.0}])
def test_layers_that_are_slow_by_choice_or_not_slow_are_not_named(options: dict) -> None:
    optimizer = two_layers(**options)
    take(optimizer, 101)
    optimizer.new_epoch()


def test_a_function_may_take_the_place_of_the_warning(caplog: pytest.LogCaptureFixture) -> None:
    optimizer = two_layers()
    optimizer.on_slow_layers(logging.getLogger("stochbatch").info)
    with caplog.at_level("INFO", "stochbatch"):
        take(optimizer, 101)
    assert [record.message[:23] for record in caplog.records] == ["Layers that hardly move"]
