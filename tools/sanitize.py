"""Fuzz the native step against the eager one, with sanitizers: ``python tools/sanitize.py``.

``native.cpp`` is built with the address and undefined-behaviour sanitizers of GCC into a temporary
folder. Then a process with that library takes random steps (shapes, memory layouts, options,
groups, kinds, missing and non-finite gradients, resumes) eagerly and natively, and demands
the same bits. A difference or a sanitizer's report is exit status 1, and the seed of the case is
printed: ``--seed`` replays it.
"""

from __future__ import annotations

import argparse
import io
import math
import os
import random
import shlex
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
SANITIZERS = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g"
LARGE = 2**16
"""More than a chunk of the native step, with what is added to it."""


class DifferenceError(AssertionError):
    """The native step is not the eager one."""


def shape_of(draw: random.Random) -> tuple[int, ...]:
    """Return a shape: mostly small, sometimes of several chunks, sometimes empty."""
    if draw.random() < 0.02:
        return (LARGE * draw.randint(1, 2) + draw.randint(-9, 9),)
    if draw.random() < 0.03:
        return (draw.randint(0, 3), 0)
    dims = draw.randint(0, 4)
    sizes = [1, 2, 3, 5, 7, 8, 9, 16, 33, 70, 130][: 12 - 2 * dims]
    return tuple(draw.choice(sizes) for _ in range(dims))


def options_of(draw: random.Random) -> dict[str, Any]:
    """Return options of a parameter group."""
    momentum = draw.choice([0.0, 0.0, 0.3, 0.9])
    return {
        "lr": draw.choice([0.1, 1e-3, 10.0, 0.0]),
        "alpha": draw.choice([0.1, 0.0, -1.0, 5.0]),
        "lambd": draw.choice([-4.0, -1.0, 0.0, 2.0]),
        "probability": draw.choice([None, None, 1.0, 0.5, 0.01]),
        "cross_layer": draw.choice(["total", "mean", "weighted"]),
        "lr_scaling": draw.choice(["none", "linear"]),
        "momentum": momentum,
        "nesterov": momentum > 0 and draw.random() < 0.4,
        "weight_decay": draw.choice([0.0, 5e-4, 0.1]),
        "maximize": draw.random() < 0.2,
    }


def kinds() -> list[str | None]:
    """Return kinds that a group may have; None is a group that has none."""
    return [None, "conv", "linear", "bias", "norm_weight", "norm_bias", "embedding", "other"]


def laid_out(draw: random.Random, value: Any) -> Any:
    """Return a tensor of the same numbers in some memory layout that the native step takes."""
    import torch

    if value.dim() == 4 and draw.random() < 0.5:
        return value.contiguous(memory_format=torch.channels_last)
    how = draw.random()
    if how < 0.2 and value.numel():  # inside of a larger tensor, between others' memory
        room = torch.full((value.numel() + 5,), math.nan, dtype=value.dtype)
        room[3:-2] = value.reshape(-1)
        return room[3:-2].view(value.shape)
    if how < 0.3 and value.numel():  # at an odd address
        raw = bytearray(b"\0" + bytes(value.contiguous().reshape(-1).view(torch.uint8).numpy()))
        return torch.frombuffer(raw, dtype=value.dtype, offset=1).view(value.shape)
    return value


def gradient_of(draw: random.Random, weight: Any, generator: Any) -> Any:
    """Return a gradient, or None."""
    import torch

    luck = draw.random()
    if luck < 0.15:
        return None
    noise = torch.randn(weight.shape, generator=generator) * 10.0 ** draw.randint(-7, 4)
    if luck < 0.2:
        noise = torch.full_like(noise, draw.choice([0.0, 1.0, -1e-30, 1e30]))
    elif luck < 0.23 and noise.numel():
        noise.view(-1)[draw.randrange(noise.numel())] = draw.choice([math.nan, math.inf, -math.inf])
    noise = noise.to(weight.dtype)
    if luck < 0.4:
        return laid_out(draw, noise)
    if luck < 0.45 and noise.dim():
        return noise.T.contiguous().T if noise.dim() == 2 else noise[:1].expand(noise.shape)
    if luck < 0.5:
        return torch._neg_view(noise)
    return torch.empty_like(weight).copy_(noise)


class Run:
    """One optimizer, eager or native, of a case that a seed decides."""

    def __init__(self, seed: int, native: bool) -> None:
        import torch

        self.draw = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed % 2**63)
        draw = self.draw
        self.odd = draw.random() < 0.15
        torch.set_num_threads(1 if draw.random() < 0.8 else 2)
        self.weights, self.groups = [], []
        whole = {"seed": draw.randrange(2**64), "skip_nonfinite": draw.random() < 0.8}
        whole["coin"] = "none" if draw.random() < 0.1 else "scalar"
        self.whole = whole
        for _ in range(draw.randint(1, 3)):
            own = [self.weight() for _ in range(draw.randint(1, 4))]
            self.weights += own
            kind = draw.choice(kinds())
            named = {} if kind is None else {"kind": kind}
            self.groups.append({"params": own, **options_of(draw), **named})
        # An odd parameter is not for the native step: then the others may be.
        self.options = {**whole, "fused": (None if self.odd else True) if native else False}
        self.optimizer = self.make()

    def weight(self) -> Any:
        """Return a parameter: one that the native step takes, unless the case is an odd one."""
        import torch

        value = torch.randn(shape_of(self.draw), generator=self.generator)
        if self.odd and self.draw.random() < 0.4:
            change: list[Callable[[Any], Any]] = [
                lambda t: torch.complex(t, -t),
                lambda t: t.T if t.dim() == 2 else t,
                lambda t: torch.stack([t, t], dim=-1)[..., 0],
            ]
            return torch.nn.Parameter(self.draw.choice(change)(value))
        dtypes = [torch.float32] * 4 + [torch.bfloat16, torch.float16]
        if self.whole["coin"] != "none":  # whose doubles differ in the last place
            dtypes += [torch.float64]
        return torch.nn.Parameter(laid_out(self.draw, value.to(self.draw.choice(dtypes))))

    def make(self) -> Any:
        """Return a new optimizer of these groups."""
        from stochbatch import SBS

        return SBS([{**group} for group in self.groups], **self.options)

    def is_finite(self) -> bool:
        """Whether nothing in the state has overflowed, as a diverging training's does."""
        tensors = (value for state in self.optimizer.state.values() for value in state.values())
        return all(bool(tensor.isfinite().all()) for tensor in tensors)

    def step(self) -> None:
        """Step with new gradients; sometimes resume, start an epoch or change options."""
        import torch

        draw = self.draw
        for weight in self.weights:
            real = torch.view_as_real(weight.detach()) if weight.is_complex() else weight.detach()
            grad = gradient_of(draw, real, self.generator)
            if grad is not None:
                grad = grad.to(real.dtype)
                if weight.is_complex():
                    grad = grad.clone(memory_format=torch.contiguous_format)
                    grad = torch.view_as_complex(grad)
            weight.grad = grad
        self.optimizer.step()
        what = draw.random()
        if what < 0.1:
            self.optimizer.new_epoch()
        elif what < 0.3 and self.is_finite():  # other states are refused
            file = io.BytesIO()
            torch.save(self.optimizer.state_dict(), file)
            file.seek(0)
            self.optimizer = self.make()
            self.optimizer.load_state_dict(torch.load(file, weights_only=True))
        elif what < 0.4:
            group = draw.choice(self.optimizer.param_groups)
            group["lr"] *= 0.5
            group["momentum"] = draw.choice([0.0, 0.5])
            group["nesterov"] = False


def same_bits(one: Any, other: Any) -> bool:
    """Return whether two tensors have the same bits; one NaN is as good as another."""
    import torch

    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.is_complex():
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    width = {2: torch.int16, 4: torch.int32, 8: torch.int64}[one.element_size()]
    # Cloned: a view as integers wants aligned memory.
    bits = [tensor.detach().clone().contiguous().view(width) for tensor in (one, other)]
    return bool(((bits[0] == bits[1]) | ((one != one) & (other != other))).all())


def check(seed: int) -> None:
    """Run one case; raise if the native step differs."""
    eager, native = Run(seed, native=False), Run(seed, native=True)
    for step in range(random.Random(seed).randint(2, 6)):
        eager.step()
        native.step()
        for number, (left, right) in enumerate(zip(eager.weights, native.weights, strict=True)):
            one, other = eager.optimizer.state[left], native.optimizer.state[right]
            if one.keys() != other.keys():
                raise DifferenceError(
                    f"step {step}, parameter {number}: {list(one)}, {list(other)}"
                )
            pairs = {name: (one[name], other[name]) for name in one if name != "tally"}
            for name, pair in {"weight": (left, right), **pairs}.items():
                if not same_bits(*pair):
                    raise DifferenceError(f"step {step}, parameter {number}: {name}")


def fuzz(seconds: float, first: int, count: int | None, note: Path) -> None:
    """Check one case after the other until the time is over."""
    from stochbatch.optim.kernels.build import library

    warnings.simplefilter("ignore")
    library()
    end, done = time.monotonic() + seconds, 0
    while time.monotonic() < end if count is None else done < count:
        note.write_text(str(first + done))
        check(first + done)
        done += 1
    print(f"{done} cases, no difference and no report", flush=True)


def child(seconds: float, first: int, count: int | None, note: Path) -> int:
    """Build, then fuzz in a process that has the sanitizers loaded; return its exit status."""
    compiler = shlex.split(os.environ.get("CXX", "")) or ["g++"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(HERE / "src"),
        "XDG_CACHE_HOME": str(note.parent),
        "CXX": f"{shlex.join(compiler)} {SANITIZERS}",
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    building = "from stochbatch.optim.kernels.build import build; build()"
    subprocess.run([sys.executable, "-c", building], env=environment, check=True)
    # The C++ runtime too: the sanitizer looks for its functions before torch brings them.
    names = ("libasan.so", "libubsan.so", "libstdc++.so.6")
    asked = [[*compiler, f"-print-file-name={name}"] for name in names]
    found = [subprocess.check_output(command, text=True).strip() for command in asked]
    environment["LD_PRELOAD"] = " ".join(found)
    arguments = ["--child", str(note), "--seconds", str(seconds), "--seed", str(first)]
    if count is None:
        arguments.append("--on")
    return subprocess.run([sys.executable, __file__, *arguments], env=environment).returncode


def main() -> None:
    """Fuzz, and exit with 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to fuzz (60)")
    parser.add_argument("--seed", type=int, help="replay this one case")
    parser.add_argument("--on", action="store_true", help="with --seed: go on from there")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    count = None if chosen.seed is None or chosen.on else 1
    first = random.SystemRandom().randrange(10**9) if chosen.seed is None else chosen.seed
    if chosen.child:
        fuzz(chosen.seconds, first, count, chosen.child)
        return
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder) / "seed"
        status = child(chosen.seconds, first, count, note)
        if status:
            seed = note.read_text() if note.exists() else "none: the process did not start"
            sys.exit(
                f"failed (exit status {status}); replay: python tools/sanitize.py --seed {seed}"
            )


if __name__ == "__main__":
    main()
