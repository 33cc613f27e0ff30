"""Invariant: a step of SBS is Algorithm 2, scalar by scalar, under every option."""

import itertools

import pytest
import torch
from benchmarks.memory import peak_of
from torch import Tensor, nn

from stochbatch import SBS, param_groups, uniform, update_probability
from tests.optim.networks import backward, same_weights, set_gradients, small_network, train
from tests.optim.reference import ReferenceSBS

SHAPES = [(3, 2, 3, 3), (4, 3, 1, 1), (5, 4), (2, 5), (5,), (2,), (2,), (3,)]
KINDS = ["conv", "conv", "linear", "linear", "bias", "bias", "norm_weight", "norm_bias"]
MOVES = [
    {},
    {"momentum": 0.9},
    {"momentum": 0.6, "nesterov": True},
]
PROBABILITIES = [
    {},
    {"cross_layer": "mean"},
    {"cross_layer": "weighted", "lambd": -1.0},
    {"cross_layer": "mean", "compare": "all"},  # Eq. 19 as printed
    {"compare": "type"},
    {"alpha": 1.0, "lambd": 0.0},
    {"alpha": 0.0, "lambd": 2.0},
    {"probability": 0.5},
    {"probability": 0.05},
]
REST = [
    {},
    {"weight_decay": 0.1},
    {"maximize": True, "weight_decay": 0.01},
    {"seed": 2**63 + 5},
]


def gradient(step: int, shape: tuple[int, ...], layer: int, device: str) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + layer)
    numbers = torch.randn(shape, generator=generator, dtype=torch.float64) * (1 + layer % 3)
    return numbers.to(device)


def sbs_and_reference(
    device: str = "cpu", fused: bool | None = None, **options: object
) -> tuple[SBS, ReferenceSBS]:
    weights = [gradient(-1, shape, layer, device) for layer, shape in enumerate(SHAPES)]
    groups = [
        {"params": [nn.Parameter(weight)], "kind": kind}
        for weight, kind in zip(weights, KINDS, strict=True)
    ]
    flat = [weight.flatten().tolist() for weight in weights]
    optimizer = SBS(groups, lr=0.1, fused=fused, **options)
    return optimizer, ReferenceSBS(flat, KINDS, lr=0.1, **options)


def parameters(optimizer: SBS) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def assert_same(optimizer: SBS, reference: ReferenceSBS) -> None:
    for layer, parameter in enumerate(parameters(optimizer)):
        state = optimizer.state[parameter]
        assert state["batches"].flatten().tolist() == reference.batches[layer]
        for found, expected in (
            (parameter, reference.weights),
            (state["grad_mean"], reference.grad_mean),
            (state.get("momentum_buffer", torch.zeros_like(parameter)), reference.buffer),
        ):
            torch.testing.assert_close(
                found.flatten().tolist(), expected[layer], rtol=1e-11, atol=1e-13
            )


@pytest.mark.parametrize("fused", [False, None], ids=["eager", "compiled where possible"])
@pytest.mark.parametrize("scaling", ["none", "linear"])
@pytest.mark.parametrize("move", MOVES, ids=str)
@pytest.mark.parametrize("probability", PROBABILITIES, ids=str)
def test_every_way_to_draw_and_to_move_agrees_with_algorithm_2(
    fused: bool | None, scaling: str, move: dict, probability: dict, device: str
) -> None:
    if device == "mps":
        pytest.skip("no double precision on mps")
    options = {"lr_scaling": scaling, **move, **probability}
    optimizer, reference = sbs_and_reference(device, fused=fused, **options)
    assert_side_by_side(optimizer, reference, steps=8, device=device)


@pytest.mark.parametrize("fused", [False, None], ids=["eager", "compiled where possible"])
@pytest.mark.parametrize("move", MOVES, ids=str)
@pytest.mark.parametrize("rest", REST, ids=str)
def test_every_other_option_agrees_with_algorithm_2(
    fused: bool | None, rest: dict, move: dict
) -> None:
    optimizer, reference = sbs_and_reference(fused=fused, **rest, **move)
    assert_side_by_side(optimizer, reference, steps=8)


def assert_side_by_side(
    optimizer: SBS, reference: ReferenceSBS, steps: int, device: str = "cpu"
) -> None:
    for step in range(steps):
        grads = [gradient(step, shape, layer, device) for layer, shape in enumerate(SHAPES)]
        set_gradients(optimizer, grads)
        optimizer.step()
        reference.step([grad.flatten().tolist() for grad in grads])
        assert_same(optimizer, reference)
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
        reference.lr *= 0.9
    assert optimizer.steps == steps


def test_temporaries_of_many_small_layers_are_bounded() -> None:
    """Small layers are copied to be moved together, but not all of them at once."""
    peaks = []
    for count in (20, 200):
        weights = [nn.Parameter(torch.zeros(10_000)) for _ in range(count)]
        optimizer = SBS(weights, fused=False)
        for _ in range(2):
            set_gradients(optimizer, [torch.ones_like(weight) for weight in weights])
            peak = peak_of(optimizer.step)
        peaks.append(peak)
    assert peaks[1] < 1.5 * peaks[0]
    assert peaks[1] < 8 << 20


def test_new_epoch_forgets_averages_and_keeps_momentum() -> None:
    optimizer, reference = sbs_and_reference(momentum=0.9, probability=0.3)
    for epoch in range(3):
        if epoch:
            optimizer.new_epoch()
            reference.new_epoch()
            assert_same(optimizer, reference)
        for step in range(4):
            grads = [gradient(step, shape, layer, "cpu") for layer, shape in enumerate(SHAPES)]
            set_gradients(optimizer, grads)
            optimizer.step()
            reference.step([grad.flatten().tolist() for grad in grads])
    assert_same(optimizer, reference)


@pytest.mark.parametrize(
    "change", [{"alpha": 3.0}, {"lambd": 1.0}, {"cross_layer": "mean"}, {"seed": 5}], ids=str
)
def test_options_changed_between_steps_take_effect(change: dict) -> None:
    changed, _ = sbs_and_reference()
    told, _ = sbs_and_reference(**change)
    for step, optimizer in ((0, changed), (1, changed), (1, told)):
        grads = [gradient(step, shape, layer, "cpu") for layer, shape in enumerate(SHAPES)]
        set_gradients(optimizer, grads)
        if optimizer is changed and step == 1:
            for group in changed.param_groups:
                group.update(change)
            for state in changed.state.values():
                state["step"].zero_()
            changed.new_epoch()
        optimizer.step()
    for one, two in zip(parameters(changed), parameters(told), strict=True):
        batches = [o.state[p]["batches"] for o, p in ((changed, one), (told, two))]
        assert torch.equal(*batches)


@pytest.mark.parametrize("fused", [False, None], ids=["eager", "compiled where possible"])
@pytest.mark.parametrize("probability", [None, 0.3])
@pytest.mark.parametrize("reading", ["total", "mean", "weighted"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_mask_of_a_step_can_be_computed_by_hand(
    dtype: torch.dtype, reading: str, probability: float | None, fused: bool | None, device: str
) -> None:
    if device == "mps" and dtype == torch.float64:
        pytest.skip("no double precision on mps")
    shapes = [(300_000,), (300, 300), (50, 4, 3, 3), (8, 4, 3, 3)]
    weights = [nn.Parameter(torch.zeros(s, dtype=dtype, device=device)) for s in shapes]
    options = {"cross_layer": reading, "probability": probability, "fused": fused}
    optimizer = SBS(weights, lr=1.0, seed=42, **options)
    for step in range(3):
        grads = [torch.randn(s, device=device).to(dtype) for s in shapes]
        set_gradients(optimizer, grads)
        before = [optimizer.state[w]["batches"].clone() if step else 1 for w in weights]
        optimizer.step()
        chances = (
            update_probability(grads, alpha=0.1, lambd=-4.0, cross_layer=reading)
            if probability is None
            else [probability] * len(shapes)
        )
        for number, weight in enumerate(weights):
            precision = torch.float64 if dtype == torch.float64 else torch.float32
            u = uniform(42, step, number, shapes[number], precision, device)
            chi = u < chances[number]
            after = optimizer.state[weight]["batches"]
            assert torch.equal(after, torch.where(chi, 1, before[number] + 1).to(after.dtype))


@pytest.mark.parametrize(
    ("momentum", "nesterov", "decay", "maximize", "scaling"),
    [
        case
        for case in itertools.product(
            [0.0, 0.9],
            [False, True],
            [0.0, 5e-4],
            [False, True],
            ["none", "linear"],
        )
        if case[0] or not case[1]
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tensor_lr", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_probability_one_is_sgd_bit_for_bit(
    fused: bool,
    momentum: float,
    nesterov: bool,
    decay: float,
    maximize: bool,
    scaling: str,
    dtype: torch.dtype,
    tensor_lr: bool,
    device: str,
) -> None:
    if device == "mps" and dtype == torch.float64:
        pytest.skip("no double precision on mps")
    if fused and (device != "cpu" or dtype != torch.float32):
        pytest.skip("not to the last bit there")
    common = {"momentum": momentum, "nesterov": nesterov, "weight_decay": decay}
    common["maximize"] = maximize
    ours, theirs = (small_network(dtype, device) for _ in range(2))
    rate = torch.tensor(0.05, device=device) if tensor_lr else 0.05
    own = {"lr_scaling": scaling, "probability": 1.0}
    sbs = SBS(ours.parameters(), rate, **common, **own, fused=fused)
    sgd = torch.optim.SGD(theirs.parameters(), rate, **common, foreach=False)
    for step in range(4):
        train(ours, sbs, range(step, step + 1))
        train(theirs, sgd, range(step, step + 1))
        assert same_weights(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_once(dtype: torch.dtype, device: str) -> None:
    """torch.optim.SGD rounds the rate to half precision as well; here only the weight is."""
    weight = nn.Parameter(torch.randn(1000, device=device).to(dtype))
    optimizer = SBS([weight], lr=0.1, probability=1.0)
    for _ in range(5):
        weight.grad = torch.randn(1000, device=device).to(dtype)
        expected = torch.add(weight.detach().float(), weight.grad.float(), alpha=-0.1).to(dtype)
        optimizer.step()
        assert torch.equal(weight, expected)


def test_the_average_of_half_precision_gradients_is_kept_in_single() -> None:
    """In bfloat16 the 300th increment of an average would be lost."""
    weight = nn.Parameter(torch.zeros(64, dtype=torch.bfloat16))
    optimizer = SBS([weight], probability=2.0**-24, seed=1)
    for step in range(400):
        weight.grad = torch.full((64,), 1.0 if step < 200 else 2.0, dtype=torch.bfloat16)
        optimizer.step()
    torch.testing.assert_close(optimizer.state[weight]["grad_mean"], torch.full((64,), 1.5))


def test_options_may_differ_between_groups() -> None:
    """Layers are compared over all groups, each group moves in its own way."""
    shapes = [(9, 4), (3, 5)]
    weights = [nn.Parameter(torch.zeros(s, dtype=torch.float64)) for s in shapes]
    first = {"params": [weights[0]], "alpha": 2.0, "lambd": -1.0, "lr": 1.0}
    second = {"params": [weights[1]], "cross_layer": "mean", "lr": 0.5}
    optimizer = SBS([first, second], alpha=0.5, lambd=3.0)
    grads = [torch.randn(s, dtype=torch.float64) for s in shapes]
    set_gradients(optimizer, grads)
    optimizer.step()
    kinds = ["linear"] * 2
    chances = [
        update_probability(grads, kinds, 2.0, -1.0, "total")[0],
        update_probability(grads, kinds, 0.5, 3.0, "mean")[1],
    ]
    for number, (weight, lr) in enumerate(zip(weights, (1.0, 0.5), strict=True)):
        chi = uniform(0, 0, number, shapes[number], torch.float64) < chances[number]
        assert torch.equal(weight.detach(), torch.where(chi, -lr * grads[number], 0.0))


def test_a_fixed_group_still_counts_among_the_layers() -> None:
    grads = [torch.randn(6, 3), 9 * torch.randn(5, 3), torch.randn(4, 3)]
    weights = [nn.Parameter(torch.zeros_like(grad)) for grad in grads]
    groups = [{"params": weights[:1], "probability": 1.0}, {"params": weights[1:]}]
    optimizer = SBS(groups, lr=1.0)
    set_gradients(optimizer, grads)
    optimizer.step()
    assert torch.equal(weights[0].detach(), -grads[0])
    chances = update_probability(grads, ["linear"] * 3)
    for number in (1, 2):
        chi = uniform(0, 0, number, grads[number].shape) < chances[number]
        assert torch.equal(weights[number].detach(), torch.where(chi, -grads[number], 0.0))


def test_a_group_may_say_its_kind() -> None:
    network = small_network()
    groups = param_groups(network)
    optimizer = SBS(groups, lr=1.0)
    backward(network, 0)
    named = dict(network.named_parameters())
    names = [name for group in groups for name, _ in group["params"]]
    kinds = [group["kind"] for group in groups for _ in group["params"]]
    before = {name: parameter.detach().clone() for name, parameter in named.items()}
    optimizer.step()
    grads = [named[name].grad for name in names]
    for number, p in enumerate(update_probability(grads, kinds)):
        chi = uniform(0, 0, number, p.shape) < p
        moved = torch.where(chi, before[names[number]] - grads[number], before[names[number]])
        torch.testing.assert_close(named[names[number]].detach(), moved)


def test_the_step_is_the_same_in_any_memory_layout(device: str) -> None:
    weight = torch.randn(16, 8, 3, 3, device=device)
    layouts = {
        "contiguous": weight.clone(),
        "channels last": weight.clone(memory_format=torch.channels_last),
        "strided": torch.empty(16, 8, 3, 6, device=device)[..., ::2].copy_(weight),
        "transposed": weight.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0),
    }
    results = {}
    for name, tensor in layouts.items():
        parameter = nn.Parameter(tensor)
        optimizer = SBS([parameter], lr=0.1, momentum=0.9, weight_decay=0.1)
        for step in range(3):
            grad = gradient(step, weight.shape, 0, "cpu").float().to(device)
            # The gradient's layout need not be the parameter's.
            parameter.grad = grad.clone(memory_format=torch.channels_last) if step else grad
            optimizer.step()
        results[name] = parameter.detach().contiguous()
        assert parameter.stride() == tensor.stride()
    for name, result in results.items():
        assert torch.equal(result, results["contiguous"]), name


@pytest.mark.parametrize("fused", [False, None])
def test_an_expanded_gradient_is_a_gradient(fused: bool | None) -> None:
    weight = nn.Parameter(torch.randn(20_000))
    before = weight.detach().clone()
    weight.grad = torch.ones(1).expand(20_000)
    SBS([weight], lr=0.5, probability=1.0, fused=fused).step()
    assert torch.equal(weight.detach(), before - 0.5)


def test_complex_parameters_move_as_pairs_of_real_ones() -> None:
    whole = nn.Parameter(torch.randn(30, dtype=torch.complex64))
    pair = nn.Parameter(torch.view_as_real(whole.detach()).clone())
    options = {"momentum": 0.9, "weight_decay": 0.1}
    one = SBS([{"params": [whole], "kind": "other"}], **options)
    two = SBS([{"params": [pair], "kind": "other"}], **options)
    for _ in range(4):
        whole.grad = torch.randn(30, dtype=torch.complex64)
        pair.grad = torch.view_as_real(whole.grad).clone()
        one.step()
        two.step()
        assert torch.equal(torch.view_as_real(whole.detach()), pair.detach())


def test_a_constant_gradient_is_averaged_exactly_until_the_move() -> None:
    weight = nn.Parameter(torch.zeros(1000))
    optimizer = SBS([weight], lr=1.0, probability=0.2)
    moves = torch.zeros(1000)
    for _ in range(10):
        weight.grad = torch.full((1000,), 0.25)
        optimizer.step()
        moves += optimizer.state[weight]["batches"] == 1
    assert torch.equal(weight.detach(), -0.25 * moves)
    # 10,000 coins at 0.2: outside five standard deviations in one of 1.7 million seeds.
    assert abs(moves.sum() - 2000) < 5 * 40


@pytest.mark.parametrize("fused", [False, None], ids=["eager", "compiled where possible"])
def test_linear_scaling_moves_by_the_sum_of_the_gradients(fused: bool | None) -> None:
    weight = nn.Parameter(torch.zeros(500, dtype=torch.float64))
    optimizer = SBS([weight], lr=1.0, probability=0.3, lr_scaling="linear", fused=fused)
    total = torch.zeros_like(weight)
    for _ in range(40):
        weight.grad = torch.randn(500, dtype=torch.float64)
        total += weight.grad
        optimizer.step()
    resting = optimizer.state[weight]["grad_mean"] * (optimizer.state[weight]["batches"] - 1)
    torch.testing.assert_close(weight.detach(), -(total - resting))


def test_seeds_matter() -> None:
    one, two = (small_network() for _ in range(2))
    train(one, SBS(one.parameters(), seed=0), range(1))
    train(two, SBS(two.parameters(), seed=1), range(1))
    assert not same_weights(one, two)
