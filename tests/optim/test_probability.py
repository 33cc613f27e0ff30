"""Invariant: the probability is Equations 16 to 21, decided from whole-tensor statistics."""

import hypothesis
import hypothesis.strategies as st
import pytest
import torch

from stochbatch import KINDS, update_probability
from stochbatch.optim.probability import (
    _sigmoid_of_bits,
    describe_layers,
    measured,
    sums_of,
)
from tests.optim.reference import reference_probability

READINGS = ("total", "mean", "weighted")


def random_gradients(dtype: torch.dtype = torch.float64, scale: float = 1.0) -> list[torch.Tensor]:
    shapes = [(4, 3, 3, 3), (5, 4, 3, 3), (2, 9), (6, 2), (3, 3), (7,), (6,), (4,), (4,), (4,)]
    sizes = torch.linspace(0.2, 4.0, len(shapes))
    return [
        (torch.randn(shape, dtype=torch.float64) * size * scale).to(dtype)
        for shape, size in zip(shapes, sizes.tolist(), strict=True)
    ]


SOME_KINDS = ["conv"] * 2 + ["linear"] * 3 + ["bias"] * 2 + ["norm_weight"] * 2 + ["norm_bias"]


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize(
    ("alpha", "lambd"), [(0.1, -4.0), (1.0, 0.0), (0.0, -2.0), (-0.1, 1.0), (3.0, 8.0)]
)
def test_agrees_with_the_article_in_double(reading: str, alpha: float, lambd: float) -> None:
    grads = random_gradients()
    flat = [grad.flatten().tolist() for grad in grads]
    expected = reference_probability(flat, SOME_KINDS, alpha, lambd, reading)
    found = update_probability(grads, SOME_KINDS, alpha, lambd, reading)
    for grad, p, q in zip(grads, found, expected, strict=True):
        assert p.shape == grad.shape
        torch.testing.assert_close(p.flatten().tolist(), q, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_other_dtypes_are_computed_in_single(dtype: torch.dtype, device: str) -> None:
    grads = [grad.to(device) for grad in random_gradients(dtype)]
    found = update_probability(grads, SOME_KINDS, 0.7, -2.0)
    expected = update_probability([grad.cpu().double() for grad in grads], SOME_KINDS, 0.7, -2.0)
    for p, q in zip(found, expected, strict=True):
        assert p.dtype == torch.float32
        torch.testing.assert_close(p.cpu().double(), q, rtol=2e-6, atol=0)


def test_alpha_and_lambd_zero_give_one_half_exactly(device: str) -> None:
    grads = [grad.to(device) for grad in random_gradients(torch.float32)]
    for p in update_probability(grads, SOME_KINDS, 0.0, 0.0):
        assert (p == 0.5).all()


def test_kinds_do_not_mix() -> None:
    grads = random_gradients()
    before = update_probability(grads, SOME_KINDS)
    grads[2] = grads[2] * 100  # a linear layer
    after = update_probability(grads, SOME_KINDS)
    for kind, p, q in zip(SOME_KINDS, before, after, strict=True):
        assert torch.equal(p, q) == (kind != "linear")


@pytest.mark.parametrize("kind", KINDS)
def test_the_only_layer_of_its_kind_is_judged_within_itself_alone(kind: str) -> None:
    others = [k for k in KINDS if k != kind][:2]
    grads = [torch.randn(50, dtype=torch.float64) * size for size in (5.0, 1.0, 3.0)]
    alone = update_probability(grads, [kind, others[0], others[0]])[0]
    local = update_probability(grads[:1], [kind], lambd=0.0)[0]
    assert torch.equal(alone, local)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "gradient",
    [[5.0], [0.0, 0.0, 0.0], [2.0, -2.0, 2.0], [1e-8] * 9, [0.1] * 100003, [-3e-30] * 4],
    ids=["one element", "zero", "constant size", "tiny", "many", "very tiny"],
)
def test_no_spread_within_a_layer_scores_zero(gradient: list[float], dtype: torch.dtype) -> None:
    (p,) = update_probability([torch.tensor(gradient, dtype=dtype)], ["linear"], alpha=5.0)
    assert (p == 0.5).all()


def test_no_spread_across_layers_scores_zero() -> None:
    grads = [torch.tensor([1.0, 3.0]), torch.tensor([-3.0, 1.0])]
    for p in update_probability(grads, ["linear", "linear"], alpha=0.0):
        assert (p == 0.5).all()


def test_scores_that_differ_by_rounding_alone_do_not_differ() -> None:
    grads = [torch.full((3,), 0.1), torch.full((3,), 0.1) * (1 + 2.0**-22)]
    assert not torch.equal(*grads)
    for p in update_probability(grads, ["linear", "linear"]):
        assert (p == 0.5).all()


@pytest.mark.parametrize(("dtype", "spread"), [(torch.float32, 1e-5), (torch.float64, 1e-11)])
def test_a_small_spread_is_still_a_spread(dtype: torch.dtype, spread: float) -> None:
    gradient = torch.tensor([1.0, 1.0 + 2 * spread], dtype=dtype)
    (p,) = update_probability([gradient], ["linear"], alpha=1.0)
    torch.testing.assert_close(p[0].item(), 0.2689, rtol=0.05, atol=0)


def test_gradients_of_a_bias_before_batch_norm_are_not_flattened_by_an_epsilon() -> None:
    gradient = torch.randn(64) * 1e-8
    (tiny,) = update_probability([gradient], ["bias"], alpha=1.0)
    (usual,) = update_probability([gradient * 2.0**27], ["bias"], alpha=1.0)
    assert torch.equal(tiny, usual)


def test_empty_gradients_take_no_part() -> None:
    grads = [torch.tensor([1.0, 2.0]), torch.empty(0, 3), torch.tensor([5.0, 7.0])]
    first, empty, last = update_probability(grads, ["linear"] * 3)
    assert empty.shape == (0, 3)
    without = update_probability([grads[0], grads[2]], ["linear"] * 2)
    assert torch.equal(first, without[0])
    assert torch.equal(last, without[1])


def test_complex_gradients_are_seen_as_pairs() -> None:
    gradient = torch.randn(6, dtype=torch.complex64)
    (p,) = update_probability([gradient], ["linear"])
    assert torch.equal(p, update_probability([torch.view_as_real(gradient)], ["linear"])[0])


def test_the_kind_of_a_complex_gradient_is_that_of_its_own_dimensions() -> None:
    grads = [torch.randn(6, dtype=torch.complex64), torch.randn(4, 5), torch.randn(3)]
    inferred = update_probability(grads)
    told = update_probability(grads, ["bias", "linear", "bias"])
    assert all(torch.equal(p, q) for p, q in zip(inferred, told, strict=True))
    assert inferred[0].shape == (6, 2)


def test_kinds_are_inferred_from_dimensions() -> None:
    grads = random_gradients()[:7]
    inferred = update_probability(grads)
    told = update_probability(grads, ["conv"] * 2 + ["linear"] * 3 + ["bias"] * 2)
    assert all(torch.equal(p, q) for p, q in zip(inferred, told, strict=True))


@hypothesis.settings(deadline=None)
@hypothesis.given(st.floats(-130, 130))
def test_sigmoid_of_bits(bits: float) -> None:
    exact = 1 / (1 + 2.0 ** -max(-126.0, min(126.0, bits)))
    double = _sigmoid_of_bits(torch.tensor([bits], dtype=torch.float64)).item()
    assert double == pytest.approx(exact, rel=1e-15)
    single = torch.tensor([bits], dtype=torch.float32)
    exact = 1 / (1 + 2.0 ** -max(-126.0, min(126.0, single.item())))
    assert _sigmoid_of_bits(single).item() == pytest.approx(exact, rel=3e-7)


def test_a_number_has_the_same_sigmoid_wherever_it_stands() -> None:
    """A library's exponential differs between the vector and the scalar part of a loop."""
    bits = torch.linspace(-30, 30, 10_007)
    whole = _sigmoid_of_bits(bits.clone())
    single = torch.cat([_sigmoid_of_bits(one.clone()) for one in bits.split(1)])
    strided = _sigmoid_of_bits(bits.repeat_interleave(3)[::3])
    assert torch.equal(whole, single)
    assert torch.equal(whole, strided)


def exact_moments(gradient: torch.Tensor) -> tuple[float, float]:
    size = gradient.double().abs()
    return size.mean().item(), size.std(correction=0).item()


@pytest.mark.parametrize("size", [1, 2, 1 << 18, (1 << 18) + 1, 3_000_001])
def test_statistics_agree_with_double_precision(size: int, device: str) -> None:
    gradient = (torch.randn(size) * 1e-3 + 0.01).to(device)
    layers = describe_layers([gradient], [gradient.numel()], [0], [0.0], [0.0], ["mean"])
    mean, std = measured(sums_of(gradient)[:, None].to(layers.size), layers.size)
    expected = exact_moments(gradient.cpu())
    rtol = 1e-6 if device == "mps" else 1e-12
    torch.testing.assert_close((mean.item(), std.item()), expected, rtol=rtol, atol=0)


@pytest.mark.slow
def test_statistics_of_a_billion_elements() -> None:
    """A float32 running sum would stop at 2**24 equal terms; ours is right to 1e-12."""
    count = 1 << 30
    block = torch.randn(1 << 20).to(torch.float16)
    gradient = block.expand(count >> 20, 1 << 20)
    total, squares = sums_of(gradient).tolist()
    mean, std = exact_moments(block)
    assert total / count == pytest.approx(mean, rel=1e-12)
    assert (squares / count) ** 0.5 == pytest.approx(std, rel=1e-12)
    naive = block.abs().float().cumsum(0)[-1].item() / block.numel()
    assert abs(naive - mean) > 1e-9 * mean, "the comparison has lost its point"


def test_the_order_of_the_elements_does_not_show_in_a_probability() -> None:
    gradient = torch.randn(200_000)
    order = torch.randperm(gradient.numel())
    (p,) = update_probability([gradient], ["linear"], alpha=1.0)
    (q,) = update_probability([gradient[order]], ["linear"], alpha=1.0)
    assert torch.equal(p[order], q)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([torch.ones(2)], [""]), "kind must be a string that is not empty, got ''"),
        (([torch.ones(2)], ["conv", "conv"]), "grads and kinds differ in length: 1 and 2"),
        (([torch.ones(2)], ["conv"], 0.1, -4.0, "sum"), "cross_layer must be one of .*'sum'"),
    ],
)
def test_bad_input(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        update_probability(*arguments)


def test_the_mean_probability_is_one_half_where_scores_are_symmetric_and_nearly_so_elsewhere() -> (
    None
):
    """The article: E[p] = 1/2 under each scheme. |g| is skewed, so it holds for small slopes."""
    grad = torch.randn(1_000_000)

    def offset(alpha: float) -> float:
        (p,) = update_probability([grad], ["conv"], alpha=alpha, lambd=0.0)
        return p.double().mean().item() - 0.5

    assert abs(offset(0.1)) < 1e-4
    assert -0.012 < offset(1.0) < -0.010


@pytest.mark.parametrize(("lognormal", "expected"), [(False, 0.5), (True, 0.6)])
def test_the_mean_probability_of_layers_depends_on_the_skew_of_their_scores(
    lognormal: bool, expected: float
) -> None:
    """Over 400 draws of eight layers, lambda -4; 0.015 is five standard errors."""
    means = 1 + 0.1 * torch.randn(400, 8)
    sizes = torch.randn(400, 8).exp() if lognormal else means.abs()
    chances = [
        update_probability([size.expand(2) for size in row], ["conv"] * 8, 0.0, -4.0)
        for row in sizes
    ]
    found = torch.stack([torch.stack(row).mean() for row in chances]).mean().item()
    assert abs(found - expected) < 0.015
