"""The step of SBS, three ways: plain torch, C++ on the CPU, Triton on a GPU.

A kernel measures gradients and moves layers. Which one moves a layer is decided here and nowhere
else, for each layer alone, so that one odd parameter does not slow down the others.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from stochbatch.optim.kernels import eager, gpu, native
from stochbatch.optim.kernels.eager import Verdict
from stochbatch.optim.plan import Plan
from stochbatch.optim.probability import Scores, layer_scores, measured


class Kernel(Protocol):
    """What moves some layers of a plan: those at ``places``."""

    places: list[int]

    def measure(self, plan: Plan) -> Tensor:
        r"""Return [2, places]: sum of \|g\| and of its squared deviations of what is here."""

    def move(self, plan: Plan, scores: Scores, verdict: Verdict) -> Tensor:
        """Move the layers, if the step counts; return [places, 2]: probabilities and batches."""


class Work(NamedTuple):
    """Which kernel moves which layer of a plan."""

    kernels: list[Kernel]
    order: Tensor | None
    """Puts layers that the kernels give one after the other into the plan's order."""
    waits: bool
    """Whether the C++ kernel is being built: then another one moves its layers for now."""

    def joined(self, parts: list[Tensor], like: Tensor) -> Tensor:
        """Return what the kernels say of their layers, [layers, 2], in the plan's order."""
        if self.order is None:
            return parts[0].to(like)
        return torch.cat([part.to(like) for part in parts])[self.order]


def _arrange(plan: Plan) -> Work:
    fused = plan.options["fused"]
    kernels: list[Kernel] = []
    waits = False
    # A dispatch mode, such as a tracer, sees only what goes through torch.
    if fused is not False and not torch._C._len_torch_dispatch_stack():
        on_cpu, waits = native.rows_of(plan, fused)
        kernels = [*on_cpu, *gpu.rows_of(plan, fused)]
    taken = {place for kernel in kernels for place in kernel.places}
    rest = [place for place in range(len(plan.layers)) if place not in taken]
    if rest:
        if fused and not torch._C._len_torch_dispatch_stack():
            raise RuntimeError(
                "fused=True needs plain, dense parameters, contiguous or channels-last, in "
                "float32, bfloat16 or float16, on the CPU also in float64: use fused=None"
            )
        kernels.append(eager.Rows(rest))
    places = [place for kernel in kernels for place in kernel.places]
    order = torch.tensor(places, device=plan.facts.size.device).argsort()
    return Work(kernels, order if len(kernels) > 1 else None, waits)


def measure(plan: Plan) -> Tensor | None:
    r"""Return [2, layers]: sum of \|g\| and of its squared deviations from its mean.

    None if one call of the C++ kernel will measure and move all layers.
    """
    if plan.work is None or (plan.work.waits and native.ready()):
        plan.work = _arrange(plan)
    work: Work = plan.work
    if isinstance(work.kernels[0], native.Rows) and work.order is None and not plan.seats:
        return None
    parts = [kernel.measure(plan).T for kernel in work.kernels]
    return work.joined(parts, plan.facts.size).T


def move(plan: Plan, sums: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Decide whether the step counts and, if so, move all layers and count it.

    ``sums`` are what :func:`measure` returned, of the whole layers. Return what
    :meth:`Plan.record` takes.
    """
    work = plan.work
    assert work is not None, "measured before"
    if sums is None:
        work.kernels[0].step(plan)
        return None, None
    moments = measured(sums, plan.facts.size)
    verdict, scores = eager.decide(plan, moments), layer_scores(moments, plan.facts)
    parts = [kernel.move(plan, scores, verdict) for kernel in work.kernels]
    seen = work.joined(parts, sums.to(torch.float32))
    plan.step.add_(verdict.applies.to(plan.step.device))
    plan.skipped.add_(verdict.nonfinite.to(plan.step.device))
    return seen, verdict.applies
