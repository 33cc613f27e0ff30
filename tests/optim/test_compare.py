"""Invariants: which layers are compared with each other; one odd layer is nobody's concern."""

import copy

import pytest
import torch
from torch import nn

from stochbatch import SBS, param_groups, update_probability
from stochbatch.nets import vgg11
from stochbatch.optim.kernels import eager as eager_kernel
from stochbatch.optim.kernels import native
from tests.optim.networks import moves_natively, same_weights, small_network, train

KINDS = ["conv", "norm_weight", "norm_bias", "conv", "norm_weight", "norm_bias", "bias"]


def grads(dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(4, generator=generator).to(dtype) * (n + 1) for n in range(len(KINDS))]


def test_all_layers_may_be_compared() -> None:
    alike = update_probability(grads(), ["other"] * len(KINDS))
    for one, other in zip(alike, update_probability(grads(), KINDS, compare="all"), strict=True):
        assert torch.equal(one, other)


def test_over_all_layers_totals_move_small_ones_and_means_stop_the_classifier() -> None:
    """At the start of VGG11, which is what docs/method.md says of ``compare="all"``."""
    torch.manual_seed(0)
    network = vgg11()
    logits = network(torch.randn(16, 3, 32, 32))
    nn.functional.cross_entropy(logits, torch.randint(10, (16,))).backward()
    groups = param_groups(network)
    layers = [(g["kind"], name, p.grad) for g in groups for name, p in g["params"]]
    kinds, names, found = zip(*layers, strict=True)
    total, mean = (
        [p.mean().item() for p in update_probability(found, kinds, cross_layer=one, compare="all")]
        for one in ("total", "mean")
    )
    small = [p for p, kind in zip(total, kinds, strict=True) if kind not in ("conv", "linear")]
    assert 0.84 < min(small) <= max(small) < 0.88
    assert max(p for p, n in zip(mean, names, strict=True) if n.startswith("classifier")) < 0.01


def test_scale_and_shift_of_norms_are_of_one_type() -> None:
    types = ["embedding" if kind.startswith("norm") else kind for kind in KINDS]
    expected = update_probability(grads(), types)
    found = update_probability(grads(), KINDS, compare="type")
    for one, other in zip(expected, found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("compare", ["kind", "type", "all"])
def test_layers_without_gradient_take_no_part(compare: str) -> None:
    given = grads()
    given[3].zero_()
    found = update_probability(given, KINDS, alpha=0.0, compare=compare)
    assert (found[3] == 0.5).all()
    rest = [n for n in range(len(KINDS)) if n != 3]
    alone = update_probability(
        [given[n] for n in rest], [KINDS[n] for n in rest], alpha=0.0, compare=compare
    )
    for place, one in zip(rest, alone, strict=True):
        torch.testing.assert_close(found[place], one, rtol=1e-12, atol=0)


@pytest.mark.parametrize("compare", ["kind", "type", "all"])
@pytest.mark.parametrize("cross_layer", ["total", "mean", "weighted"])
def test_compiled_steps_compare_as_eager_ones_do(compare: str, cross_layer: str) -> None:
    networks = [small_network() for _ in range(2)]
    for network, fused in zip(networks, (True, False), strict=True):
        options = {"compare": compare, "cross_layer": cross_layer, "fused": fused}
        optimizer = SBS(param_groups(network), **options)
        train(network, optimizer, range(3))
        for parameter in network[3].parameters():
            parameter.requires_grad_(False).grad = torch.zeros_like(parameter)
        train(network, optimizer, range(3, 6))
    assert same_weights(*networks)


ODD = {
    "transposed": lambda: torch.ones(5, 40).t(),
    "slice": lambda: torch.ones(8)[::2],
    "strided float64": lambda: torch.ones(6, dtype=torch.float64)[::2],
}


@pytest.mark.parametrize("odd", ODD)
def test_one_odd_parameter_leaves_the_others_to_the_compiled_step(odd: str) -> None:
    torch.manual_seed(2)
    made = [*(torch.randn(30, 50) for _ in range(3)), ODD[odd]()]
    weights = [
        [nn.Parameter(w.clone(memory_format=torch.preserve_format)) for w in made] for _ in "ab"
    ]
    weights[0][3] = nn.Parameter(ODD[odd]())
    weights[1][3] = nn.Parameter(ODD[odd]())
    mixed, eager = (SBS(own, fused=f) for own, f in zip(weights, (None, False), strict=True))
    for _ in range(5):
        for ours, theirs in zip(*weights, strict=True):
            grad = torch.randn(ours.shape, dtype=ours.dtype)
            ours.grad, theirs.grad = grad, copy.deepcopy(grad)
        mixed.step()
        eager.step()
    work = mixed._plans._plan.work
    assert [(type(kernel), kernel.places) for kernel in work.kernels] == [
        (native.Rows, [0, 1, 2]),
        (eager_kernel.Rows, [3]),
    ]
    assert not moves_natively(mixed)
    for ours, theirs in zip(*weights, strict=True):
        assert torch.equal(ours, theirs)
        for name in ("grad_mean", "batches", "step", "tally"):
            if name == "tally":
                torch.testing.assert_close(mixed.state[ours][name], eager.state[theirs][name])
            else:
                assert torch.equal(mixed.state[ours][name], eager.state[theirs][name])


def test_complex_float32_moves_as_its_real_view() -> None:
    weights = [nn.Parameter(torch.ones(33, dtype=torch.complex64)) for _ in range(2)]
    for weight, fused in zip(weights, (True, False), strict=True):
        optimizer = SBS([weight], lr=0.5, fused=fused)
        for step in range(4):
            torch.manual_seed(step)
            weight.grad = torch.randn(33, dtype=torch.complex64)
            optimizer.step()
    assert torch.equal(*weights)
