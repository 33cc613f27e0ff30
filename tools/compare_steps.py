"""Check that SBS moves as in another checkout: ``python tools/compare_steps.py OTHER``.

OTHER is a checkout of an earlier commit (``git worktree add ../before COMMIT``). Both trees run
the same trajectories under this interpreter, and must agree in every bit of weights, averages,
counts, momentum and counters, and in the numbers of ``layer_report()``: every option, eager and
native, several dtypes and memory layouts, one and two threads, across a resume, and sharded by
FSDP2 over 2 and 4 processes. Sums are reduced in another order on another processor, so both
run here instead of comparing with stored bits.

``--only WORD`` runs only the trajectories that have WORD in their name.

Left out, as it is meant to change: a layer whose gradient is zero everywhere.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

HERE = Path(__file__).resolve().parents[1]
STEPS, SHARDED_STEPS = 9, 5
NAN_STEP, TURNS, DUMMY_STEP = 2, (4, 5), 6
RESUMED_AFTER, NEW_EPOCH_AFTER = 3, 5
RECORDED_AFTER = (1, 3, 5, 8)
STATE = ("grad_mean", "batches", "momentum_buffer", "step", "skipped_steps")

OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "local": {"alpha": 1.0, "lambd": 0.0},
    "negative alpha": {"alpha": -0.1, "lambd": -1.0},
    "global": {"alpha": 0.0, "lambd": -1.0},
    "half": {"probability": 0.5},
    "always": {"probability": 1.0},
    "mean": {"cross_layer": "mean", "lambd": -1.0},
    "weighted": {"cross_layer": "weighted", "lambd": -1.0},
    "linear": {"lr_scaling": "linear", "lambd": -1.0},
    "momentum": {"momentum": 0.9, "lambd": -1.0},
    "nesterov": {"momentum": 0.9, "nesterov": True, "lambd": -1.0},
    "decay": {"weight_decay": 0.01, "lambd": -1.0},
    "maximize": {"maximize": True, "lambd": -1.0},
    "momentum, decay": {"momentum": 0.6, "weight_decay": 0.01, "probability": 0.3},
    "everything": {
        "momentum": 0.9,
        "nesterov": True,
        "weight_decay": 0.01,
        "lr_scaling": "linear",
        "maximize": True,
        "cross_layer": "mean",
        "lambd": -0.5,
        "alpha": 0.7,
    },
    "always, everything": {
        "momentum": 0.9,
        "nesterov": True,
        "weight_decay": 0.01,
        "probability": 1.0,
    },
    "seed": {"seed": 2**63 + 12345, "lambd": -1.0},
    "nonfinite": {"skip_nonfinite": False, "lambd": -1.0},
    "tensor lr": {"lr": torch.tensor(0.05), "lambd": -1.0},
    "groups": {"lambd": -1.0},
    "scheduler": {"lambd": -1.0, "momentum": 0.5},
}
FEW = ("default", "everything", "groups")
GROUPS: list[dict[str, Any]] = [
    {"alpha": 0.5, "lr": 0.02},
    {"lambd": -2.0, "momentum": 0.8},
    {"probability": 0.4, "weight_decay": 0.1},
    {"cross_layer": "weighted", "lr_scaling": "linear"},
    {"cross_layer": "mean", "maximize": True},
]
"""What parameter group 0, 1, 2, ... has for itself in the trajectories called groups."""


# ---- Networks ----


def conv_net() -> nn.Module:
    """Return a network of every usual kind of layer, of odd sizes."""
    return nn.Sequential(
        nn.Conv2d(3, 13, 3),
        nn.BatchNorm2d(13),
        nn.Conv2d(13, 7, 3, bias=False),
        nn.BatchNorm2d(7),
        nn.Conv2d(7, 5, 1),
        nn.Flatten(),
        nn.Linear(45, 17),
        nn.Linear(17, 3),
        nn.Embedding(5, 3),
    )


def channels_last() -> nn.Module:
    """Return the same with convolutions laid out channels last."""
    return conv_net().to(memory_format=torch.channels_last)


def large() -> nn.Module:
    """Return layers of more than 2**17 elements, and some of fewer than a vector has."""
    return nn.Sequential(nn.Linear(419, 331), nn.Linear(331, 61), nn.Linear(61, 1))


def mixed() -> nn.Module:
    """Return layers of three dtypes."""
    net = conv_net()
    net[0].to(torch.bfloat16)
    net[6].to(torch.float64)
    return net


class Odd(nn.Module):
    """A complex, a transposed and a sliced parameter, a scalar and an empty one, beside others."""

    def __init__(self) -> None:
        super().__init__()
        self.complex = nn.Parameter(torch.randn(5, 3, dtype=torch.complex64))
        self.transposed = nn.Parameter(torch.randn(11, 7).T)
        self.sliced = nn.Parameter(torch.randn(9, 20)[:, 3:14])
        self.scalar = nn.Parameter(torch.tensor(0.5))
        self.empty = nn.Parameter(torch.empty(0, 3))
        self.linear = nn.Linear(33, 9)


NETS: dict[str, Callable[[], nn.Module]] = {
    "conv": conv_net,
    "channels-last": channels_last,
    "large": large,
    "float64": lambda: conv_net().double(),
    "bfloat16": lambda: conv_net().to(torch.bfloat16),
    "float16": lambda: conv_net().half(),
    "mixed": mixed,
    "odd": Odd,
}


# ---- Trajectories of one process ----


def trajectories() -> Iterator[tuple[str, str, str, bool | None, int]]:
    """Yield name, network, options, ``fused`` and number of threads of each trajectory."""
    kernels = {"eager": False, "native": True, "chosen": None}
    for net in NETS:
        single = net in ("conv", "channels-last", "large")
        for options in OPTIONS if net in ("conv", "channels-last") else (*FEW, "momentum, decay"):
            for kernel, fused in kernels.items():
                if (fused and not single) or (fused is None and single and options not in FEW):
                    continue
                for threads in (1, 2) if net == "large" and fused is not None else (1,):
                    name = f"{net} / {options} / {kernel} / {threads} threads"
                    yield name, net, options, fused, threads


def give_gradients(parameters: list[Tensor], step: int) -> None:
    """Set gradients that depend on the weights, so that a difference does not heal."""
    generator = torch.Generator().manual_seed(step)
    for number, weight in enumerate(parameters):
        real = torch.view_as_real(weight.detach()) if weight.is_complex() else weight.detach()
        noise = torch.randn(real.shape, generator=generator) * (0.2 + number % 4)
        grad = torch.empty_like(real).copy_(noise.double() + 0.5 * real.double())
        if step == NAN_STEP and number == 1:
            grad[(-1,) * grad.dim()] = float("nan")
        if step == DUMMY_STEP:
            grad.zero_()
        if step in TURNS and number % 3 == step % 3:
            weight.grad = None
        else:
            weight.grad = torch.view_as_complex(grad) if weight.is_complex() else grad


def resumed(optimizer: Any, make: Callable[[], Any]) -> Any:
    """Return a new optimizer with the state of another one, which went through a file."""
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    fresh = make()
    fresh.load_state_dict(torch.load(file, weights_only=True))
    return fresh


def trajectory(net: str, options: str, fused: bool | None, threads: int) -> dict[str, Any]:
    """Train and return everything that was recorded, by its name."""
    from stochbatch import SBS, param_groups

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    module = NETS[net]()
    parameters = list(module.parameters())

    def make() -> SBS:
        groups = param_groups(module)
        if options == "groups":
            for own, group in zip(GROUPS, groups, strict=False):
                group.update(own)
        given = {"lr": 0.1, **OPTIONS[options]}
        if isinstance(given["lr"], Tensor):
            given["lr"] = given["lr"].clone()
        return SBS(groups, **given, fused=fused)

    optimizer = make()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
    found: dict[str, Any] = {}
    for step in range(STEPS):
        give_gradients(parameters, step)
        rates = [group["lr"] for group in optimizer.param_groups]
        if step == DUMMY_STEP:  # as checkpoint libraries take, to make state: leaves no trace
            for group in optimizer.param_groups:
                group["lr"] = 0.0
        optimizer.step()
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        if options == "scheduler":
            scheduler.step()
        if step in RECORDED_AFTER:
            found.update(record(optimizer, module, f"step {step}"))
            rows = [(r.kind, r.size, r.probability, r.batches) for r in optimizer.layer_report()]
            found[f"step {step} / report"] = torch.tensor([r[1:] for r in rows]).double()
            found[f"step {step} / kinds"] = [r[0] for r in rows]
        if step == RESUMED_AFTER:
            optimizer = resumed(optimizer, make)
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
        if step == NEW_EPOCH_AFTER:
            optimizer.new_epoch()
    return found


def record(optimizer: Any, module: nn.Module, when: str) -> dict[str, Any]:
    """Return copies of what this process holds of weights and state."""

    def here(tensor: Any) -> Tensor:
        held = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        return held.detach().clone()

    found: dict[str, Any] = {}
    for name, weight in module.named_parameters():
        found[f"{when} / {name} / weight"] = here(weight)
        state = optimizer.state.get(weight, {})
        for key in STATE:
            if key in state:
                found[f"{when} / {name} / {key}"] = here(state[key])
    return found


# ---- Sharded trajectories ----


class Uneven(nn.Module):
    """Odd widths, so that no cut is even; a bias of three, so that some shards are empty."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(10, 70)
        self.norm = nn.LayerNorm(70)
        self.second = nn.Linear(70, 33)
        self.last = nn.Linear(33, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the last layer."""
        return self.last(torch.relu(self.second(torch.relu(self.norm(self.first(x))))))


def sharded_trajectories(only: str) -> dict[int, list[tuple[str, tuple[int, ...], str, bool]]]:
    """Return name, mesh, options and ``fused`` of each, by the number of processes."""
    result: dict[int, list[tuple[str, tuple[int, ...], str, bool]]] = {2: [], 4: []}
    for mesh in ((2,), (4,), (2, 2)):
        few = ("everything", "default", "half", "momentum, decay", "weighted", "linear")
        for options in few if mesh == (2,) else few[:2]:
            for kernel, fused in {"eager": False, "native": True}.items():
                name = f"sharded {mesh} / {options} / {kernel}"
                if only in name:
                    result[torch.Size(mesh).numel()].append((name, mesh, options, fused))
    return result


def sharded_trajectory(mesh: Any, options: str, fused: bool) -> dict[str, Any]:
    """Train a sharded network, of which one layer is whole on every process."""
    from torch.distributed.fsdp import fully_shard

    from stochbatch import SBS, param_groups

    net = Uneven()
    for part in (net.first, net.second, net.last):
        fully_shard(part, mesh=mesh)

    def make() -> SBS:
        return SBS(param_groups(net), **{"lr": 0.1, **OPTIONS[options]}, fused=fused)

    optimizer = make()
    found: dict[str, Any] = {}
    for step in range(SHARDED_STEPS):
        inputs = torch.randn(8, 10, generator=torch.Generator().manual_seed(step))
        if step == 1:
            inputs[0, 0] = float("nan")
        net(inputs).square().mean().backward()
        if step == 2:  # on all processes alike
            net.second.weight.grad = net.norm.weight.grad = None
        optimizer.step()
        optimizer.zero_grad()
        found.update(record(optimizer, net, f"step {step}"))
        if step == 2:
            state = optimizer.state_dict()
            optimizer = make()
            optimizer.load_state_dict(state)
    return found


def work(rank: int, cases: list[Any], count: int, scratch: Path) -> None:
    """Run the sharded trajectories as one of several processes, and save what was found."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    torch.set_num_threads(1)
    where = f"file://{scratch}/meeting-{count}"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=count)
    found: dict[str, Any] = {}
    for name, shape, options, fused in cases:
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("outer", "inner")[: len(shape)])
        result = attempt(sharded_trajectory, mesh, options, fused)
        found.update({f"{name} / rank {rank} / {key}": value for key, value in result.items()})
    torch.save(found, scratch / f"rank-{count}-{rank}.pt")
    dist.destroy_process_group()


def all_sharded(only: str, scratch: Path) -> dict[str, Any]:
    """Run the sharded trajectories, 2 and then 4 processes at a time."""
    import torch.distributed.fsdp  # once, before the processes are forked

    found: dict[str, Any] = {}
    for count, cases in sharded_trajectories(only).items():
        if not cases:
            continue
        context = torch.multiprocessing.get_context("fork")  # torch is loaded and has no threads
        processes = [
            context.Process(target=work, args=(rank, cases, count, scratch), daemon=True)
            for rank in range(count)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        for rank in range(count):
            path = scratch / f"rank-{count}-{rank}.pt"
            if path.exists():
                found.update(torch.load(path))
            else:
                found[f"sharded, {count} processes / rank {rank}"] = "died"
    return found


# ---- Both trees ----


def attempt(function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Return what a trajectory recorded, or how it failed."""
    try:
        return function(*arguments)
    except Exception:
        return {"error": traceback.format_exc().splitlines()[-1]}


def probe(only: str, scratch: Path) -> None:
    """Save what the tree that is imported here computes."""
    import warnings

    import stochbatch

    # Not this file's own: the tree that runs is the one on PYTHONPATH.
    print(f"{stochbatch.__file__}", flush=True)
    warnings.simplefilter("ignore")
    found = all_sharded(only, scratch)  # first, as it forks
    try:
        from stochbatch.optim.kernels.build import library
    except ImportError:
        from stochbatch.optim.building import library
    library()  # built before a step asks for it
    for name, *arguments in trajectories():
        if only in name:
            result = attempt(trajectory, *arguments)
            found.update({f"{name} / {key}": value for key, value in result.items()})
    torch.save(found, scratch / "found.pt")


def difference(before: Any, now: Any) -> str | None:
    """Return how two recorded values differ, None if they do not: not in one bit."""
    if not isinstance(before, Tensor) or not isinstance(now, Tensor):
        return None if type(before) is type(now) and before == now else f"{before!r}, now {now!r}"
    if before.dtype == torch.int32 and now.dtype == torch.int16:  # counts have become shorter
        now = now.int()
    facts = [(tensor.dtype, tuple(tensor.shape)) for tensor in (before, now)]
    if facts[0] != facts[1]:
        return f"{facts[0]}, now {facts[1]}"
    old, new = (
        torch.view_as_real(tensor) if tensor.is_complex() else tensor for tensor in (before, now)
    )
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[old.element_size()]
    apart = old.contiguous().view(width) != new.contiguous().view(width)
    if old.is_floating_point():
        apart &= ~(old.isnan() & new.isnan())  # any NaN is as good as another
    count = int(apart.sum())
    if not count:
        return None
    gap = float((old.double() - new.double()).abs()[apart].max())
    return f"{count} of {old.numel()} differ, by up to {gap:.3g}"


def main() -> None:
    """Compare two trees and exit with 1 if they differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", type=Path, help="a checkout to compare this one with")
    parser.add_argument("--only", default="", metavar="WORD", help="trajectories with this word")
    parser.add_argument("--probe", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.probe:
        probe(chosen.only, chosen.probe)
        return
    with tempfile.TemporaryDirectory() as scratch:
        running, both = {}, {}
        for name, tree in (("before", chosen.other.resolve()), ("now", HERE)):
            folder = Path(scratch) / name
            folder.mkdir()
            command = [sys.executable, __file__, str(tree), "--only", chosen.only]
            environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
            running[name] = subprocess.Popen(
                [*command, "--probe", str(folder)], env=environment, cwd=scratch
            )
        for name, process in running.items():
            if process.wait():
                sys.exit(f"the {name} tree failed with exit status {process.returncode}")
            both[name] = torch.load(Path(scratch) / name / "found.pt")
    before, now = both["before"], both["now"]
    found = {
        name: text
        for name in [*before, *(name for name in now if name not in before)]
        if (text := difference(before.get(name), now.get(name)))
    }
    failed = [name for name in now if name.endswith(" / error") and name not in found]
    for name in failed:
        print(f"fails in both: {name}: {now[name]}")
    for name, text in found.items():
        print(f"{name}: {text}")
    for part in ("one process", "sharded"):
        here = [n for n in now if n.startswith("sharded") == (part == "sharded")]
        apart = [n for n in found if n.startswith("sharded") == (part == "sharded")]
        verdict = f"{len(apart)} differences, first at {apart[0]}" if apart else "identical"
        print(f"{part}: {len(here)} values compared: {verdict}")
    sys.exit(bool(found or failed or not now))


if __name__ == "__main__":
    main()
