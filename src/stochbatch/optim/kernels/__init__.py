"""The step of SBS, three ways: plain torch, ``torch.compile``, C++.

A kernel measures gradients and moves layers. Which one moves a layer is decided here and nowhere
else, for each layer alone, so that one odd parameter does not slow down the others.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from stochbatch.optim.kernels import compiled, eager, native
from stochbatch.optim.plan import Plan
from stochbatch.optim.probability import layer_scores, measured


class Work(NamedTuple):
    """Which kernel moves which layer of a plan."""

    native: native.Rows | None
    torch: eager.Division | None
    waits: bool
    """Whether the C++ kernel is being built: then another one moves its layers for now."""


def _arrange(plan: Plan) -> Work:
    fused = plan.options["fused"]
    places = range(len(plan.layers))
    pairs = list(zip(plan.layers, plan.grads, strict=True))
    # A dispatch mode, such as a tracer, sees only what goes through torch.
    fits: list[int] = []
    if fused is not False and plan.step.is_cpu and not torch._C._len_torch_dispatch_stack():
        fits = [place for place in places if native.fits(*pairs[place])]
    waits = bool(fits) and not fused and not native.ready()
    if waits or (fits and not native.available(fused)):
        fits = []
    chosen = set(fits)
    rest = [place for place in places if place not in chosen]
    compiles = compiled.worthwhile(plan, rest)
    if fused and rest and not compiles and not torch._C._len_torch_dispatch_stack():
        raise RuntimeError(
            "fused=True needs plain, dense parameters on the CPU, contiguous or channels-last, in "
            "float32, float64, bfloat16 or float16, or parameters on a GPU: use fused=None"
        )
    return Work(
        native.Rows(plan, fits) if fits else None,
        eager.divide(plan, rest, compiles) if rest else None,
        waits,
    )


def measure(plan: Plan) -> Tensor | None:
    r"""Return [2, layers]: sum of \|g\| and of its squared deviations from its mean.

    None if one call of the C++ kernel will measure and move all layers.
    """
    if plan.work is None or (plan.work.waits and native.ready()):
        plan.work = _arrange(plan)
    rows, division = plan.work.native, plan.work.torch
    if rows is not None and division is None and not plan.seats:
        return None
    sums = None if rows is None else rows.measure(plan)
    return sums if division is None else eager.measure(plan, division, sums)


def move(plan: Plan, sums: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Decide whether the step counts and, if so, move all layers and count it.

    ``sums`` are what :func:`measure` returned, of the whole layers. Return what
    :meth:`Plan.record` takes.
    """
    work = plan.work
    assert work is not None, "measured before"
    if sums is None:
        assert work.native is not None, "only its layers come without sums"
        work.native.step(plan)
        return None, None
    if work.torch is not None and work.torch.compiles:
        # raises if measuring has shown that no compiler works
        compiled.worthwhile(plan, work.torch.places)
    seen = torch.zeros(len(plan.layers), 2, dtype=torch.float32, device=sums.device)
    moments = measured(sums, plan.facts.size)
    verdict, scores = eager.decide(plan, moments), layer_scores(moments, plan.facts)
    if work.torch is not None:
        eager.move(plan, work.torch, scores, verdict, seen)
    if work.native is not None and verdict.applies:  # its layers are on the CPU: nothing waits
        work.native.move(plan, scores, seen)
    plan.step.add_(verdict.applies.to(plan.step.device))
    plan.skipped.add_(verdict.nonfinite.to(plan.step.device))
    return seen, verdict.applies
