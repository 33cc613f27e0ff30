"""Invariant: compiling the eager step's functions changes no coin.

Weights, and averages with weight decay, may differ in the last place: a compiler does not
fuse a multiplication and an addition where torch's own operation does. On a machine without
a GPU the same functions are compiled for the CPU, which is slow and only for this test.
"""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from stochbatch import SBS
from stochbatch.optim.kernels import compiled, native
from tests.conftest import devices
from tests.optim.networks import set_gradients

DEVICE = devices()[-1]
SHAPES = [(200, 12, 3, 3), (40, 500), (64,), (64,), (7,), (3, 5), ()]

LIMIT = (
    "recompile_limit" if hasattr(torch._dynamo.config, "recompile_limit") else "cache_size_limit"
)

pytestmark = pytest.mark.skipif(DEVICE == "mps", reason="not compiled there")


@pytest.fixture(autouse=True)
def _compile_here(monkeypatch) -> None:
    monkeypatch.setattr(compiled, "DEVICES", (DEVICE,))
    monkeypatch.setattr(native, "fits", lambda *_: False)


def weights(channels_last: bool) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    made = [torch.randn(shape, generator=generator).to(DEVICE) for shape in SHAPES]
    if channels_last:
        made[0] = made[0].contiguous(memory_format=torch.channels_last)
    return [nn.Parameter(weight) for weight in made]


def assert_same_run(channels_last: bool = False, **options: object) -> None:
    runs = []
    for fused in (False, True):
        parameters = weights(channels_last)
        optimizer = SBS(parameters, 0.1, fused=fused, **options)
        for step in range(4):
            generator = torch.Generator().manual_seed(step)
            grads = [torch.randn(p.shape, generator=generator).to(DEVICE) for p in parameters]
            set_gradients(
                optimizer,
                [torch.empty_like(p).copy_(g) for p, g in zip(parameters, grads, strict=True)],
            )
            if step == 2:
                parameters[1].grad[0, 0] = torch.nan
            optimizer.step()
        runs.append((parameters, optimizer))
    (eager, one), (fast, two) = runs
    assert (one.steps, one.skipped_steps) == (two.steps, two.skipped_steps) == (3, 1)
    for left, right in zip(eager, fast, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-6, atol=1e-6)
        mine, theirs = one.state[left], two.state[right]
        assert torch.equal(mine["batches"], theirs["batches"])
        if not options.get("weight_decay"):
            assert torch.equal(mine["grad_mean"], theirs["grad_mean"])
        torch.testing.assert_close(mine["grad_mean"], theirs["grad_mean"], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(mine["tally"], theirs["tally"], rtol=1e-5, atol=1e-6)


def test_the_plain_step() -> None:
    assert_same_run()


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"momentum": 0.9, "nesterov": True, "weight_decay": 5e-4, "channels_last": True},
        {"momentum": 0.9, "lr_scaling": "linear"},
        {"probability": 0.3, "maximize": True},
    ],
    ids=str,
)
def test_other_options(options: dict) -> None:
    assert_same_run(**options)


def test_rates_sizes_and_epochs_do_not_compile_anew() -> None:
    torch._dynamo.utils.counters.clear()
    for size in (20_000, 50_000, 131_072, 99_999):
        weight = nn.Parameter(torch.zeros(size, device=DEVICE))
        small = [nn.Parameter(torch.zeros(size // 100, device=DEVICE)) for _ in range(3)]
        optimizer = SBS([weight, *small], fused=True)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        for _ in range(3):
            set_gradients(optimizer, [torch.randn_like(p) for p in [weight, *small]])
            optimizer.step()
            schedule.step()
        optimizer.new_epoch()
    # One graph for a whole layer, one for several small ones, one for statistics; a compiler
    # may make a second one of each for sizes beyond those it saw first.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 6
    assert not torch._dynamo.utils.counters["graph_break"]


@pytest.mark.slow
@torch._dynamo.config.patch({LIMIT: 3})
def test_no_kind_of_step_takes_the_place_of_another() -> None:
    """A sweep in one process: the compiler allows a function only so many variants."""
    for options in ({}, {"probability": 0.5}, {"momentum": 0.9}, {"maximize": True}):
        weight = nn.Parameter(torch.zeros(20_000, device=DEVICE))
        optimizer = SBS([weight], fused=True, **options)
        for _ in range(2):
            weight.grad = torch.randn_like(weight)
            optimizer.step()
        assert optimizer.steps == 2


def test_a_momentum_that_moves_does_not_compile_anew() -> None:
    weight = nn.Parameter(torch.zeros(20_000, device=DEVICE))
    optimizer = SBS([weight], momentum=0.9, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=12)
    graphs = []
    for _ in range(8):
        weight.grad = torch.randn_like(weight)
        optimizer.step()
        schedule.step()
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs[0] == graphs[-1] > 0


def test_a_failing_compiler_is_said_and_stepped_around(monkeypatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError("no such toolchain\nand more")

    monkeypatch.setattr(compiled, "_compile", lambda *_: broken)
    monkeypatch.setattr(compiled, "_COMPILED", {})
    monkeypatch.setattr(compiled, "_FAILURES", [])
    weight = nn.Parameter(torch.zeros(1 << 15, device=DEVICE))
    weight.grad = torch.ones_like(weight)
    optimizer = SBS([weight])
    with pytest.warns(UserWarning, match="torch.compile failed: OSError: no such toolchain$"):
        optimizer.step()
    optimizer.step()
    assert optimizer.steps == 2
    with pytest.raises(RuntimeError, match="fused=True: torch.compile failed"):
        SBS([weight], fused=True).step()


def test_one_layer_on_a_device_is_enough_to_compile(monkeypatch) -> None:
    monkeypatch.setattr(compiled, "DEVICES", ("meta",))
    layers = [SimpleNamespace(weight=torch.empty(2, device=d)) for d in ("cpu", "meta")]
    plan = SimpleNamespace(options={"fused": True}, layers=layers)
    assert compiled.worthwhile(plan, [0, 1])
    assert not compiled.worthwhile(plan, [0])
