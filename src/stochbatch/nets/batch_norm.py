"""Batch norms: where their scales start, and statistics for weights at which none were taken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

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

    An optimizer that takes its gradients at other points than the one it returns, as
    Entropy-SGD does, leaves running means and variances that do not belong to the returned
    weights; so does training with dropout, whose features have another variance than those of
    an evaluation. Call this before evaluating.

    Batch norms work as in training; every other module, dropout too, as in evaluation, since
    the statistics are for evaluations. Each batch counts the same, a smaller one as well.
    Weights, momenta and the training mode of every single module are afterwards what they
    were; no random numbers are drawn. If anything fails, the statistics are what they were,
    too. A compiled network runs uncompiled here, as a cumulative average is read on the host.

    ``torch.optim.swa_utils.update_bn`` gives the same statistics for a network without
    dropout. It runs dropout as in training, gives all modules the mode of the network, takes
    an empty loader for an order to reset, and leaves modes and momenta changed on an error.

    Args:
        network: a network whose batch norms track running statistics; without any, nothing
            is done.
        batches: batches of images, each of at least two values a channel, on the network's
            device. ``(images for images, labels in loader)`` makes them from a loader.

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
    with torch.no_grad(), torch.compiler.set_stance("force_eager"), _sampling(network, norms):
        empty = True
        for images in batches:
            if not isinstance(images, Tensor):
                raise TypeError(f"batches must be tensors of images, got {type(images).__name__}")
            network(images)
            empty = False
        if empty:
            raise ValueError("batches must hold at least one batch, got none")


@contextmanager
def _sampling(network: nn.Module, norms: list[_BatchNorm]) -> Iterator[None]:
    """Let batch norms, and them alone, work as in training, averaging from nothing."""
    training = [(module, module.training) for module in network.modules()]
    momenta = [(norm, norm.momentum) for norm in norms]
    buffers = [(buffer, buffer.clone()) for norm in norms for buffer in norm.buffers()]
    try:
        network.eval()
        for norm in norms:
            norm.train()
            norm.momentum = None
            norm.reset_running_stats()
        yield
    except BaseException:  # an interrupted evaluation must not leave half a statistic either
        for buffer, saved in buffers:
            buffer.copy_(saved)
        raise
    finally:
        for norm, momentum in momenta:
            norm.momentum = momentum
        for module, was_training in training:
            module.training = was_training
