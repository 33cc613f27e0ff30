"""The optimizer's step alone, as a ratio to torch's fused Adam."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from benchmarks.models import MODELS, with_gradients
from benchmarks.result import Goal, Result
from benchmarks.timing import in_turn, ratios, times
from stochbatch import SBS

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
    "Adam foreach": _adam(foreach=True),
    "SGD for-loop": _sgd(foreach=False),
    "SGD foreach": _sgd(foreach=True),
    "SGD fused": _sgd(fused=True),
    "SGD fused, momentum 0.9": _sgd(fused=True, momentum=0.9),
    "SBS fused": _sbs(fused=True),
    "SBS fused, momentum 0.9": _sbs(fused=True, momentum=0.9),
    "SBS fused, linear": _sbs(fused=True, lr_scaling="linear"),
    "SBS fused, linear, momentum 0.9": _sbs(fused=True, lr_scaling="linear", momentum=0.9),
    "SBS eager": _sbs(fused=False),
    "SBS eager, momentum 0.9": _sbs(fused=False, momentum=0.9),
}
SLOW = ("SBS eager", "SBS eager, momentum 0.9")


def run(quick: bool) -> Result:
    """Time every optimizer on every parameter set."""
    result = Result(
        "step: seconds of optimizer.step(), as a ratio to Adam(fused=True)",
        ["parameters", "optimizer", "ms", "ratio", "10 % to 90 %"],
    )
    for name, make in MODELS.items():
        if quick and name == "GPT-2 small":
            continue
        large = name == "GPT-2 small"
        fast = {k: v for k, v in OPTIMIZERS.items() if k not in SLOW}
        slow = {k: v for k, v in OPTIMIZERS.items() if k in (PEER, *SLOW)}
        found: dict[str, tuple[list[float], list[float]]] = {}
        for makers, rounds in ((fast, 10 if large else 40), (slow, 3 if large else 7)):
            calls = {k: maker(with_gradients(make())).step for k, maker in makers.items()}
            seconds = in_turn(calls, rounds=max(3, rounds // 4) if quick else rounds)
            for key, values in seconds.items():
                found.setdefault(key, (values, seconds[PEER]))
        for key, (values, peer) in found.items():
            ratio = ratios(values, peer)
            spread = f"{ratio.low:.2f} to {ratio.high:.2f}"
            result.rows.append([name, key, 1000 * times(values).median, ratio.median, spread])
            if not large and key.startswith("SBS"):
                limit = 10.0 if key in SLOW else 1.25
                result.goals.append(Goal(f"{name}, {key}, to fused Adam", ratio.median, limit))
    return result
