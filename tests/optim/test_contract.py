"""Invariant: every optimizer works wherever ``torch.optim.SGD`` works.

Driven by the table in ``cast.py``. What SBS promises beyond is in ``test_sbs_steps.py``.
"""

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedulers

from stochbatch import param_groups
from tests.optim.cast import CAST, Bowl, Problem, Row, settings
from tests.optim.networks import same_state, same_weights, take_eager_steps

SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], schedulers.LRScheduler]] = {
    "LambdaLR": lambda o: schedulers.LambdaLR(o, lambda epoch: 0.9**epoch),
    "MultiplicativeLR": lambda o: schedulers.MultiplicativeLR(o, lambda _: 0.9),
    "StepLR": lambda o: schedulers.StepLR(o, 2),
    "MultiStepLR": lambda o: schedulers.MultiStepLR(o, [1, 3]),
    "ConstantLR": lambda o: schedulers.ConstantLR(o),
    "LinearLR": lambda o: schedulers.LinearLR(o),
    "ExponentialLR": lambda o: schedulers.ExponentialLR(o, 0.8),
    "PolynomialLR": lambda o: schedulers.PolynomialLR(o),
    "CosineAnnealingLR": lambda o: schedulers.CosineAnnealingLR(o, 5),
    "CosineAnnealingWarmRestarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 3),
    "CyclicLR": lambda o: schedulers.CyclicLR(
        o, 0.01, 0.1, cycle_momentum="momentum" in o.defaults
    ),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(
        o, 0.1, total_steps=20, cycle_momentum="momentum" in o.defaults
    ),
    "ReduceLROnPlateau": lambda o: schedulers.ReduceLROnPlateau(o, patience=0),
    "SequentialLR": lambda o: schedulers.SequentialLR(
        o, [schedulers.ConstantLR(o), schedulers.ExponentialLR(o, 0.8)], [2]
    ),
    "ChainedScheduler": lambda o: schedulers.ChainedScheduler(
        [schedulers.ConstantLR(o), schedulers.ExponentialLR(o, 0.8)]
    ),
    "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, 0.01),
}


@pytest.fixture(params=CAST)
def row(request: pytest.FixtureRequest, monkeypatch) -> Row:
    return prepared(request.param, monkeypatch)


def prepared(name: str, monkeypatch) -> Row:
    """Return a row; steps are eager unless it says otherwise."""
    if not CAST[name].native:
        take_eager_steps(monkeypatch)
    return CAST[name]


def rewind(scheduler: schedulers.LRScheduler) -> None:
    if isinstance(scheduler, schedulers.ReduceLROnPlateau):
        scheduler.step(1.0)
    else:
        scheduler.step()


def test_no_scheduler_is_forgotten() -> None:
    abstract = {"LRScheduler"}
    public = {name for name in schedulers.__all__ if isinstance(getattr(schedulers, name), type)}
    assert public - abstract <= SCHEDULERS.keys()


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_does_what_setting_the_group_by_hand_does(row: Row, name: str) -> None:
    problem, twin = Problem(), Problem()
    optimizer, by_hand = row.make(problem, **row.good[-1]), row.make(twin, **row.good[-1])
    scheduler = SCHEDULERS[name](optimizer)
    rates = set()
    for step in range(4):
        for key in {"lr", "momentum"} & optimizer.defaults.keys():
            by_hand.param_groups[0][key] = optimizer.param_groups[0][key]
        rates.add(float(optimizer.param_groups[0]["lr"]))
        row.advance(problem, optimizer, step)
        row.advance(twin, by_hand, step)
        rewind(scheduler)
    assert same_weights(problem.network, twin.network)
    assert len(rates) > 1 or name == "ConstantLR"


@pytest.mark.parametrize("name", CAST)
def test_a_rate_of_zero_leaves_the_weights(name: str, monkeypatch) -> None:
    row = prepared(name, monkeypatch)
    problem = Problem()
    row.train(problem, row.make(problem, lr=0.0), range(3))
    found, expected = problem.network.parameters(), Problem().network.parameters()
    for parameter, before in zip(found, expected, strict=True):
        # AccSGD writes zeta w + (1 - zeta) w, which is w but for the last place.
        torch.testing.assert_close(parameter, before, rtol=1e-6, atol=0)


def test_a_rate_may_be_a_tensor(row: Row) -> None:
    problem, twin = Problem(), Problem()
    options = {**row.good[-1], "lr": 0.05}
    row.train(problem, row.make(problem, **options), range(4))
    rate = torch.tensor(0.05, dtype=torch.float64)
    row.train(twin, row.make(twin, **{**options, "lr": rate}), range(4))
    for one, other in zip(problem.network.parameters(), twin.network.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_a_closure_is_called_with_gradients_on_and_its_loss_returned(row: Row) -> None:
    if not row.calls:
        pytest.skip("takes sample indices, not a closure")
    problem = Problem()
    optimizer = row.make(problem)
    losses = []

    def closure() -> torch.Tensor:
        assert torch.is_grad_enabled()
        optimizer.zero_grad()
        loss = problem.loss(len(losses))
        loss.backward()
        losses.append(loss.detach())
        return losses[-1]

    with torch.no_grad():
        loss = optimizer.step(closure)
    assert len(losses) == row.calls
    torch.testing.assert_close(float(loss), sum(map(float, losses)) / row.calls)
    assert optimizer.steps == 1


def test_zero_grad(row: Row) -> None:
    problem = Problem()
    optimizer = row.make(problem)
    problem.loss(0).backward()
    optimizer.zero_grad(set_to_none=False)
    assert all((p.grad == 0).all() for p in problem.network.parameters())
    optimizer.zero_grad()
    assert all(p.grad is None for p in problem.network.parameters())


def test_add_param_group_continues_the_numbering(row: Row) -> None:
    whole, parts = Problem(), Problem()
    at_once = row.make(whole)
    parameters = list(parts.network.parameters())
    in_parts = row.make(parts, parameters[:3])
    in_parts.add_param_group({"params": parameters[3:]})
    row.train(whole, at_once, range(3))
    row.train(parts, in_parts, range(3))
    assert same_weights(whole.network, parts.network)


@pytest.mark.parametrize("form", ["parameters", "named", "groups"])
def test_every_form_of_parameters(row: Row, form: str) -> None:
    problem = Problem()
    params = {
        "parameters": problem.network.parameters(),
        "named": problem.network.named_parameters(),
        "groups": param_groups(problem.network),
    }[form]
    optimizer = row.make(problem, params)
    row.train(problem, optimizer, range(2))
    assert optimizer.steps == 2


def test_groups_have_options_of_their_own(row: Row) -> None:
    problem = Problem()
    parameters = list(problem.network.parameters())
    groups = [{"params": parameters[:4], "lr": 0.0}, {"params": parameters[4:]}]
    row.train(problem, row.make(problem, groups), range(3))
    before = list(Problem().network.parameters())
    for still, old in zip(parameters[:4], before[:4], strict=True):
        torch.testing.assert_close(still, old, rtol=1e-6, atol=0)
    assert any(not torch.equal(p, old) for p, old in zip(parameters[4:], before[4:], strict=True))


def test_step_hooks(row: Row) -> None:
    problem = Problem()
    optimizer = row.make(problem)
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    row.train(problem, optimizer, range(1))
    assert seen == ["before", "after"]


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))])
@pytest.mark.parametrize(("name", "options"), settings(), ids=str)
def test_copies_go_on_as_the_original_does(
    name: str, options: dict, copier: Callable, monkeypatch
) -> None:
    row = prepared(name, monkeypatch)
    problem = Problem()
    optimizer = row.make(problem, **options)
    row.train(problem, optimizer, range(3))
    twin, its_optimizer = copier((problem, optimizer))
    row.train(problem, optimizer, range(3, 6))
    row.train(twin, its_optimizer, range(3, 6))
    assert same_weights(problem.network, twin.network)
    assert same_state(optimizer, its_optimizer)
    assert its_optimizer.steps == 6


def test_parameters_without_gradient_are_left_alone(row: Row) -> None:
    if not row.calls:
        pytest.skip("asks for the gradients of all parameters itself")
    problem = Problem()
    optimizer = row.make(problem)
    never, sometimes = problem.network[0].weight, problem.network[3].weight
    never.requires_grad_(False)
    for step in range(4):
        sometimes.requires_grad_(step % 2 == 0)
        before = sometimes.detach().clone(), copy.deepcopy(optimizer.state.get(sometimes, {}))
        row.advance(problem, optimizer, step)
        if step % 2:
            assert torch.equal(sometimes, before[0])
            for name, value in before[1].items():
                same = torch.equal(value, optimizer.state[sometimes][name])
                assert same or name == "step"
    assert never not in optimizer.state
    assert torch.equal(never, Problem().network[0].weight)


def test_a_step_without_any_gradient_does_not_count(row: Row) -> None:
    if not row.calls:
        pytest.skip("asks for the gradients of all parameters itself")
    problem = Problem()
    optimizer = row.make(problem)
    optimizer.step(lambda: 0.0)
    assert optimizer.steps == 0
    assert not optimizer.state
    assert same_weights(problem.network, Problem().network)


def test_looking_at_the_state_of_a_parameter_that_has_none_does_no_harm(row: Row) -> None:
    problem = Problem()
    optimizer = row.make(problem)
    assert optimizer.state[problem.network[0].weight] == {}
    assert optimizer.steps == 0
    row.train(problem, optimizer, range(2))
    twin = Problem()
    row.train(twin, row.make(twin), range(2))
    assert same_weights(problem.network, twin.network)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (1, 1, 1, 1)])
def test_odd_shapes(row: Row, shape: tuple[int, ...], device: str) -> None:
    problem = Bowl(torch.ones(shape, device=device), torch.ones(4, device=device))
    optimizer = row.make(problem)
    row.train(problem, optimizer, range(4))
    odd = problem.network[0]
    assert odd.shape == shape
    assert odd.isfinite().all()
    assert not odd.numel() or not torch.equal(odd, torch.ones(shape, device=device))
    assert optimizer.steps == 4


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("name", "options"), settings(), ids=str)
def test_every_dtype_goes_the_way_of_single_precision(
    name: str, options: dict, dtype: torch.dtype, monkeypatch
) -> None:
    row = prepared(name, monkeypatch)
    start = torch.linspace(-1, 1, 12).to(torch.bfloat16).float()
    single, other = Bowl(start), Bowl(start.to(dtype))
    options = {**options, "lr": 0.01}
    row.train(single, row.make(single, **options), range(3))
    row.train(other, row.make(other, **options), range(3))
    # Coins are the same unless a rounding tips a probability over a uniform: not in twelve.
    tolerance = 2.5 * torch.finfo(dtype).eps if dtype != torch.float64 else 1e-5
    found, expected = other.network[0].detach().double(), single.network[0].detach().double()
    torch.testing.assert_close(found, expected, rtol=0, atol=max(tolerance, 1e-5))


@pytest.mark.parametrize(("name", "options"), settings(), ids=str)
def test_a_complex_parameter_is_two_real_ones(name: str, options: dict, monkeypatch) -> None:
    row = prepared(name, monkeypatch)

    class Pairs(Bowl):
        def loss(self, number: int) -> torch.Tensor:
            (p,) = self.network
            real = torch.view_as_real(p) if p.is_complex() else p
            return 0.01 * (real - 0.3 * (number % 7)).pow(4).sum()

    values = torch.randn(5, 2, dtype=torch.float64)
    pairs, numbers = Pairs(values), Pairs(torch.view_as_complex(values))
    for problem in (pairs, numbers):
        groups = [{"params": problem.network.parameters(), "kind": "other"}]
        row.train(problem, row.make(problem, groups, **{**options, "lr": 0.01}), range(4))
    assert torch.equal(torch.view_as_real(numbers.network[0]), pairs.network[0])


@pytest.mark.parametrize(("name", "options"), settings(), ids=str)
def test_a_gradient_that_is_yet_to_be_conjugated_is_the_conjugate(
    name: str, options: dict, monkeypatch
) -> None:
    row = prepared(name, monkeypatch)
    factor = torch.randn(5, dtype=torch.complex128)

    class Numbers(Bowl):
        def __init__(self, conjugate) -> None:
            super().__init__(torch.ones(5, dtype=torch.complex128))
            self.conjugate = conjugate

        def loss(self, number: int) -> torch.Tensor:
            (p,) = self.network
            return (self.conjugate(p) * factor).real.sum()

    lazy, done = Numbers(torch.conj), Numbers(torch.conj_physical)
    lazy.loss(0).backward()
    assert lazy.network[0].grad.is_conj()
    for problem in (lazy, done):
        groups = [{"params": problem.network.parameters(), "kind": "other"}]
        row.train(problem, row.make(problem, groups, **{**options, "lr": 0.01}), range(4))
    assert not torch.equal(done.network[0], torch.ones_like(done.network[0]))
    assert torch.equal(lazy.network[0], done.network[0])


@pytest.mark.parametrize(("name", "options"), settings(), ids=str)
def test_state_follows_its_parameter_to_another_dtype(
    name: str, options: dict, monkeypatch
) -> None:
    row = prepared(name, monkeypatch)
    moved, double = Problem(), Problem(torch.float64)
    optimizer, reference = row.make(moved, **options), row.make(double, **options)
    row.train(moved, optimizer, range(2))
    row.train(double, reference, range(2))
    moved.network.double()
    row.train(moved, optimizer, range(2, 4))
    row.train(double, reference, range(2, 4))
    wanted = reference.state_dict()["state"]
    members = [weight for group in optimizer.param_groups for weight in group["params"]]
    for number, state in optimizer.state_dict()["state"].items():
        assert {k: v.dtype for k, v in state.items()} == {
            k: v.dtype for k, v in wanted[number].items()
        }
        # A bias before batch norm has no gradient but rounding, and coins that go by it.
        if members[number] is moved.network[0].bias:
            continue
        # The twin was double from the beginning: what is lost on the way is seen, rounding is not.
        for key, value in state.items():
            torch.testing.assert_close(value, wanted[number][key], rtol=1e-3, atol=1e-4)
    for one, other in zip(moved.network.parameters(), double.network.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_memory_layout_does_not_matter(row: Row) -> None:
    plain, other = Problem(), Problem()
    other.network[3].to(memory_format=torch.channels_last)
    assert not other.network[3].weight.is_contiguous()
    for problem in (plain, other):
        row.train(problem, row.make(problem), range(3))
    for one, two in zip(plain.network.parameters(), other.network.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("name", "options"), settings(), ids=str)
def test_no_generator_is_read_or_advanced(name: str, options: dict, monkeypatch) -> None:
    row = prepared(name, monkeypatch)
    problem, twin = Problem(), Problem()
    optimizer, other = row.make(problem, **options), row.make(twin, **options)
    before = torch.get_rng_state()
    row.train(problem, optimizer, range(3))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    row.train(twin, other, range(3))
    assert same_weights(problem.network, twin.network)


def test_sparse_gradients_are_refused_and_nothing_is_changed(row: Row) -> None:
    if not row.calls:
        pytest.skip("its gradients come from a function")
    embedding = nn.Embedding(5, 3, sparse=True)
    other = nn.Parameter(torch.ones(3))
    before = embedding.weight.detach().clone()
    optimizer = row.make(None, [("table", embedding.weight), ("other", other)])

    def closure() -> torch.Tensor:
        loss = (embedding(torch.tensor([1, 2])) * other).sum()
        loss.backward()
        return loss

    name = row.kind.__name__
    message = f"{name} needs dense gradients, parameter table has a sparse one.*sparse=False"
    with pytest.raises(RuntimeError, match=message):
        optimizer.step(closure)
    assert not optimizer.state
    assert torch.equal(other, torch.ones(3))
    assert torch.equal(embedding.weight, before)


def test_a_compiled_training_step_gives_the_same_weights(row: Row) -> None:
    plain, twin = Problem(), Problem()
    one, two = row.make(plain), row.make(twin)
    fast = torch.compile(row.advance, backend="eager")
    for step in range(3):
        row.advance(plain, one, step)
        fast(twin, two, step)
    assert two.steps == 3
    for p, q in zip(plain.network.parameters(), twin.network.parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_repr_names_the_options(row: Row) -> None:
    optimizer = row.make(Problem())
    assert repr(optimizer).startswith(f"{row.kind.__name__} (")
    assert all(f"{name}: " in repr(optimizer) for name in optimizer.defaults)
