"""The optimizer's step alone, as a ratio to torch's fused Adam; on a GPU, if there is one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from benchmarks.models import PARAMETERS, with_gradients
from benchmarks.result import Goal, Result
from benchmarks.timing import in_turn, ratios, times
from stochbatch import SBS, Masked

PEER = "Adam fused"
Maker = Callable[[nn.Module], torch.optim.Optimizer]


def _sbs(**options: object) -> Maker:
    return lambda model: SBS(model.parameters(), 1e-6, **options)  # type: ignore[arg-type]


def _sgd(**options: object) -> Maker:
    return lambda model: torch.optim.SGD(model.parameters(), 1e-6, **options)  # type: ignore[arg-type]


def _adam(**options: object) -> Maker:
    return lambda model: torch.optim.Adam(model.parameters(), 1e-6, **options)  # type: ignore[arg-type]


OPTIMIZERS: dict[str, Maker] = {
    PEER: _adam(fused=True),
    "SGD fused": _sgd(fused=True),
    "SGD fused, momentum": _sgd(fused=True, momentum=0.9),
    "SBS": _sbs(fused=True),
    "SBS, momentum": _sbs(fused=True, momentum=0.9),
    "SBS, mean field": _sbs(fused=True, coin="none"),
    "Masked(Adam fused)": lambda model: Masked(_adam(fused=True)(model)),
    "SBS eager": _sbs(fused=False),
}
SLOW = ("Masked(Adam fused)", "SBS eager")
PLACES = 3
"""How often everything is made anew, as a step is faster or slower by where its memory lies."""
LARGE = 10_000_000
"""Parameters above this get fewer rounds, and small ones many."""


def limit(parameters: str, optimizer: str) -> float | None:
    """Return what a ratio to fused Adam should not exceed; None without a goal."""
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    if optimizer not in ("SBS", "SBS, momentum"):
        return None
    if "weights" in parameters or "tensors" in parameters:
        return 1.0 if optimizer == "SBS" else None
    if "float" in parameters:
        return 1.4 if optimizer == "SBS" else None
    if torch.get_num_threads() > 1:
        return 1.1 if optimizer == "SBS" else 1.35
    return (1.3 if wide else 1.55) if optimizer == "SBS" else None


def run(quick: bool) -> Result:
    """Time every optimizer on every parameter set."""
    result = Result(
        "seconds of optimizer.step(), as a ratio to Adam(fused=True)",
        ["parameters", "optimizer", "ms", "ratio", "10 % to 90 %"],
    )
    for name, make in PARAMETERS.items():
        size = sum(parameter.numel() for parameter in make().parameters())
        if quick and size > 5 * LARGE:
            continue
        rounds = 10 if size > 5 * LARGE else 40 if size > LARGE / 2 else 400
        rounds = max(3, rounds // 4) if quick else rounds
        fast = [one for one in OPTIMIZERS if one not in SLOW]
        found: dict[str, tuple[list[float], list[float]]] = {one: ([], []) for one in OPTIMIZERS}
        for _ in range(PLACES):
            for chosen, times_each in ((fast, rounds), ([PEER, *SLOW], 3)):
                calls = {one: OPTIMIZERS[one](with_gradients(make())).step for one in chosen}
                seconds = in_turn(calls, rounds=times_each)
                for one in fast if chosen is fast else SLOW:
                    found[one][0].extend(seconds[one])
                    found[one][1].extend(seconds[PEER])
        for one, (values, peer) in found.items():
            ratio = ratios(values, peer)
            spread = f"{ratio.low:.2f} to {ratio.high:.2f}"
            result.rows.append([name, one, 1000 * times(values).median, ratio.median, spread])
            if (goal := limit(name, one)) is not None:
                result.goals.append(Goal(f"{name}, {one}", ratio.median, goal))
    return result
