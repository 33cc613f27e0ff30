"""Invariant: a masked weight has the bits of the base's step, or the bits it had before."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from benchmarks.memory import peak_of
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import (
    ASGD,
    LBFGS,
    SGD,
    Adafactor,
    Adagrad,
    AdamW,
    Muon,
    NAdam,
    Optimizer,
    RMSprop,
    SparseAdam,
)

from stochbatch import SBS, Masked, param_groups, uniform, update_probability
from stochbatch.optim import AccSGD, AlternatingSGD, EntropySGD
from stochbatch.optim.masked import STEPS
from stochbatch.optim.pieces import PIECE_BITS

Make = Callable[[Any], Optimizer]

BASES: dict[str, Make] = {
    "SGD": lambda params: SGD(params, lr=0.1),
    "SGD momentum": lambda params: SGD(params, lr=0.1, momentum=0.9, weight_decay=0.01),
    "SGD nesterov foreach": lambda params: SGD(
        params, lr=0.1, momentum=0.9, nesterov=True, foreach=True
    ),
    "SGD fused": lambda params: SGD(params, lr=0.1, momentum=0.9, fused=True),
    "AdamW": lambda params: AdamW(params, lr=torch.tensor(0.1), foreach=False),
    "AdamW foreach": lambda params: AdamW(params, lr=0.1, foreach=True),
    "AdamW fused": lambda params: AdamW(params, lr=0.1, amsgrad=True, fused=True),
    "RMSprop": lambda params: RMSprop(params, lr=0.1, momentum=0.5, centered=True),
    "NAdam": lambda params: NAdam(params, lr=0.1, decoupled_weight_decay=True, weight_decay=0.1),
    "Muon": lambda params: Muon(params, lr=0.1),
    "Adafactor": lambda params: Adafactor(params, lr=0.1),
    "Adagrad": lambda params: Adagrad(params, lr=0.1),
}
SHAPES = [(7, 5), (11,), (), (3, 4, 3, 3), (40, 50)]
MATRICES = [(7, 5), (11, 2), (40, 50)]
COINS = ["scalar", "tensor", "none"]


def numbers(seed: int, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def parameters(name: str = "", dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    shapes = MATRICES if name == "Muon" else SHAPES
    return [nn.Parameter(numbers(seed, shape, dtype)) for seed, shape in enumerate(shapes)]


def give_grads(params: Sequence[Tensor], step: int) -> None:
    for number, parameter in enumerate(params):
        parameter.grad = numbers(1000 * (step + 1) + number, parameter.shape, parameter.dtype)


def train(optimizer: Optimizer, steps: range) -> None:
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for step in steps:
        give_grads(params, step)
        optimizer.step()


class Twins:
    """A masked optimizer, and its base alone, put where the masked one is after every step."""

    def __init__(self, make: Make, params: Sequence[nn.Parameter], **options: Any) -> None:
        self.params = list(params)
        self.others = [nn.Parameter(p.detach().clone()) for p in params]
        self.masked = Masked(make(self.params), **options)
        self.base = make(self.others)

    def step(self, step: int) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Step both; return for each parameter the old, the base's and the masked weight."""
        give_grads(self.params, step)
        give_grads(self.others, step)
        old = [p.detach().clone() for p in self.params]
        self.masked.step()
        self.base.step()
        found = [
            (before, other.detach().clone(), p.detach().clone())
            for before, other, p in zip(old, self.others, self.params, strict=True)
        ]
        with torch.no_grad():
            for p, other in zip(self.params, self.others, strict=True):
                other.copy_(p)
        return found

    def assert_same_state(self) -> None:
        """The base's state advances as if nothing had been masked."""
        for p, other in zip(self.params, self.others, strict=True):
            own, alone = dict(self.masked.state[p]), dict(self.base.state[other])
            assert own.pop(STEPS) == self.masked.steps
            assert own.keys() == alone.keys()
            for key, value in alone.items():
                assert own[key] is None if value is None else torch.equal(own[key], value), key


@pytest.mark.parametrize("coin", ["scalar", "tensor"])
@pytest.mark.parametrize("name", BASES)
def test_a_weight_has_the_bits_of_the_base_or_its_old_ones(name: str, coin: str) -> None:
    twins = Twins(BASES[name], parameters(name), probability=0.3, coin=coin, seed=5)
    for step in range(6):
        for index, (old, new, found) in enumerate(twins.step(step)):
            shape = found.shape if coin == "scalar" else ()
            came_up = uniform(5, step, index, shape) < 0.3
            assert torch.equal(found, torch.where(came_up, new, old))
    twins.assert_same_state()


@pytest.mark.parametrize("coin", ["scalar", "tensor"])
@pytest.mark.parametrize("name", ["SGD nesterov foreach", "AdamW fused", "Muon"])
def test_the_adaptive_probability_is_that_of_the_gradients_the_base_used(
    name: str, coin: str
) -> None:
    options: dict[str, Any] = {"alpha": 1.0, "lambd": -0.5, "cross_layer": "mean"}
    params = parameters(name)
    twins = Twins(BASES[name], params, probability=None, coin=coin, **options)
    for step in range(4):
        give_grads(params, step)
        chances = update_probability([p.grad for p in params], **options)
        for index, (old, new, found) in enumerate(twins.step(step)):
            shape = found.shape if coin == "scalar" else ()
            came_up = uniform(0, step, index, shape) < chances[index]
            assert torch.equal(found, torch.where(came_up, new, old))
    twins.assert_same_state()


@pytest.mark.parametrize("compare", ["kind", "type", "all"])
def test_layers_are_compared_as_told(compare: str) -> None:
    kinds = ["norm_weight", "norm_bias", "linear", "norm_bias"]
    as_if = {
        "kind": kinds,
        "type": ["bias", "bias", "linear", "bias"],
        "all": ["bias"] * 4,
    }[compare]
    params = [nn.Parameter(numbers(seed, (50 * (seed + 1),))) for seed in range(4)]
    groups = [{"params": [p], "kind": kind} for p, kind in zip(params, kinds, strict=True)]
    old = [p.detach().clone() for p in params]
    optimizer = Masked(SGD(groups, lr=1.0), probability=None, lambd=-1.0, compare=compare)
    give_grads(params, 0)
    optimizer.step()
    chances = update_probability([p.grad for p in params], as_if, lambd=-1.0)
    for index, p in enumerate(params):
        came_up = uniform(0, 0, index, p.shape) < chances[index]
        assert torch.equal(p != old[index], came_up)


def test_a_nan_cannot_reach_a_resting_weight() -> None:
    p = nn.Parameter(numbers(0, (1000,)))
    old = p.detach().clone()
    optimizer = Masked(SGD([p], lr=0.1), rescale=True)
    optimizer_too = Masked(SGD([p], lr=0.1))
    for step, each in enumerate((optimizer, optimizer_too)):
        with torch.no_grad():
            p.copy_(old)
        p.grad = torch.full_like(p, float("nan"))
        each.step()
        came_up = uniform(0, 0, 0, (1000,)) < 0.5
        assert torch.equal(p.isnan(), came_up), step
        assert torch.equal(p[~came_up], old[~came_up])


@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("coin", COINS)
@pytest.mark.parametrize("name", BASES)
def test_probability_one_is_the_base_bit_for_bit(name: str, coin: str, rescale: bool) -> None:
    params, others = parameters(name), parameters(name)
    masked = Masked(BASES[name](params), probability=1, coin=coin, rescale=rescale)
    base = BASES[name](others)
    train(masked, range(4))
    train(base, range(4))
    for p, other in zip(params, others, strict=True):
        assert torch.equal(p, other)


def test_probability_one_is_the_base_where_it_overflows() -> None:
    p = nn.Parameter(torch.ones(3))
    optimizer = Masked(SGD([p], lr=1e38), probability=1, coin="none")
    p.grad = torch.tensor([10.0, -10.0, float("nan")])
    optimizer.step()
    assert p[:2].tolist() == [float("-inf"), float("inf")]


@pytest.mark.parametrize("name", BASES)
def test_without_a_coin_the_whole_move_is_scaled(name: str) -> None:
    twins = Twins(BASES[name], parameters(name), probability=0.25, coin="none")
    for step in range(4):
        for old, new, found in twins.step(step):
            expected = old.double() + 0.25 * (new.double() - old.double())
            torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-7)
            assert not torch.equal(found, new)
    twins.assert_same_state()


def test_without_a_coin_decay_is_scaled_too() -> None:
    p = nn.Parameter(torch.full((3,), 2.0))
    optimizer = Masked(AdamW([p], lr=0.1, weight_decay=0.5), probability=0.5, coin="none")
    p.grad = torch.zeros(3)
    optimizer.step()
    torch.testing.assert_close(p.detach(), torch.full((3,), 2.0 * (1 - 0.5 * 0.1 * 0.5)))


def test_without_a_coin_the_adaptive_probability_scales_each_scalar() -> None:
    params = parameters()
    twins = Twins(BASES["SGD nesterov foreach"], params, probability=None, lambd=-1.0, coin="none")
    for step in range(3):
        give_grads(params, step)
        chances = update_probability([p.grad for p in params], lambd=-1.0)
        for (old, new, found), p in zip(twins.step(step), chances, strict=True):
            expected = old.double() + p.double() * (new.double() - old.double())
            torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("chance", [0.25, None])
@pytest.mark.parametrize("coin", ["scalar", "tensor"])
def test_rescaling_divides_the_move(coin: str, chance: float | None) -> None:
    params = parameters()
    twins = Twins(
        BASES["SGD nesterov foreach"], params, probability=chance, coin=coin, rescale=True
    )
    for step in range(4):
        give_grads(params, step)
        adaptive = update_probability([p.grad for p in params])
        for index, (old, new, found) in enumerate(twins.step(step)):
            p = adaptive[index] if chance is None else torch.tensor(chance)
            came_up = uniform(0, step, index, found.shape if coin == "scalar" else ()) < p
            came_up = came_up.expand(found.shape)
            expected = old.double() + (new.double() - old.double()) / p.double()
            expected = expected.expand(found.shape)
            torch.testing.assert_close(
                found.double()[came_up], expected[came_up], rtol=1e-5, atol=1e-6
            )
            assert torch.equal(found[~came_up], old[~came_up])


@pytest.mark.parametrize("rescale", [False, True])
def test_a_tensor_of_several_pieces(rescale: bool) -> None:
    p = nn.Parameter(torch.zeros(3, (1 << PIECE_BITS) - 1))
    p.grad = torch.ones_like(p)
    Masked(SGD([p], lr=1.0), probability=0.25, rescale=rescale).step()
    came_up = uniform(0, 0, 0, p.shape) < 0.25
    assert torch.equal(p, torch.where(came_up, -4.0 if rescale else -1.0, 0.0))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("coin", ["scalar", "tensor"])
def test_other_dtypes(coin: str, dtype: torch.dtype) -> None:
    twins = Twins(BASES["SGD momentum"], parameters(dtype=dtype), probability=0.5, coin=coin)
    for step in range(3):
        for index, (old, new, found) in enumerate(twins.step(step)):
            came_up = uniform(0, step, index, found.shape if coin == "scalar" else ()) < 0.5
            assert torch.equal(found, torch.where(came_up, new, old))


@pytest.mark.parametrize("name", ["SGD momentum", "AdamW", "AdamW foreach", "RMSprop"])
@pytest.mark.parametrize("chance", [0.5, None])
def test_a_complex_parameter_counts_as_its_real_view(name: str, chance: float | None) -> None:
    params = [
        nn.Parameter(torch.view_as_complex(numbers(0, (40, 30, 2)))),
        nn.Parameter(numbers(1, (40, 30))),
    ]
    twins = Twins(BASES[name], params, probability=chance)
    for step in range(3):
        give_grads(params, step)
        grads = [torch.view_as_real(params[0].grad), params[1].grad]
        chances = update_probability(grads, ["linear", "linear"])
        for index, weights in enumerate(twins.step(step)):
            old, new, found = (torch.view_as_real(w) if w.is_complex() else w for w in weights)
            p = chances[index] if chance is None else chance
            came_up = uniform(0, step, index, found.shape) < p
            assert torch.equal(found, torch.where(came_up, new, old))


def test_memory_formats_and_transposed_weights() -> None:
    params = [
        nn.Parameter(numbers(0, (8, 6, 5, 5)).to(memory_format=torch.channels_last)),
        nn.Parameter(numbers(1, (30, 20)).T),
    ]
    for chance in (0.5, None):
        twins = Twins(BASES["SGD momentum"], params, probability=chance)
        for step in range(2):
            give_grads(params, step)
            chances = update_probability([p.grad for p in params])
            for index, (old, new, found) in enumerate(twins.step(step)):
                p = chances[index] if chance is None else chance
                came_up = uniform(0, step, index, found.shape) < p
                assert torch.equal(found, torch.where(came_up, new, old))


# Which parameters, which steps


def moved(params: Sequence[Tensor], old: Sequence[Tensor]) -> list[Tensor]:
    return [p.detach() != before for p, before in zip(params, old, strict=True)]


@pytest.mark.parametrize("way", ["parameters", "function", "group"])
@pytest.mark.parametrize("chance", [0.5, None])
def test_excluded_parameters_are_the_bases_and_still_have_an_index(
    way: str, chance: float | None
) -> None:
    params = [nn.Parameter(numbers(seed, (300,))) for seed in range(4)]
    out = [True, False, True, False]
    groups = [
        {"params": [(f"p{i}", p)], **({"masked": not out[i]} if way == "group" else {})}
        for i, p in enumerate(params)
    ]
    excluded: Any = {
        "parameters": (p for p, left in zip(params, out, strict=True) if left),
        "function": lambda name, p: name in ("p0", "p2"),
        "group": None,
    }[way]
    optimizer = Masked(SGD(groups, lr=0.1), probability=chance, exclude=excluded)
    old = [p.detach().clone() for p in params]
    give_grads(params, 0)
    optimizer.step()
    compared = update_probability([p.grad for p, left in zip(params, out, strict=True) if not left])
    chances = [None, compared[0], None, compared[1]]
    for index, change in enumerate(moved(params, old)):
        if out[index]:
            assert change.all()
        else:
            p = chance or chances[index]
            assert torch.equal(change, uniform(0, 0, index, (300,)) < p)


def test_a_parameter_without_a_name_is_called_by_its_index() -> None:
    called = []
    params = [nn.Parameter(torch.ones(2)) for _ in range(3)]
    base = SGD([{"params": params[:2]}, {"params": params[2:]}], lr=0.1)
    optimizer = Masked(base, exclude=lambda name, p: called.append((name, p is params[int(name)])))
    train(optimizer, range(1))
    assert called == [("0", True), ("1", True), ("2", True)]


def test_kinds_come_from_the_groups() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3))
    base = SGD(param_groups(model), lr=0.1)
    optimizer = Masked(base, probability=None, lambd=-2.0, alpha=0.5)
    params = [p for group in base.param_groups for p in group["params"]]
    kinds = [group["kind"] for group in base.param_groups for _ in group["params"]]
    old = [p.detach().clone() for p in params]
    give_grads(params, 0)
    optimizer.step()
    chances = update_probability([p.grad for p in params], kinds, 0.5, -2.0)
    for index, change in enumerate(moved(params, old)):
        assert torch.equal(change, uniform(0, 0, index, change.shape) < chances[index])


def test_steps_without_any_gradient_do_not_count() -> None:
    params = parameters()
    optimizer = Masked(AdamW(params, lr=0.1))
    optimizer.step()
    assert optimizer.steps == 0
    assert not optimizer.state_dict()["state"]
    params[1].grad = torch.ones(11)
    optimizer.step()
    assert optimizer.steps == 1
    assert list(optimizer.state) == [params[1]]


def test_a_parameter_whose_first_gradient_comes_late_has_the_coins_of_that_step() -> None:
    params = [nn.Parameter(numbers(seed, (100,))) for seed in range(2)]
    optimizer = Masked(AdamW(params, lr=0.1))
    for _ in range(3):
        params[0].grad = torch.ones(100)
        optimizer.step()
    old = params[1].detach().clone()
    params[1].grad = torch.ones(100)  # AdamW makes the state of a parameter that has none
    optimizer.step()
    assert torch.equal(params[1] != old, uniform(0, 3, 1, (100,)) < 0.5)
    assert [optimizer.state[p][STEPS] for p in params] == [4, 4]


def test_a_step_of_excluded_parameters_alone_counts() -> None:
    params = [nn.Parameter(numbers(seed, (100,))) for seed in range(2)]
    optimizer = Masked(SGD(params, lr=0.1), exclude=params[:1])
    params[0].grad = torch.ones(100)
    optimizer.step()
    assert optimizer.steps == 1
    old = params[1].detach().clone()
    params[1].grad = torch.ones(100)
    optimizer.step()
    assert torch.equal(params[1] != old, uniform(0, 1, 1, (100,)) < 0.5)


@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1)])
@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_a_checkpoint_librarys_dummy_step_does_not_count(name: str, lr: float | Tensor) -> None:
    model = nn.Linear(5, 3)
    kind = {"SGD": SGD, "AdamW": AdamW}[name]
    optimizer = Masked(kind(model.parameters(), lr=lr), probability=None)
    get_optimizer_state_dict(model, optimizer)
    assert [optimizer.state[p][STEPS] for p in model.parameters()] == [0, 0]
    train(optimizer, range(1))
    assert optimizer.steps == 1


def test_a_rate_of_zero_alone_makes_no_dummy_step() -> None:
    p = nn.Parameter(torch.ones(3))
    optimizer = Masked(SGD([p], lr=0.0))
    p.grad = torch.ones(3)
    optimizer.step()
    p.grad = torch.zeros(3).to_sparse()
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.1
    p.grad = torch.zeros(3)
    optimizer.step()
    assert optimizer.steps == 3


# What it shares with its base


def test_groups_state_and_defaults_are_the_bases() -> None:
    params = parameters()
    base = AdamW(params, lr=0.1)
    optimizer = Masked(base)

    def shared(one: Masked) -> bool:
        return (
            one.param_groups is one.base.param_groups
            and one.state is one.base.state
            and one.defaults is one.base.defaults
        )

    assert isinstance(optimizer, Optimizer)
    assert optimizer.base is base
    assert shared(optimizer)
    train(optimizer, range(2))
    assert shared(optimizer)
    optimizer.load_state_dict(optimizer.state_dict())
    assert shared(optimizer)
    base.load_state_dict(base.state_dict())
    assert shared(optimizer)
    late = nn.Parameter(torch.ones(2))
    optimizer.add_param_group({"params": [late], "lr": 0.5})
    assert base.param_groups[-1]["params"] == [late]
    assert shared(optimizer)
    assert shared(copy.deepcopy(optimizer))
    assert shared(pickle.loads(pickle.dumps(optimizer)))
    assert base.defaults.keys() == AdamW(params).defaults.keys()


@pytest.mark.parametrize("way", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_go_on_alike(way: Callable[[Any], Any]) -> None:
    params = parameters()
    optimizer = Masked(AdamW(params, lr=0.1), exclude=params[1:2], seed=3)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)  # which leaves a step of its own behind
    train(optimizer, range(2))
    others, second = way((params, optimizer))
    train(optimizer, range(2, 4))
    train(second, range(2, 4))
    assert second.steps == optimizer.steps == 4
    for p, other in zip(params, others, strict=True):
        assert torch.equal(p, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["SGD", "SGD momentum", "AdamW fused"])
@pytest.mark.parametrize("chance", [0.5, None])
def test_a_resume_is_bitwise(chance: float | None, name: str, dtype: torch.dtype) -> None:
    params = parameters(dtype=dtype)
    optimizer = Masked(BASES[name](params), probability=chance, seed=2)
    train(optimizer, range(3))
    file = io.BytesIO()
    saved = optimizer.state_dict()
    assert saved.keys() == {"state", "param_groups"}
    torch.save([saved, params], file)
    train(optimizer, range(3, 6))
    file.seek(0)
    state, weights = torch.load(file, weights_only=True)
    others = [nn.Parameter(w.detach()) for w in weights]
    second = Masked(BASES[name](others), probability=chance, seed=2)
    second.load_state_dict(state)
    train(second, range(3, 6))
    assert second.steps == 6
    for p, other in zip(params, others, strict=True):
        assert torch.equal(p, other)


@pytest.mark.parametrize("name", ["SGD", "AdamW fused"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_counters_survive_loading(name: str, dtype: torch.dtype) -> None:
    model = nn.Linear(5, 3).to(dtype)
    optimizer = Masked(BASES[name](model.parameters()))
    train(optimizer, range(1))
    for state in optimizer.state.values():
        state[STEPS] = 2**53 + 1
    second = Masked(BASES[name](model.parameters()))
    second.load_state_dict(optimizer.state_dict())
    assert second.steps == 2**53 + 1
    third = Masked(BASES[name](model.parameters()))
    model.zero_grad()
    set_optimizer_state_dict(model, third, get_optimizer_state_dict(model, optimizer))
    assert third.steps == 2**53 + 1


def test_the_base_goes_on_without_the_wrapper() -> None:
    params, others = parameters(), parameters()
    optimizer, base = Masked(AdamW(params, lr=0.1), probability=1), AdamW(others, lr=0.1)
    train(optimizer, range(2))
    base.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    with torch.no_grad():
        for p, other in zip(params, others, strict=True):
            other.copy_(p)
    train(optimizer, range(2, 4))
    train(base, range(2, 4))
    for p, other in zip(params, others, strict=True):
        assert torch.equal(p, other)


def test_schedulers_move_the_bases_rate() -> None:
    params = parameters()
    optimizer = Masked(SGD(params, lr=0.4))
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for expected in (0.4, 0.2, 0.1):
        assert optimizer.base.param_groups[0]["lr"] == pytest.approx(expected)
        train(optimizer, range(1))
        scheduler.step()
    assert optimizer.steps == 3


def test_a_closure_is_called_once_by_the_base() -> None:
    calls = []

    def run(closure_given: bool) -> list[Tensor]:
        params = parameters()
        optimizer = Masked(BASES["AdamW"](params), probability=None)

        def closure() -> Tensor:
            assert torch.is_grad_enabled()
            optimizer.zero_grad()
            loss = torch.stack([(p - 0.3).abs().pow(1.5).sum() for p in params]).sum()
            loss.backward()
            calls.append(loss)
            return loss

        for _ in range(3):
            if closure_given:
                assert optimizer.step(closure) is calls[-1]
            else:
                closure()
                assert optimizer.step() is None
        assert optimizer.steps == 3
        return [p.detach() for p in params]

    for one, two in zip(run(True), run(False), strict=True):
        assert torch.equal(one, two)
    assert len(calls) == 6


def test_a_base_that_evaluates_twice_is_masked_from_where_it_began() -> None:
    class Ascending(SGD):
        """Takes the gradient at a point further up (as SAM does)."""

        def step(self, closure: Callable[[], Any]) -> Any:
            loss = closure()
            params = [p for group in self.param_groups for p in group["params"]]
            moves = [0.1 * p.grad for p in params]
            torch._foreach_add_(params, moves)
            closure()
            torch._foreach_sub_(params, moves)
            super().step()
            return loss

    p = nn.Parameter(numbers(0, (200,)))
    old = p.detach().clone()
    optimizer = Masked(Ascending([p], lr=0.1))

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = p.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) == old.square().sum()
    came_up = uniform(0, 0, 0, (200,)) < 0.5
    assert torch.equal(p != old, came_up)
    assert optimizer.steps == 1


def test_a_base_may_put_new_data_in_place() -> None:
    class Replacing(SGD):
        def step(self, closure: None = None) -> None:
            for p in self.param_groups[0]["params"]:
                p.data = p.data - p.grad

    p = nn.Parameter(numbers(0, (200,)))
    old = p.detach().clone()
    optimizer = Masked(Replacing([p]))
    p.grad = torch.ones(200)
    optimizer.step()
    assert torch.equal(p, torch.where(uniform(0, 0, 0, (200,)) < 0.5, old - 1, old))


def test_hooks_of_steps_see_the_wrapper_and_masked_weights() -> None:
    p = nn.Parameter(numbers(0, (100,)))
    old = p.detach().clone()
    optimizer = Masked(SGD([p], lr=0.1))
    seen: list[Any] = []
    optimizer.register_step_pre_hook(lambda one, args, kwargs: seen.append(one))
    optimizer.register_step_post_hook(
        lambda one, args, kwargs: seen.extend((one, int((p != old).sum())))
    )
    train(optimizer, range(1))
    assert seen == [optimizer, optimizer, int((uniform(0, 0, 0, (100,)) < 0.5).sum())]


def test_hooks_of_state_dicts_run() -> None:
    optimizer = Masked(SGD(parameters(), lr=0.1))
    seen: list[str] = []
    optimizer.register_state_dict_pre_hook(lambda one: seen.append("before saving"))
    optimizer.register_state_dict_post_hook(lambda one, state: seen.append("saved"))
    optimizer.register_load_state_dict_pre_hook(lambda one, state: seen.append("before loading"))
    optimizer.register_load_state_dict_post_hook(lambda one: seen.append("loaded"))
    optimizer.load_state_dict(optimizer.state_dict())
    assert seen == ["before saving", "saved", "before loading", "loaded"]


def test_clipping_and_zero_grad() -> None:
    params = parameters()
    optimizer = Masked(SGD(params, lr=0.1))
    give_grads(params, 0)
    nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 1.0)
    optimizer.step()
    optimizer.zero_grad()
    assert all(p.grad is None for p in params)


@pytest.mark.parametrize("chance", [0.5, None])
@pytest.mark.parametrize("name", ["SGD momentum", "SGD fused", "AdamW", "AdamW fused"])
def test_a_grad_scaler_skips_and_unscales_as_with_the_base(name: str, chance: float | None) -> None:
    twins = Twins(BASES[name], parameters(), probability=chance)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for step in range(4):
        give_grads(twins.params, step)
        scaler.scale(torch.ones(()))  # which makes the scaler's tensors
        for p in twins.params:
            p.grad *= scaler.get_scale()
        if step == 1:
            twins.params[0].grad[0, 0] = float("inf")
        old = [p.detach().clone() for p in twins.params]
        scaler.step(twins.masked)
        scaler.update()
        assert not hasattr(twins.masked.base, "found_inf")
        if step == 1:
            assert twins.masked.steps == 1
            assert not any(change.any() for change in moved(twins.params, old))
            continue
        give_grads(twins.others, step)
        chances = update_probability([p.grad for p in twins.others])
        twins.base.step()
        for index, (p, other) in enumerate(zip(twins.params, twins.others, strict=True)):
            came_up = uniform(0, step - (step > 1), index, p.shape) < (
                chances[index] if chance is None else chance
            )
            assert torch.equal(p, torch.where(came_up, other, old[index]))
            with torch.no_grad():
                other.copy_(p)
    assert twins.masked.steps == 3
    twins.assert_same_state()


def test_a_compiled_training_step_may_call_it() -> None:
    params = [nn.Parameter(numbers(seed, (20,))) for seed in range(2)]
    others = copy.deepcopy(params)
    optimizer, second = (Masked(SGD(each, lr=0.1)) for each in (params, others))

    @torch.compile(backend="eager")
    def advance() -> None:
        optimizer.step()

    for step in range(3):
        give_grads(params, step)
        give_grads(others, step)
        advance()
        second.step()
    for p, other in zip(params, others, strict=True):
        assert torch.equal(p, other)


# Memory


@pytest.mark.parametrize("coin", COINS)
@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("chance", [0.5, None])
def test_one_extra_copy_at_most(chance: float | None, rescale: bool, coin: str) -> None:
    params = [nn.Parameter(torch.ones(1500, 1000)) for _ in range(4)]
    left_out = nn.Parameter(torch.ones(1500, 1000))
    base = SGD([*params, left_out], lr=0.1, momentum=0.9, foreach=False)
    optimizer = Masked(base, probability=chance, coin=coin, rescale=rescale, exclude=[left_out])
    for p in (*params, left_out):
        p.grad = torch.full_like(p, 0.1)
    optimizer.step()
    peaks = [peak_of(each.step) for each in (base, optimizer)]
    copy_of_masked = sum(4 * p.numel() for p in params)
    scaled = rescale or coin == "none"
    copies = 2 if chance is None and scaled else 1
    a_piece = 4 << PIECE_BITS
    assert peaks[1] - peaks[0] <= copies * copy_of_masked + 10 * a_piece


def test_bases_that_cannot_be_masked_are_refused_with_one_line() -> None:
    class AdamWScheduleFree(SGD):
        pass

    class Lookahead(SGD):
        pass

    class Other(SGD):
        def train(self) -> None: ...

        def eval(self) -> None: ...

    p = [nn.Parameter(torch.ones(3))]
    weights = "keeps weights in its state, which a mask does not reach"
    for base, reason in (
        (LBFGS(p), "Masked cannot wrap LBFGS: it moves several times in one step"),
        (ASGD(p), f"Masked cannot wrap ASGD: it {weights}"),
        (AccSGD(p), f"Masked cannot wrap AccSGD: it {weights}"),
        (EntropySGD(p), f"Masked cannot wrap EntropySGD: it {weights}"),
        (AdamWScheduleFree(p), f"Masked cannot wrap AdamWScheduleFree: it {weights}"),
        (Lookahead(p), f"Masked cannot wrap Lookahead: it {weights}"),
        (Other(p), "Masked cannot wrap Other: it keeps weights in its state"),
        (Masked(SGD(p)), "Masked cannot wrap Masked: it has coins of its own"),
        (SBS(p), "Masked cannot wrap SBS: it has coins of its own"),
        (AlternatingSGD(p), "Masked cannot wrap AlternatingSGD: it has coins of its own"),
        (SGD, "base must be an optimizer, constructed, got the class SGD"),
        (p, "base must be an optimizer, constructed, got list"),
    ):
        with pytest.raises(TypeError) as raised:
            Masked(base)
        assert str(raised.value).startswith(reason)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"probability": 0}, ValueError, "probability must be None or in (0, 1], got 0"),
        ({"probability": "half"}, TypeError, "probability must be a number, got str: 'half'"),
        ({"alpha": None}, TypeError, "alpha must be a number, got NoneType"),
        ({"lambd": float("nan")}, ValueError, "lambd must be finite, got nan"),
        ({"cross_layer": "sum"}, ValueError, "one of ('total', 'mean', 'weighted'), got 'sum'"),
        ({"compare": "some"}, ValueError, "one of ('kind', 'type', 'all'), got 'some'"),
        ({"coin": "fair"}, ValueError, "one of ('scalar', 'tensor', 'none'), got 'fair'"),
        ({"rescale": 1}, TypeError, "rescale must be True or False, got int: 1"),
        ({"seed": -1}, ValueError, "seed must be in [0, 2**64), got -1"),
        ({"exclude": torch.ones(3)}, TypeError, "a function (name, parameter) -> bool, got Tensor"),
        ({"exclude": nn.Linear(2, 2)}, TypeError, "-> bool, got Linear"),
        ({"exclude": ["bias"]}, TypeError, "-> bool, got list"),
    ],
)
def test_wrong_options(options: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as raised:
        Masked(SGD(parameters(), lr=0.1), **options)
    assert text in str(raised.value)


def test_sparse_gradients_need_a_fixed_probability() -> None:
    layer = nn.Embedding(50, 4, sparse=True)
    old = layer.weight.detach().clone()
    for chance in (None, 0.5):
        optimizer = Masked(SparseAdam(layer.parameters(), lr=0.1), probability=chance)
        layer.zero_grad()
        layer(torch.arange(40)).sum().backward()
        if chance is None:
            with pytest.raises(RuntimeError, match="dense gradients, parameter 0 has a sparse"):
                optimizer.step()
            assert torch.equal(layer.weight, old)
    optimizer.step()
    came_up = (uniform(0, 0, 0, (50, 4)) < 0.5) & (torch.arange(50) < 40)[:, None]
    assert torch.equal(layer.weight != old, came_up)
