"""Batch norm over a batch that several processes have divided among them.

torch's own ``SyncBatchNorm`` works on GPUs alone. This one is written in operations that every
device has, and weights the parts of a batch by their sizes, so that it gives what one process
would that has the whole batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch._compile import _disable_dynamo

_OVER = (0, 2, 3)
"""All dimensions of a batch of images but the channels."""


class SyncBatchNorm2d(nn.BatchNorm2d):
    """Batch norm whose statistics in training are those of all processes' images together.

    All processes of the default group must call it, and its backward pass, equally often.
    Parameters, buffers and evaluation are those of ``torch.nn.BatchNorm2d``.
    """

    divided = True
    """Whether each process has a part of the batch. If every one has all of it, nothing is
    exchanged: each of them computes what one process would."""

    # A compiler cannot look into the exchange: it compiles what lies between. (The public
    # name of this decorator, torch.compiler.disable, loads the compiler.)
    @_disable_dynamo
    def forward(self, input: Tensor) -> Tensor:
        """Return the normalised batch, this process's part."""
        if not (self.training and self.divided):
            return super().forward(input)
        self._check_input_dim(input)
        output, mean, variance, count = _Normalise.apply(  # type: ignore[no-untyped-call]
            input, self.weight, self.bias, self.eps
        )
        if self.running_mean is not None:
            self._track(mean, variance * (count / (count - 1)))
        return output  # type: ignore[no-any-return]

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor) -> None:
        assert self.num_batches_tracked is not None
        assert self.running_mean is not None
        assert self.running_var is not None
        self.num_batches_tracked.add_(1)
        share = self.momentum
        if share is None:
            share = 1 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(variance.to(self.running_var.dtype), share)


def synchronise_batch_norm(network: nn.Module) -> list[SyncBatchNorm2d]:
    """Replace every batch norm within a network by one over all processes; return the new ones.

    They take over parameters and buffers: an optimizer made before goes on with them, and a
    ``state_dict`` is what it was.

    Example:
        >>> from stochbatch.nets import synchronise_batch_norm, vgg_tiny
        >>> network = vgg_tiny()
        >>> len(synchronise_batch_norm(network))
        3
    """
    made = []
    for parent in list(network.modules()):
        for name, norm in list(parent.named_children()):
            if type(norm) is nn.BatchNorm2d:
                setattr(parent, name, _replacement(norm))
                made.append(getattr(parent, name))
    return made


def _replacement(norm: nn.BatchNorm2d) -> SyncBatchNorm2d:
    if not norm.affine:
        raise ValueError("only batch norms with weights can be synchronised, got affine=False")
    new = SyncBatchNorm2d(
        norm.num_features, norm.eps, norm.momentum, track_running_stats=norm.track_running_stats
    )
    new.weight, new.bias = norm.weight, norm.bias
    for name, buffer in norm.named_buffers():
        setattr(new, name, buffer)
    return new.train(norm.training)


class _Normalise(torch.autograd.Function):
    """Normalise a part of a batch by mean and variance of all of it.

    With the whole batch's count N, mean m, and d = 1 / sqrt(variance + eps):

        y = w h + b,  h = (x - m) d
        dL/dx = w d (g - sum(g) / N - h sum(g h) / N),  g = dL/dy

    where the sums go over all processes.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Any:
        """Return y, and mean, biased variance and count of the whole batch."""
        mean, variance, count = _statistics(x)
        dtype = _computed_in(x)
        scale = torch.rsqrt(variance + eps).to(dtype)
        ctx.save_for_backward(x, weight, mean.to(dtype), scale, count.to(dtype))
        y = nn.functional.batch_norm(
            x, mean.to(weight.dtype), variance.to(weight.dtype), weight, bias, eps=eps
        )
        ctx.mark_non_differentiable(mean, variance, count)
        return y, mean, variance, count

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Return the gradients of x, and this process's part of those of w and b."""
        x, weight, mean, scale, count = ctx.saved_tensors
        g = grads[0].to(scale.dtype)
        h = (x.to(scale.dtype) - _by_channel(mean)) * _by_channel(scale)
        bias_grad, weight_grad = g.sum(_OVER), (g * h).sum(_OVER)
        sums = torch.stack([bias_grad, weight_grad])
        distributed.all_reduce(sums)
        of_g, of_gh = (_by_channel(part) for part in sums / count)
        dx = (g - of_g - h * of_gh) * _by_channel(weight * scale)
        return dx.to(x.dtype), weight_grad, bias_grad, None


def _statistics(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean, biased variance and count of all processes' values, by channel."""
    values = x.detach().to(_computed_in(x))
    mine_count = x.numel() // x.shape[1]
    if mine_count:
        variance, mean = torch.var_mean(values, _OVER, correction=0)
    else:  # it has no image of this batch; its mean is none, and must not be NaN
        variance = mean = values.new_zeros(x.shape[1])
    count = mean.new_full((1,), mine_count, dtype=torch.float64)
    # In double precision: the parts' means may lie close together.
    mine = torch.cat([mean.to(count.dtype), variance.to(count.dtype), count])
    parts = [torch.empty_like(mine) for _ in range(distributed.get_world_size())]
    distributed.all_gather(parts, mine)
    together = torch.stack(parts)
    channels = len(mean)
    means, variances = together[:, :channels], together[:, channels:-1]
    counts = together[:, -1:]
    total = counts.sum()
    if mine_count <= 1 and total <= 1:  # elsewhere no process waits for the device
        raise ValueError(
            f"batch norm needs more than one value a channel in training, got {int(total)} in "
            "all processes together"
        )
    mean = (counts * means).sum(0) / total
    variance = (counts * (variances + (means - mean) ** 2)).sum(0) / total
    return mean, variance, total


def _computed_in(x: Tensor) -> torch.dtype:
    """Return in which precision a batch is normalised: never less than float32."""
    return torch.promote_types(x.dtype, torch.float32)


def _by_channel(values: Tensor) -> Tensor:
    return values[:, None, None]
