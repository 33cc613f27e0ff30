"""Invariant: what SBS promises beyond the contract of all optimizers (``test_contract.py``):
it is steered as SGD is, a step that must not count does not count, no step waits."""

import contextlib
import copy
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedulers
from torch.utils._python_dispatch import TorchDispatchMode

from stochbatch import SBS, param_groups
from stochbatch.optim import plan
from tests.optim.networks import (
    backward,
    batch,
    same_weights,
    small_network,
    take_eager_steps,
    train,
)
from tests.optim.test_contract import SCHEDULERS


@pytest.fixture(autouse=True, params=["eager", "native"])
def _path(request: pytest.FixtureRequest, monkeypatch) -> None:
    """Run every test here on eager steps and on compiled ones (where those apply)."""
    if request.param == "eager":
        take_eager_steps(monkeypatch)


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("tensor_lr", [False, True])
def test_schedulers_steer_it_as_they_steer_sgd(name: str, tensor_lr: bool) -> None:
    """At probability 1 and any schedule (momentum cycles included) it is SGD to the bit."""
    networks = [small_network() for _ in range(2)]
    rates = [torch.tensor(0.1), torch.tensor(0.1)] if tensor_lr else [0.1, 0.1]
    optimizers = [
        SBS(networks[0].parameters(), rates[0], momentum=0.9, probability=1.0),
        torch.optim.SGD(networks[1].parameters(), rates[1], momentum=0.9, foreach=False),
    ]
    for network, optimizer in zip(networks, optimizers, strict=True):
        scheduler = SCHEDULERS[name](optimizer)
        for step in range(6):
            train(network, optimizer, range(step, step + 1))
            if isinstance(scheduler, schedulers.ReduceLROnPlateau):
                scheduler.step(1.0)
            else:
                scheduler.step()
    assert same_weights(*networks)


def test_looking_at_the_state_of_a_parameter_that_has_none_does_no_harm() -> None:
    network = small_network()
    optimizer = SBS(network.parameters())
    assert optimizer.state[network[0].weight] == {}
    assert optimizer.steps == 0
    optimizer.new_epoch()
    backward(network, 0)
    network[0].weight.grad = None
    optimizer.step()
    optimizer.layer_report()
    assert optimizer.steps == 1
    copied = SBS(network.parameters())
    copied.load_state_dict(optimizer.state_dict())
    assert copied.steps == 1


@pytest.mark.parametrize(
    "weight", [torch.zeros(40, 6)[:, ::2], torch.zeros(8, 1, 3, 3), torch.zeros(5, 4).t()]
)
def test_state_stays_where_it_is_from_step_to_step(weight: torch.Tensor) -> None:
    parameter = nn.Parameter(weight)
    optimizer = SBS([parameter], momentum=0.9)
    addresses = set()
    for _ in range(3):
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        names = ("grad_mean", "batches", "momentum_buffer")
        addresses.add(tuple(id(optimizer.state[parameter][name]) for name in names))
    assert len(addresses) == 1


def test_gradient_clipping_and_accumulation() -> None:
    network = small_network()
    optimizer = SBS(network.parameters(), probability=1.0, lr=1.0)
    before = [p.detach().clone() for p in network.parameters()]
    for step in range(3):
        images, labels = batch(step)
        (nn.functional.cross_entropy(network(images), labels) / 3).backward()
    nn.utils.clip_grad_norm_(network.parameters(), 1e-3)
    optimizer.step()
    moved = [p - old for p, old in zip(network.parameters(), before, strict=True)]
    norm = torch.stack([m.norm() for m in moved]).norm()
    torch.testing.assert_close(norm.item(), 1e-3, rtol=1e-3, atol=0)


def test_a_step_that_grad_scaler_skips_does_not_count(device: str) -> None:
    network = small_network(device=device)
    optimizer = SBS(network.parameters(), momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)

    def scaled_step(step: int, spoil: bool = False) -> None:
        images, labels = batch(step, device=device)
        network.zero_grad()
        scaler.scale(nn.functional.cross_entropy(network(images), labels)).backward()
        if spoil:
            network[0].weight.grad[0] = float("inf")
        scaler.step(optimizer)
        scaler.update()

    scaled_step(0)
    before, weights = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(network)
    scaled_step(1, spoil=True)
    assert scaler.get_scale() == 2.0**9
    after = optimizer.state_dict()
    for number, state in before["state"].items():
        for name, value in state.items():
            assert torch.equal(value, after["state"][number][name])
    assert same_weights(network, weights)
    scaled_step(1)
    assert optimizer.steps == 2


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_a_nonfinite_gradient_anywhere_changes_nothing(value: float, device: str) -> None:
    spoiled, clean = (small_network(device=device) for _ in range(2))
    optimizer = SBS(spoiled.parameters(), weight_decay=0.1, momentum=0.9)
    reference = SBS(clean.parameters(), weight_decay=0.1, momentum=0.9)
    spots = {1: 0, 2: -1, 5: 3}
    for step in range(6):
        backward(spoiled, step)
        if step in spots:
            gradient = list(spoiled.parameters())[spots[step]].grad
            gradient.view(-1)[-1] = value
        else:
            backward(clean, step)
            reference.step()
        optimizer.step()
        assert same_weights(spoiled, clean)
    assert optimizer.skipped_steps == 3
    assert optimizer.steps == 3
    for parameter, twin in zip(spoiled.parameters(), clean.parameters(), strict=True):
        for name in ("grad_mean", "batches", "momentum_buffer", "step", "tally"):
            assert torch.equal(optimizer.state[parameter][name], reference.state[twin][name])


def test_without_the_guard_a_nonfinite_gradient_goes_through() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = SBS([weight], probability=1.0, skip_nonfinite=False)
    weight.grad = torch.tensor([1.0, float("nan"), 1.0])
    optimizer.step()
    assert weight.isnan().tolist() == [False, True, False]
    assert optimizer.steps == 1
    assert optimizer.skipped_steps == 0


@pytest.mark.parametrize("fused", [False, None])
def test_without_the_guard_a_nonfinite_gradient_stays_within_its_kind(fused: bool | None) -> None:
    weights = [nn.Parameter(torch.zeros(s)) for s in ((300, 300), (5,), (7,))]
    optimizer = SBS(weights, skip_nonfinite=False, fused=fused)
    for _ in range(20):
        weights[0].grad = torch.full((300, 300), torch.nan)
        weights[1].grad, weights[2].grad = torch.randn(5), torch.randn(7)
        optimizer.step()
    for weight in weights[1:]:
        assert (weight != 0).any()
        assert not weight.isnan().any()


def test_large_finite_gradients_are_finite() -> None:
    """Their squares overflow in float32; they are no reason to skip a step."""
    weight = nn.Parameter(torch.zeros(5))
    optimizer = SBS([weight], probability=1.0, lr=1e-38)
    weight.grad = torch.full((5,), 3e38)
    optimizer.step()
    assert optimizer.skipped_steps == 0
    torch.testing.assert_close(weight.detach(), torch.full((5,), -3.0))


@pytest.mark.parametrize("rate", [0.0, torch.tensor(0.0)])
def test_only_zero_rates_with_zero_gradients_make_a_dummy_step(rate: float) -> None:
    """A warm-up that starts at rate 0 has real gradients, and SGD's momentum takes them."""
    ours, theirs = (nn.Parameter(torch.ones(3)) for _ in range(2))
    sbs = SBS([ours], rate, momentum=0.9, probability=1.0, weight_decay=0.5)
    sgd = torch.optim.SGD([theirs], 0.0, momentum=0.9, weight_decay=0.5)
    ours.grad = torch.zeros(3)
    sbs.step()
    assert sbs.steps == 0
    assert (sbs.state[ours]["momentum_buffer"] == 0).all()
    for step in range(3):
        for optimizer, weight in ((sbs, ours), (sgd, theirs)):
            weight.grad = torch.full((3,), 1.0 + step)
            optimizer.step()
            optimizer.param_groups[0]["lr"] = 0.1
    assert sbs.steps == 3
    assert torch.equal(ours, theirs)


def test_layers_that_take_turns_are_described_once(monkeypatch) -> None:
    described = []
    real = plan.describe_layers
    monkeypatch.setattr(
        plan, "describe_layers", lambda *given: (described.append(1), real(*given))[1]
    )
    weights = [nn.Parameter(torch.ones(3)) for _ in range(plan.KEPT + 2)]
    optimizer = SBS(weights, fused=False)
    for step in range(8):
        for number, weight in enumerate(weights):
            weight.grad = torch.ones(3) if number == step % 2 else None
        optimizer.step()
    assert len(described) == 2
    for weight in weights:  # more than are kept
        optimizer.zero_grad()
        weight.grad = torch.ones(3)
        optimizer.step()
    assert len(optimizer._plans._known) <= plan.KEPT
    assert optimizer.steps == 8 + len(weights)


def test_a_parameter_that_moved_to_another_device_is_refused() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = SBS([weight])
    weight.grad = torch.ones(3)
    optimizer.step()
    optimizer.state[weight]["grad_mean"] = torch.zeros(3, device="meta")
    with pytest.raises(RuntimeError, match="moved from meta to cpu, its state has not"):
        optimizer.step()


class _HostReads(TorchDispatchMode):
    """Raises when a Python number is read off a tensor, or a tensor's values decide sizes."""

    FORBIDDEN = ("_local_scalar_dense", "is_nonzero", "nonzero", "equal", "masked_select")

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.overloadpacket.__name__ in self.FORBIDDEN:
            raise AssertionError(f"the host waits for the device in {function}")
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def host_reads_forbidden() -> Iterator[None]:
    with _HostReads():
        yield


def test_the_watch_on_host_reads_works() -> None:
    with pytest.raises(AssertionError, match="the host waits"), host_reads_forbidden():
        torch.ones(()).item()
    with pytest.raises(AssertionError, match="the host waits"), host_reads_forbidden():
        bool(torch.ones(()) > 0)


@pytest.mark.parametrize("tensor_lr", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, {"momentum": 0.9, "nesterov": True}, {"probability": 0.5}],
    ids=str,
)
def test_a_step_never_waits_for_the_device(tensor_lr: bool, options: dict, device: str) -> None:
    network = small_network(device=device)
    rate = torch.tensor(0.1, device=device) if tensor_lr else 0.1
    fused = False if device == "cpu" else None  # the native step has no device to wait for
    optimizer = SBS(param_groups(network), rate, fused=fused, **options)
    for step in range(3):
        backward(network, step)
        with host_reads_forbidden():
            optimizer.step()
    assert optimizer.steps == 3


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        {"momentum": 0.9, "lr_scaling": "linear"},
        {"probability": 0.5, "maximize": True},
        {"cross_layer": "weighted"},
        {"skip_nonfinite": False, "cross_layer": "mean"},
    ],
    ids=str,
)
def test_a_step_looks_at_no_number(options: dict) -> None:
    """On the device without numbers whatever is read off a tensor raises."""
    shapes = [(200, 12, 3, 3), (40, 500), (64,), (64,), (7,), ()]
    weights = [nn.Parameter(torch.empty(shape, device="meta")) for shape in shapes]
    optimizer = SBS(weights, 0.1, **options)
    for _ in range(3):
        for weight in weights:
            weight.grad = torch.empty_like(weight)
        optimizer.step()
    with pytest.raises(RuntimeError, match="meta"):
        _ = optimizer.steps


def test_state_is_two_tensors_a_parameter_and_a_third_with_momentum() -> None:
    for momentum, expected in ((0.0, 2), (0.9, 3)):
        weight = nn.Parameter(torch.ones(100))
        optimizer = SBS([weight], momentum=momentum)
        weight.grad = torch.randn(100)
        optimizer.step()
        sizes = sorted(value.numel() for value in optimizer.state[weight].values())
        assert sizes == [1, 1, 3] + [100] * expected


@pytest.mark.parametrize("fused", [False, None, True])
def test_a_gradient_of_another_shape_is_refused(fused: bool | None) -> None:
    weight = torch.nn.Parameter(torch.zeros(1 << 14, 2))
    optimizer = SBS([weight], fused=fused, probability=1.0, skip_nonfinite=False)
    weight.grad = torch.ones_like(weight)
    weight.data = torch.zeros(1 << 15, 2)
    with pytest.raises(RuntimeError, match="its data were replaced"):
        optimizer.step()
    assert not weight.any()
    assert not optimizer.state


def test_an_optimizer_keeps_no_gradient_alive() -> None:
    for fused in (False, None):
        weight = nn.Parameter(torch.ones(40))
        optimizer = SBS([weight], fused=fused)
        for _ in range(2):
            weight.grad = torch.ones(40)
            gone = weakref.ref(weight.grad)
            optimizer.step()
            optimizer.zero_grad()
            assert gone() is None


def test_state_that_was_replaced_is_freed() -> None:
    weight = nn.Parameter(torch.ones(40))
    optimizer = SBS([weight])
    for dtype in (torch.float64, torch.float32):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        gone = weakref.ref(optimizer.state[weight]["grad_mean"])
        weight.data = weight.data.to(dtype)
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        assert gone() is None


def test_a_group_that_was_replaced_gives_its_own_rate() -> None:
    weight = nn.Parameter(torch.ones(9))
    optimizer = SBS([weight], lr=1.0, probability=1.0)
    weight.grad = torch.ones(9)
    optimizer.step()
    optimizer.param_groups[0] = {**optimizer.param_groups[0], "lr": 0.0}
    optimizer.step()
    assert torch.equal(weight, torch.zeros(9))


@pytest.mark.parametrize(
    "edit", [{"coin": "tensor"}, {"probability": 2.0}, {"compare": "x"}, {"cross_layer": "x"}]
)
def test_options_that_were_edited_are_checked(edit: dict) -> None:
    weight = nn.Parameter(torch.ones(9))
    optimizer = SBS([weight])
    weight.grad = torch.ones(9)
    optimizer.step()
    optimizer.param_groups[0].update(edit)
    before = weight.detach().clone()
    with pytest.raises(ValueError, match=f"{next(iter(edit))} must be"):
        optimizer.step()
    assert torch.equal(weight, before)


def test_who_is_told_of_slow_layers_stays_so_after_loading() -> None:
    weight = nn.Parameter(torch.ones(9))
    optimizer = SBS([weight])
    said: list[str] = []
    optimizer.on_slow_layers(said.append)
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer._watch.say == said.append


@pytest.mark.parametrize("empty", [0, 1, 2])
def test_an_empty_parameter_may_stand_anywhere(empty: int) -> None:
    weights = [nn.Parameter(torch.zeros(4)) for _ in range(2)]
    weights.insert(empty, nn.Parameter(torch.zeros(0)))
    optimizer = SBS(weights, lr=1.0, probability=1.0)
    for step in range(2):
        for number, weight in enumerate(weights):
            weight.grad = torch.full_like(weight, 1.0 + number)
        optimizer.step()
        for number, weight in enumerate(weights):
            assert torch.equal(weight, torch.full_like(weight, -(1.0 + number) * (step + 1)))
