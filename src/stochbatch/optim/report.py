"""What each layer did: the table behind ``SBS.layer_report()``."""

from __future__ import annotations

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
