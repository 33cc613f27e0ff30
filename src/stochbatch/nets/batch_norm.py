"""Batch norms: where their scales start, and statistics for weights at which none were taken."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
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


def resample_batch_norm(network: nn.Module, batches: Iterable[Tensor]) -> None:
    """Estimate the running statistics of all batch norms anew, at the present weights.

    For optimizers such as Entropy-SGD, which take their gradients at other points than the one
    they return. Batch norms work as in training; every other module, dropout too, as in
    evaluation (``torch.optim.swa_utils.update_bn`` runs dropout as in training). Each batch counts
    the same. Momenta and modes are afterwards what they were. A compiled network runs uncompiled,
    as a cumulative average is read on the host.

    Args:
        network: without batch norms that track statistics nothing is done.
        batches: batches of images, on the network's device.

    Example:
        >>> import torch
        >>> from stochbatch.nets import resample_batch_norm
        >>> norm = torch.nn.BatchNorm2d(1).eval()
        >>> resample_batch_norm(norm, [torch.full((2, 1, 4, 4), 3.0), torch.zeros(2, 1, 4, 4)])
        >>> norm.running_mean, norm.training
        (tensor([1.5000]), False)
    """
    norms = [
        module
        for module in network.modules()
        if isinstance(module, _BatchNorm) and module.running_mean is not None
    ]
    if not norms:
        return
    training = [(module, module.training) for module in network.modules()]
    momenta = [(norm, norm.momentum) for norm in norms]
    network.eval()
    for norm in norms:
        norm.train()
        norm.momentum = None  # a cumulative average
        norm.reset_running_stats()
    try:
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            count = 0
            for count, images in enumerate(batches, 1):  # noqa: B007 (counted to the last)
                network(images)
            if not count:
                raise ValueError("batches must hold at least one batch, got none")
    finally:
        for norm, momentum in momenta:
            norm.momentum = momentum
        for module, was_training in training:
            module.training = was_training
