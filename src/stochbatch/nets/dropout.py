"""Options of all networks, and dropout: of single elements, or of whole residual branches.

A dropout shares the place of the layer it follows, or comes last in its branch. It has
neither parameters nor buffers and draws nothing when it is made. So a network has the same
parameters, in the same order and under the same names, and after the same seed the same
initial weights, with any dropout and without.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from stochbatch.checks import check_count, check_positive, check_real

DropoutName = Literal["head", "block", "all", "adaptive"]

DROPOUTS: tuple[DropoutName, ...] = ("head", "block", "all", "adaptive")
"""Names of the places of dropout; ``None`` is a network without."""


def check_options(
    classes: object, channels: object, width: float, dropout: object, dropout_rate: float
) -> None:
    """Raise ``TypeError`` or ``ValueError`` for the first option that is not allowed."""
    check_count("classes", classes)
    check_count("channels", channels)
    check_positive("width", width)
    if dropout is not None and dropout not in DROPOUTS:
        raise ValueError(f"dropout must be None or one of {DROPOUTS}, got {dropout!r}")
    check_real("dropout_rate", dropout_rate)
    if not 0 <= dropout_rate < 1:
        raise ValueError(f"dropout_rate must be in [0, 1), got {dropout_rate}")


def then_dropout(layer: nn.Module, rate: float) -> nn.Module:
    """Return ``layer`` followed by element-wise dropout, or by nothing if the rate is 0."""
    return nn.Sequential(layer, nn.Dropout(rate)) if rate else layer


def rising_rates(count: int, last: float) -> list[float]:
    """Return ``count`` rates that rise linearly to ``last``: (l / count) last, l from 1."""
    return [last * number / count for number in range(1, count + 1)]


class StochasticDepth(nn.Module):
    """The end of a residual branch that is closed for whole batches, at random.

    With coin c, which is 1 with probability p and otherwise 0, drawn anew for each batch,

        training: c F(x),  evaluation: p F(x)

    where F(x) is what the branch gives. The branch is computed whether its coin is 0 or 1:
    nothing waits for the coin, the graph is the same for each batch, and the parameters of a
    closed branch have gradients of zero, not None. Therefore the method saves no time here,
    and the batch norms of a closed branch go on taking their running statistics, on the same
    kind of input as when it is open. (Where a closed branch is skipped, they do not.)

    Args:
        survival: probability p that the branch is open.

    Example:
        >>> import torch
        >>> from stochbatch.nets.dropout import StochasticDepth
        >>> StochasticDepth(survival=0.75).eval()(torch.ones(2))
        tensor([0.7500, 0.7500])

    Reference:
        G. Huang, Y. Sun, Z. Liu, D. Sedra, K. Weinberger, "Deep networks with stochastic
        depth", ECCV 2016.
    """

    def __init__(self, survival: float) -> None:
        super().__init__()
        self.survival = survival

    def forward(self, branch: Tensor) -> Tensor:
        """Return the branch's features: all, none, or their expectation."""
        if not self.training:
            return branch * self.survival
        # Single precision even for features of less: a bfloat16 uniform has so few values
        # that the coin would not have its probability.
        is_open = branch.new_empty((), dtype=torch.float32).uniform_() < self.survival
        # Not a product: 0 * inf is NaN, and what is not used should not spoil the rest.
        return torch.where(is_open, branch, 0.0)

    def extra_repr(self) -> str:
        """Return the survival probability, for the module's printed form."""
        return f"survival={self.survival}"
