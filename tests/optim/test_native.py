"""Invariant: the compiled step is the eager step, to the last bit, only faster."""

import pytest
import torch
from torch import nn

from stochbatch import SBS, param_groups
from stochbatch.optim.kernels import native
from tests.optim.networks import moves_natively, same_weights, small_network, train

SHAPES = [
    (64, 3, 3, 3),
    (64,),
    (130, 64, 3, 3),
    (10, 131),
    (10,),
    (1,),
    (7,),
    (),
    (0, 4),
    (300, 257),
]
CHANNELS_LAST = torch.channels_last


def available() -> bool:
    try:
        native.library()
    except native.UnavailableError:
        return False
    return True


pytestmark = pytest.mark.skipif(not available(), reason="no C++ compiler that can build the step")


DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def parameters(channels_last: bool, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(3)
    result = []
    for shape in SHAPES:
        weight = torch.randn(shape, generator=generator)
        if channels_last and weight.dim() == 4:
            weight = weight.contiguous(memory_format=CHANNELS_LAST)
        result.append(nn.Parameter(weight.to(dtype)))
    return result


def gradients(step: int, scale: float = 1.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return [
        torch.randn(shape, generator=generator) * scale * 10.0 ** (number % 4 - 2)
        for number, shape in enumerate(SHAPES)
    ]


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal as integers: the sign of a zero counts; one NaN is as good as another."""
    assert one.dtype == other.dtype
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[one.element_size()]
    integers = [x.detach().contiguous().view(integer) for x in (one, other)]
    same = integers[0] == integers[1]
    return bool((same | (one.isnan() & other.isnan())).all())


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.allclose(one, other, rtol=1e-12, atol=1e-13, equal_nan=True)


def assert_same_run(
    options: dict,
    *,
    channels_last: bool = False,
    tensor_lr: bool = False,
    spoil: float | None = None,
    scale: float = 1.0,
    steps: int = 4,
    dtype: torch.dtype = torch.float32,
) -> None:
    runs = []
    for fused in (False, True):
        weights = parameters(channels_last, dtype)
        rates = [torch.tensor(0.1), torch.tensor(0.03)] if tensor_lr else [0.1, 0.03]
        groups = [{"params": weights[:4], "lr": rates[0]}, {"params": weights[4:], "lr": rates[1]}]
        runs.append((weights, SBS(groups, fused=fused, **options)))
    for step in range(steps):
        for weights, optimizer in runs:
            for weight, gradient in zip(weights, gradients(step, scale), strict=True):
                weight.grad = torch.empty_like(weight).copy_(gradient)
            if spoil is not None and step == 1:
                weights[2].grad[5, 5] = spoil
            if step == 2:
                weights[3].grad = None
            optimizer.step()
        (eager, one), (compiled, two) = runs
        # The order of a sum shows in the probabilities of doubles, which the mean field moves by.
        rounds = dtype == torch.float64 and options.get("coin") == "none"
        same = close if rounds else same_bits
        for left, right in zip(eager, compiled, strict=True):
            assert same(left, right)
            for name in ("grad_mean", "batches", "momentum_buffer"):
                if name in one.state[left]:
                    assert same(one.state[left][name], two.state[right][name]), name
            if left.numel():
                tallies = one.state[left]["tally"], two.state[right]["tally"]
                torch.testing.assert_close(*tallies, rtol=2e-6, atol=1e-7, equal_nan=True)
        assert (one.steps, one.skipped_steps) == (two.steps, two.skipped_steps)


MOVES = [
    {},
    {"momentum": 0.9},
    {"momentum": 0.9, "nesterov": True},
]


@pytest.mark.parametrize("move", MOVES, ids=str)
@pytest.mark.parametrize("scaling", ["none", "linear"])
@pytest.mark.parametrize("decay", [0.0, 5e-4])
@pytest.mark.parametrize("maximize", [False, True])
def test_every_way_to_move(move: dict, scaling: str, decay: float, maximize: bool) -> None:
    options = {"lr_scaling": scaling, "weight_decay": decay, "maximize": maximize, **move}
    assert_same_run(options, channels_last=maximize, tensor_lr=bool(decay))


@pytest.mark.parametrize("reading", ["total", "mean", "weighted"])
@pytest.mark.parametrize(
    "weights", [(0.1, -4.0), (1.0, 0.0), (0.0, -2.0), (-0.1, 8.0), (5.0, 1.0)], ids=str
)
def test_every_way_to_draw(reading: str, weights: tuple[float, float]) -> None:
    alpha, lambd = weights
    assert_same_run({"alpha": alpha, "lambd": lambd, "cross_layer": reading})


@pytest.mark.parametrize("move", MOVES, ids=str)
@pytest.mark.parametrize("coin", ["scalar", "none"])
@pytest.mark.parametrize("more", [{}, {"weight_decay": 0.1, "maximize": True}], ids=str)
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_every_dtype(dtype: torch.dtype, move: dict, coin: str, more: dict) -> None:
    assert_same_run({"coin": coin, **move, **more}, channels_last=bool(more), dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_nonfinite_gradients_of_every_dtype(dtype: torch.dtype, value: float) -> None:
    for guard in (True, False):
        assert_same_run({"skip_nonfinite": guard}, spoil=value, dtype=dtype)


def test_layers_of_all_dtypes_in_one_step() -> None:
    runs = []
    for fused in (False, True):
        weights = [w for dtype in DTYPES for w in parameters(False, dtype)[2:4]]
        optimizer = SBS(weights, fused=fused, momentum=0.9)
        for step in range(3):
            generator = torch.Generator().manual_seed(step)
            for weight in weights:
                weight.grad = torch.randn(weight.shape, generator=generator).to(weight)
            optimizer.step()
        runs.append(weights)
    assert moves_natively(optimizer)
    assert all(same_bits(one, other) for one, other in zip(*runs, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_gradients_of_float32_for_weights_of_half_precision(dtype: torch.dtype) -> None:
    weights = [nn.Parameter(torch.ones(1000, dtype=dtype)) for _ in range(2)]
    for weight, fused in zip(weights, (False, True), strict=True):
        weight.grad_dtype = torch.float32
        weight.grad = torch.linspace(-1, 1, 1000) / 3
        SBS([weight], fused=fused).step()
    assert same_bits(*weights)


@pytest.mark.parametrize("probability", [1.0, 0.5, 0.05, 2.0**-24])
def test_fixed_probabilities(probability: float) -> None:
    assert_same_run({"probability": probability, "momentum": 0.6})


def test_a_large_seed() -> None:
    assert_same_run({"seed": 2**64 - 1, "momentum": 0.9}, steps=5)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), float("-inf")])
@pytest.mark.parametrize("guard", [True, False])
def test_nonfinite_gradients(value: float, guard: bool) -> None:
    assert_same_run({"skip_nonfinite": guard, "momentum": 0.9}, spoil=value)


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-8, 1e15, 1e36])
def test_gradients_of_any_size(scale: float) -> None:
    assert_same_run({"alpha": 1.0}, scale=scale)


def test_the_number_of_threads_does_not_show() -> None:
    threads = torch.get_num_threads()
    networks = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            weights = parameters(False)
            optimizer = SBS(weights, momentum=0.9, fused=True)
            for step in range(3):
                for weight, gradient in zip(weights, gradients(step), strict=True):
                    weight.grad = gradient
                optimizer.step()
            tallies = [optimizer.state[w]["tally"] for w in weights if w.numel()]
            networks.append([*weights, *tallies])
    finally:
        torch.set_num_threads(threads)
    for other in networks[1:]:
        assert all(torch.equal(a, b) for a, b in zip(networks[0], other, strict=True))


def test_paths_can_change_in_the_middle_of_a_run() -> None:
    steady, changing = small_network(), small_network()
    one = SBS(param_groups(steady), momentum=0.9, fused=False)
    two = SBS(param_groups(changing), momentum=0.9, fused=True)
    for start in range(0, 6, 2):
        train(steady, one, range(start, start + 2))
        train(changing, two, range(start, start + 2))
        saved = two.state_dict()
        two = SBS(param_groups(changing), fused=True)
        for group in saved["param_groups"]:
            group["fused"] = start == 2
        two.load_state_dict(saved)
        assert same_weights(steady, changing)
    assert two.steps == 6
