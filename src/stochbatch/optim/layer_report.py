"""What each layer did: the table behind ``SBS.layer_report()``, and a warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stochbatch.optim.kernels.fallback import level_of_caller
from stochbatch.optim.layers import TALLY
from stochbatch.optim.optimizer import CheckedOptimizer, Member, real_view
from stochbatch.optim.shards import Shards


@dataclass(frozen=True)
class LayerRow:
    """One layer's averages over its scalars and the steps since the last report."""

    name: str
    kind: str
    size: int
    probability: float
    """Mean update probability; NaN if no step counted."""
    batches: float
    """Mean number of universal batches in the average gradient; NaN if no step counted."""


class LayerReport(tuple[LayerRow, ...]):
    """The rows of all layers, in the order of the parameters; prints as a table."""

    __slots__ = ()

    def __str__(self) -> str:
        head = ("layer", "kind", "size", "probability", "batches")
        cells = [
            (row.name, row.kind, f"{row.size:,}", f"{row.probability:.4g}", f"{row.batches:.2f}")
            for row in self
        ]
        widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
        lines = []
        for name, kind, *numbers in (head, *cells):
            left = [name.ljust(widths[0]), kind.ljust(widths[1])]
            right = [cell.rjust(width) for cell, width in zip(numbers, widths[2:], strict=True)]
            lines.append("  ".join(left + right))
        return "\n".join(lines)


class SlowLayersWarning(UserWarning):
    """Some layers hardly move: their mean update probability is below 0.02."""


SLOW_PROBABILITY = 0.02
JUDGED_STEPS, FEWEST_STEPS = 100, 20
"""Layers are judged after so many steps, or when an epoch with the fewest has ended."""


def slow_layers_text(slow: Sequence[str], count: int, lambd: float) -> str:
    """Return the text of the warning about ``slow`` layers, of ``count`` in all."""
    named = ", ".join(slow[:5]) + (f" and {len(slow) - 5} more" if len(slow) > 5 else "")
    return (
        f"Layers that hardly move ({len(slow)} of {count}, with a mean update probability below "
        f"{SLOW_PROBABILITY}): {named}. This comes from lambd={lambd:g}: layers are compared with "
        "the others of their kind, and of only two, one always stands nearly still. To let them "
        "move, choose a lambd nearer to 0 (such as -1) or probability=0.5, for all layers or in a "
        "parameter group of their own. stochbatch.param_groups(model) tells kinds by module, not "
        "by shape; layer_report() shows what every layer does."
    )


class Watch:
    """What an optimizer has seen of its layers: for its reports, and to warn once of slow ones."""

    def __init__(self) -> None:
        self.say: Callable[[str], None] | None = None
        """What to call with the text of a `SlowLayersWarning` instead of warning."""
        self.steps = 0
        """Taken here, whether they counted or not."""
        self._judged = False
        # Steps, and sums of probabilities, of layers up to the last report.
        self._reported: dict[int, tuple[float, float]] = {}

    def judge(
        self, optimizer: CheckedOptimizer, shards: Shards, only_if_free: bool = False
    ) -> None:
        """Warn once, when there are enough steps to judge by, if layers hardly move.

        With ``only_if_free``, no tensor on another device than the CPU is read.
        """
        tallies = _tallies(optimizer)
        if self._judged or shards:  # of a shard the tally does not tell
            return
        if any(t.is_meta or (only_if_free and not t.is_cpu) for t in tallies.values()):
            return
        self._judge(optimizer, {number: tally.tolist() for number, tally in tallies.items()})

    def _judge(self, optimizer: CheckedOptimizer, tallies: dict[int, list[float]]) -> None:
        slow: list[Member] = []
        for member in optimizer._members():
            steps, chance, _ = tallies.get(member.number, (0.0, 0.0, 0.0))
            steps_before, sum_before = self._reported.get(member.number, (0.0, 0.0))
            total = steps + steps_before
            if total >= FEWEST_STEPS:
                self._judged = True
                chance = (chance * steps + sum_before) / total
                if chance < SLOW_PROBABILITY and member.group["probability"] is None:
                    slow.append(member)
        if not slow:
            return
        text = slow_layers_text([m.called for m in slow], len(tallies), slow[0].group["lambd"])
        if self.say is not None:
            self.say(text)
        else:
            warnings.warn(text, SlowLayersWarning, stacklevel=level_of_caller())

    def report(self, optimizer: CheckedOptimizer, shards: Shards) -> LayerReport:
        """Return what each layer did since the last report."""
        held = _tallies(optimizer)
        tallies = {number: tally.tolist() for number, tally in held.items()}
        if shards:
            tallies |= _of_all_ranks(tallies, held, shards)
        if not self._judged:
            self._judge(optimizer, tallies)
        rows = []
        for member in optimizer._members():
            steps, chance, batches = tallies.get(member.number, (0.0, 0.0, 0.0))
            if steps:
                before = self._reported.get(member.number, (0.0, 0.0))
                self._reported[member.number] = before[0] + steps, before[1] + steps * chance
            else:
                chance = batches = float("nan")
            size = real_view(member.tensor).numel()
            rows.append(LayerRow(member.called, member.kind, size, chance, batches))
        for tally in held.values():
            tally.zero_()
        return LayerReport(rows)


def _tallies(optimizer: CheckedOptimizer) -> dict[int, Tensor]:
    """Return the running means of the layers that have any, by the number of the parameter."""
    return {
        member.number: optimizer.state[member.tensor][TALLY]
        for member in optimizer._members()
        if TALLY in optimizer.state.get(member.tensor, {})
    }


def _of_all_ranks(
    tallies: dict[int, list[float]], held: dict[int, Tensor], shards: Shards
) -> dict[int, list[float]]:
    """Return the tallies of sharded layers: each rank's has its share of the means."""
    numbers = list(shards.windows)
    own = [tallies.get(number, [0.0, 0.0, 0.0]) for number in numbers]
    device = next(iter(held.values())).device if held else torch.device("cpu")
    means = torch.tensor(own, dtype=torch.float32, device=device)
    whole = shards.sum_over_ranks(means.clone()).tolist()
    found = zip(numbers, own, whole, strict=True)
    return {n: [mine[0], *total[1:]] for n, mine, total in found if n in tallies}
