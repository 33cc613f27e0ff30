"""Where the scales of batch norms start."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def uniform_norm_scales(network: nn.Module) -> None:
    """Draw the scales of all batch norms from [0, 1), as torch did up to version 1.1.

    Since version 1.2 they start at 1. The smaller start keeps the first steps at a large rate
    stable; see ``docs/evidence.md``.

    Example:
        >>> import torch
        >>> from stochbatch.nets import uniform_norm_scales
        >>> norm = torch.nn.BatchNorm2d(1000)
        >>> uniform_norm_scales(norm)
        >>> bool(0.4 < norm.weight.mean() < 0.6)
        True
    """
    for module in network.modules():
        if isinstance(module, _BatchNorm) and module.affine:
            nn.init.uniform_(module.weight)
