"""Invariant: layers are compared by whatever strings their kinds are, in every kernel."""

import pytest
import torch
from torch import Tensor, nn

from stochbatch import SBS, param_groups, update_probability
from stochbatch.optim.article.algorithm2 import Algorithm2
from tests.optim.networks import same_weights


def transformer(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(3)
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
    layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    for number, parameter in enumerate(layers.parameters()):  # else all layers are alike
        nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(number))
    return nn.Sequential(nn.Linear(5, 8), layers, nn.Linear(8, 5)).to(dtype)


def set_gradients(step: int, *models: nn.Module) -> None:
    generator = torch.Generator().manual_seed(step)
    for parameter in zip(*(model.parameters() for model in models), strict=True):
        gradient = torch.randn(parameter[0].shape, generator=generator) * (1 + step % 3)
        for one in parameter:
            one.grad = gradient.to(one.dtype)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_probabilities_do_not_depend_on_what_kinds_are_called() -> None:
    grads = [torch.randn(4, 4) * scale for scale in (1, 2, 3, 5, 7)]
    known = update_probability(grads, ["linear", "conv", "linear", "conv", "linear"])
    other = update_probability(grads, ["up", "down", "up", "down", "up"])
    assert all(torch.equal(p, q) for p, q in zip(known, other, strict=True))
    apart = update_probability(grads, [f"kind {number}" for number in range(5)])
    local = update_probability(grads, lambd=0.0)
    assert all(torch.equal(p, q) for p, q in zip(apart, local, strict=True))


@pytest.mark.parametrize("cross_layer", ["total", "mean", "weighted"])
def test_steps_by_role_are_those_of_algorithm_2(cross_layer: str) -> None:
    one, other = transformer(), transformer()
    options = {"lambd": -2.0, "cross_layer": cross_layer}
    sbs = SBS(param_groups(one), fused=False, **options)
    algorithm2 = Algorithm2(param_groups(other), **options)
    kinds = {group["kind"] for group in sbs.param_groups}
    assert {"attention_qkv", "attention_o", "mlp_up", "mlp_down"} < kinds
    assert len(kinds) > 7
    for step in range(5):
        set_gradients(step, one, other)
        sbs.step()
        algorithm2.step()
        for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
            assert torch.equal(sbs.state[mine]["batches"], algorithm2.state[theirs]["batches"])
            torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


def test_the_native_step_has_the_bits_of_the_eager_one() -> None:
    one, other = transformer(torch.float32), transformer(torch.float32)
    eager, native = SBS(param_groups(one), fused=False), SBS(param_groups(other), fused=True)
    for step in range(5):
        set_gradients(step, one, other)
        eager.step()
        native.step()
    assert same_weights(one, other)


@pytest.mark.parametrize("fused", [False, True])
def test_any_number_of_kinds(fused: bool) -> None:
    """With one kind per layer every layer has score 0, as with ``lambd=0``."""
    one, other = transformer(torch.float32), transformer(torch.float32)
    names = [{"params": [p], "kind": f"k{i}"} for i, p in enumerate(one.parameters())]
    apart, local = SBS(names, fused=fused), SBS(other.parameters(), lambd=0.0, fused=fused)
    assert len(names) > 30
    for step in range(3):
        set_gradients(step, one, other)
        apart.step()
        local.step()
    assert same_weights(one, other)


@pytest.mark.parametrize("fused", [False, True])
def test_a_layer_whose_gradient_is_zero_stays_out_of_the_comparison(fused: bool) -> None:
    """The others move as if it were not there; its own score is 0."""
    alive = [torch.randn(4, 4) * scale for scale in (1, 2, 5)]
    parameters = [nn.Parameter(torch.zeros(4, 4)) for _ in range(4)]
    twins = [nn.Parameter(torch.zeros(4, 4)) for _ in range(3)]
    one, other = (SBS(params, alpha=0.0, fused=fused) for params in (parameters, twins))
    for _ in range(4):
        for parameter, gradient in zip(parameters, [*alive, torch.zeros(4, 4)], strict=True):
            parameter.grad = gradient.clone()
        for parameter, gradient in zip(twins, alive, strict=True):
            parameter.grad = gradient.clone()
        one.step()
        other.step()
        assert all(torch.equal(p, q) for p, q in zip(parameters[:3], twins, strict=True))
    assert one.layer_report()[3].probability == 0.5


def test_a_dead_layer_in_algorithm_2_is_that_of_sbs() -> None:
    one, other = transformer(), transformer()
    sbs, algorithm2 = SBS(param_groups(one), fused=False), Algorithm2(param_groups(other))
    for step in range(4):
        set_gradients(step, one, other)
        for model in (one, other):
            model[1].layers[1].linear1.weight.grad.zero_()
            model[1].layers[0].norm1.bias.grad.zero_()
        sbs.step()
        algorithm2.step()
        torch.testing.assert_close(weights(one), weights(other), rtol=1e-12, atol=1e-12)


def test_the_report_and_a_state_dict_know_the_kinds() -> None:
    model, twin = transformer(torch.float32), transformer(torch.float32)
    optimizer, resumed = SBS(param_groups(model)), SBS(param_groups(twin))
    set_gradients(0, model)
    optimizer.step()
    twin.load_state_dict(model.state_dict())
    resumed.load_state_dict(optimizer.state_dict())
    assert [row.kind for row in optimizer.layer_report()][-1] == "mlp_down"
    set_gradients(1, model, twin)
    optimizer.step()
    resumed.step()
    assert same_weights(model, twin)
