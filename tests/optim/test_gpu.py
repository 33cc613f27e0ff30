"""Invariant: the step in Triton's language is the eager step.

Without a GPU the same functions run in Triton's interpreter, on tensors of the CPU, and are
compiled for GPUs that are not here.
"""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from stochbatch import SBS, param_groups
from stochbatch.nets import resnet18
from stochbatch.optim.kernels import eager, gpu, native
from stochbatch.optim.probability import Scores
from stochbatch.optim.shards import Window
from tests.conftest import devices

pytest.importorskip("triton")

DEVICE = devices()[-1]
SHAPES = [(40, 12, 3, 3), (40, 100), (64,), (64,), (7,), (3, 5), (), (5000,)]

pytestmark = pytest.mark.skipif(DEVICE == "mps", reason="Triton does not know it")


@pytest.fixture(autouse=True)
def _triton_here(monkeypatch) -> None:
    monkeypatch.setattr(gpu, "DEVICES", (DEVICE,))
    monkeypatch.setattr(gpu, "_failure", None)
    monkeypatch.setattr(native, "fits", lambda *_: False)


def kernels_of(optimizer: SBS) -> list[type]:
    return [type(kernel) for kernel in optimizer._plans._plan.work.kernels]


def trained(fused: bool, dtype: torch.dtype, layout: torch.memory_format, options: dict) -> SBS:
    generator = torch.Generator().manual_seed(1)
    made = [torch.randn(shape, generator=generator) for shape in SHAPES]
    made[0] = made[0].contiguous(memory_format=layout)
    weights = [nn.Parameter(weight.to(DEVICE, dtype)) for weight in made]
    groups = [{"params": weights[:4], "lr": 0.05}, {"params": weights[4:]}]
    optimizer = SBS(groups, 0.1, fused=fused, **options)
    for step in range(5):
        generator = torch.Generator().manual_seed(step)
        grads = [torch.randn(weight.shape, generator=generator) for weight in made]
        grads = [torch.empty_like(w).copy_(g) for w, g in zip(weights, grads, strict=True)]
        if step == 2:
            grads[1][0, 0] = torch.nan
        if step == 3:  # another memory layout than the weight's, and a layer without a gradient
            grads[1] = grads[1].t().contiguous().t()
            grads[5] = None
        for weight, grad in zip(weights, grads, strict=True):
            weight.grad = grad
        optimizer.step()
    return optimizer


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.9, "nesterov": True, "weight_decay": 5e-4},
        {"momentum": 0.9, "lr_scaling": "linear", "cross_layer": "mean"},
        {"probability": 0.3, "maximize": True},
        {"coin": "none", "momentum": 0.5, "weight_decay": 0.01},
        {"alpha": 2.0, "lambd": -1.0, "compare": "all"},
    ],
    ids=str,
)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_it_is_the_eager_step(options: dict, layout: torch.memory_format) -> None:
    plain, fast = (trained(fused, torch.float32, layout, options) for fused in (False, True))
    assert (kernels_of(plain), kernels_of(fast)) == ([eager.Rows], [gpu.Rows])
    assert (plain.steps, plain.skipped_steps) == (fast.steps, fast.skipped_steps) == (4, 1)
    for (left, one), (right, two) in zip(plain.state.items(), fast.state.items(), strict=True):
        exact = torch.equal if DEVICE == "cpu" else torch.allclose
        assert exact(left, right)
        for name in one.keys() - {"tally"}:
            assert torch.equal(one[name], two[name]) or (name != "batches" and DEVICE != "cpu")
        torch.testing.assert_close(one["tally"], two["tally"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_averaged_in_float32(dtype: torch.dtype) -> None:
    options = {"momentum": 0.5, "weight_decay": 0.0}
    plain, fast = (trained(f, dtype, torch.contiguous_format, options) for f in (False, True))
    for (left, one), (right, two) in zip(plain.state.items(), fast.state.items(), strict=True):
        # Where a GPU rounds to bfloat16, the interpreter cuts off: four steps, four last places.
        tolerance = 4 * torch.finfo(dtype).eps if dtype == torch.bfloat16 else 0.0
        torch.testing.assert_close(left, right, rtol=tolerance, atol=tolerance)
        assert torch.equal(one["grad_mean"], two["grad_mean"])
        assert torch.equal(one["batches"], two["batches"])


@torch.no_grad()
@pytest.mark.parametrize(
    ("window", "channels_last"),
    [
        (Window((6, 5, 4, 3), (2, 0, 0, 0), (3, 5, 4, 3)), False),
        (Window((6, 5, 4, 3), (2, 1, 0, 0), (3, 3, 4, 3)), True),
        (Window((6, 5, 4, 3), (0, 2, 0, 0), (6, 2, 4, 3)), False),
        (Window((3, 2**30), (2, 2**29 + 5), (1, 4)), False),
        (Window((2**32,), (2**32 - 50,), (50,)), False),
    ],
    ids=str,
)
def test_a_shard_draws_the_coins_of_the_whole(window: Window, channels_last: bool) -> None:
    found = []
    for kernel in (eager.Rows, gpu.Rows):
        form = torch.channels_last if channels_last else torch.contiguous_format
        weight = nn.Parameter(
            torch.zeros(window.part, device=DEVICE).contiguous(memory_format=form)
        )
        optimizer = SBS([weight], 1.0, probability=0.5, fused=False)
        weight.grad = torch.arange(1.0, weight.numel() + 1, device=DEVICE).reshape(weight.shape)
        plan = optimizer._plans.current(optimizer)
        plan.layers = [plan.layers[0]._replace(window=window)]
        applies = torch.ones((), dtype=torch.bool, device=DEVICE)
        rows = kernel([0]) if kernel is eager.Rows else kernel(plan, [0])
        zeros = torch.zeros(1, dtype=torch.float64, device=DEVICE)
        rows.move(plan, Scores(zeros, zeros, zeros), eager.Verdict(applies, ~applies))
        found.append(weight.detach().clone())
    assert torch.equal(*found)
    assert 0 < int((found[0] != 0).sum()) < found[0].numel() or found[0].numel() < 5


def _is_operation(event: object) -> bool:
    return str(getattr(event, "name", "")).startswith("aten::")


class _Recorder:
    """Stands for Triton's functions where only the host's work is looked at."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple, tuple]] = []

    def __getattr__(self, name: str) -> object:
        def launch(*arguments: object, **constants: object) -> None:
            kinds = tuple(type(argument) for argument in arguments)
            self.calls.append((name, kinds, tuple(sorted(constants.items(), key=str))))

        class _Function:
            def __getitem__(self, grid: tuple[int, ...]) -> object:
                assert all(isinstance(size, int) and size > 0 for size in grid)
                return launch

        return _Function()


def test_a_step_of_a_deep_network_is_few_calls(monkeypatch) -> None:
    """Five kinds, 62 tensors: 8 launches and at most 100 operations of torch."""
    recorder = _Recorder()
    monkeypatch.setattr(gpu, "_code", lambda: recorder)
    network = resnet18(width=1 / 16)
    optimizer = SBS(param_groups(network), fused=True)
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    recorder.calls.clear()
    with torch.profiler.profile() as profile:
        optimizer.step()
    # What torch does for an operation is within it. A conversion that has nothing in it is none.
    outer = [e for e in profile.events() if _is_operation(e) and not _is_operation(e.cpu_parent)]
    operations = [e.name for e in outer if e.cpu_children or e.name != "aten::to"]
    assert len(optimizer.state) == 62
    assert [name for name, *_ in recorder.calls] == ["measure", "combine", *["move"] * 5, "combine"]
    assert 10 < len(operations) <= 100


def test_rates_gradients_and_steps_compile_nothing_anew(monkeypatch) -> None:
    recorder = _Recorder()
    monkeypatch.setattr(gpu, "_code", lambda: recorder)
    weights = [nn.Parameter(torch.zeros(size, device=DEVICE)) for size in (3000, 20, 500)]
    optimizer = SBS(weights, 0.1, fused=True, momentum=0.9)
    for step in range(6):
        optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
        optimizer.param_groups[0]["momentum"] = 0.9 - step / 10
        for number, weight in enumerate(weights):
            weight.grad = None if number == step % 3 else torch.ones_like(weight)
        optimizer.step()
    variants = {call for call in recorder.calls if call[0] == "move"}
    assert len(recorder.calls) > len(variants) == 1
    assert sum(call[1].count(float) for call in variants) == 4  # numbers that may change


def test_a_failing_compiler_is_said_and_stepped_around(monkeypatch) -> None:
    def broken() -> None:
        raise OSError("no such toolchain\nand more")

    monkeypatch.setattr(gpu, "_code", broken)
    monkeypatch.setattr(gpu, "_tried", set())
    weight = nn.Parameter(torch.zeros(1 << 15, device=DEVICE))
    weight.grad = torch.ones_like(weight)
    optimizer = SBS([weight])
    with pytest.warns(UserWarning, match="Triton failed: OSError: no such toolchain$"):
        optimizer.step()
    optimizer.step()
    assert optimizer.steps == 2
    with pytest.raises(RuntimeError, match="fused=True: Triton failed"):
        SBS([weight], fused=True).step()
    assert optimizer.steps == 2


def test_a_variant_that_does_not_compile_moves_nothing(monkeypatch) -> None:
    code = gpu._code()
    half = SimpleNamespace(measure=code.measure, combine=code.combine, move=None)
    monkeypatch.setattr(gpu, "_code", lambda: half)
    monkeypatch.setattr(gpu, "_tried", set())
    weight = nn.Parameter(torch.zeros(50, device=DEVICE))
    weight.grad = torch.ones_like(weight)
    with pytest.raises(RuntimeError, match="fused=True: Triton failed: TypeError"):
        SBS([weight], fused=True).step()
    assert not weight.any()


def test_what_it_cannot_move_is_left_to_the_eager_step() -> None:
    odd = [
        torch.zeros(50, dtype=torch.float64, device=DEVICE),
        torch.zeros(8, device=DEVICE)[::2],
        torch.zeros(5, 4, device=DEVICE).t(),
    ]
    parameters = [nn.Parameter(weight) for weight in (torch.zeros(50, device=DEVICE), *odd)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    layers = SBS(parameters)._plans.current(SBS(parameters)).layers
    fits = [gpu.fits(layer, layer.member.tensor.grad) for layer in layers]
    assert fits == [True, False, False, False]


COMPILE = """
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from stochbatch.optim.kernels import triton_step

TABLES = dict(grads="*i64", facts="*i64", chunks="*i32", partials="*fp64")
ARGUMENTS = dict(
    memory="*i64", **TABLES, roots="*i32", scores="*fp32", step="*i64", applies="*i32",
    lr_tensor="*fp32", first="i32", layers="i32", lr="fp32", probability="fp32", momentum="fp32",
    decay="fp32",
)
FLAGS = "COIN ADAPTIVE MOMENTUM NESTEROV LINEAR MAXIMIZE DECAYS LR_TENSOR".split()

def compiled(function, target, arguments, constants):
    signature = {**arguments, **dict.fromkeys(constants, "constexpr")}
    source = ASTSource(fn=function, signature=signature, constexprs=constants)
    options = {"enable_fp_fusion": False, "num_warps": 8}
    return triton.compile(source, target=target, options=options)

for what in (("cuda", 80, 32), ("cuda", 90, 32), ("hip", "gfx942", 64)):
    target = GPUTarget(*what)
    measure = {**TABLES, "first": "i32"}
    compiled(triton_step.measure, target, measure, {"GRAD": tl.float32, "BLOCK": 2048})
    combine = {"partials": "*fp64", "ranges": "*i32", "result": "*fp64"}
    compiled(triton_step.combine, target, combine, {"MOMENTS": True, "BLOCK": 256})
    for dtype, fused, on in (
        (tl.float32, 1, "COIN ADAPTIVE"),
        (tl.bfloat16, 3, "COIN ADAPTIVE MOMENTUM NESTEROV DECAYS LR_TENSOR"),
        (tl.float16, 1, "COIN LINEAR MAXIMIZE"),
        (tl.float32, 2, "ADAPTIVE DECAYS"),
    ):
        constants = {flag: flag in on.split() for flag in FLAGS}
        constants |= {"WEIGHT": dtype, "GRAD": dtype, "BLOCK": 2048}
        constants["COUNT"] = tl.int16 if fused == 1 else tl.int32
        made = compiled(triton_step.move, target, ARGUMENTS, constants)
        if target.backend == "cuda":
            # 8 scalars per thread; a fused multiplication and addition only where torch has one,
            # divisions and conversions rounded to nearest.
            code = made.asm["ptx"]
            assert code.count("fma.rn.f32") == 8 * fused, (on, code.count("fma.rn.f32"))
            assert "div.full" not in code and "rcp.approx" not in code
            assert dtype != tl.bfloat16 or "cvt.rn.bf16" in code
print("compiled")
"""


def test_it_compiles_for_gpus_that_are_not_here(tmp_path) -> None:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE], capture_output=True, text=True, env=environment
    )
    assert done.stdout == "compiled\n", done.stderr
