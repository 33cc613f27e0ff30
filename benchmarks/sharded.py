"""The optimizer's step on parameters that FSDP2 has divided between two processes."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.models import MODELS
from benchmarks.result import Result
from benchmarks.timing import in_turn, ratios, times
from stochbatch import SBS

PROCESSES = 2
PEER = "Adam fused"
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    PEER: lambda parameters: torch.optim.Adam(parameters, 1e-6, fused=True),
    "SGD foreach": lambda parameters: torch.optim.SGD(parameters, 1e-6, foreach=True),
    "SBS fused": lambda parameters: SBS(parameters, 1e-6, fused=True),
    "SBS fused, momentum 0.9": lambda parameters: SBS(parameters, 1e-6, fused=True, momentum=0.9),
}


def run(quick: bool) -> Result:
    """Time every optimizer in two processes of one thread each that talk by gloo."""
    result = Result(
        f"sharded: optimizer.step() in {PROCESSES} processes under FSDP2, to Adam(fused=True)",
        ["parameters", "optimizer", "ms", "ratio", "10 % to 90 %"],
    )
    for name in ("VGG11", "ResNet50"):
        seconds = _measured(name, 5 if quick else 20)
        for key, values in seconds.items():
            ratio = ratios(values, seconds[PEER])
            spread = f"{ratio.low:.2f} to {ratio.high:.2f}"
            result.rows.append([name, key, 1000 * times(values).median, ratio.median, spread])
    return result


def _measured(name: str, rounds: int) -> dict[str, list[float]]:
    context = multiprocessing.get_context("spawn")
    answers, told = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(target=_work, args=(name, rounds, rank, f"file://{folder}/meet", told))
            for rank in range(PROCESSES)
        ]
        for process in processes:
            process.start()
        told.close()  # so that the end of the processes ends the waiting
        seconds: dict[str, list[float]] = answers.recv()
        for process in processes:
            process.join()
    return seconds


def _work(name: str, rounds: int, rank: int, meeting: str, told: Any) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=PROCESSES)
    mesh = init_device_mesh("cpu", (PROCESSES,))
    calls = {}
    for key, make in OPTIMIZERS.items():
        model = MODELS[name]()
        fully_shard(model, mesh=mesh)
        for parameter in model.parameters():
            grad: Any = torch.zeros_like(parameter)
            grad.to_local().normal_(std=0.01)
            parameter.grad = grad
        calls[key] = _together(make(list(model.parameters())))
    seconds = in_turn(calls, rounds)
    if rank == 0:
        told.send(seconds)
    dist.barrier()
    dist.destroy_process_group()


def _together(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    def call() -> None:
        dist.barrier()  # in every candidate's time, as no process may run ahead
        optimizer.step()

    return call
