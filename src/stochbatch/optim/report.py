"""What each layer did: the table behind ``SBS.layer_report()``, and a warning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
    """Return the text of the warning.

    Args:
        slow: what to call each layer that hardly moves.
        count: number of all layers.
        lambd: of the first of them.
    """
    named = ", ".join(slow[:5]) + (f" and {len(slow) - 5} more" if len(slow) > 5 else "")
    return (
        f"Layers that hardly move ({len(slow)} of {count}, with a mean update probability below "
        f"{SLOW_PROBABILITY}): {named}. This comes from lambd={lambd:g}: layers are compared with "
        "the others of their kind, and of only two, one always stands nearly still. To let them "
        "move, choose a lambd nearer to 0 (such as -1) or probability=0.5, for all layers or in a "
        "parameter group of their own. stochbatch.param_groups(model) tells kinds by module, not "
        "by shape; layer_report() shows what every layer does."
    )
