"""The update probability: Equations 16 to 21 of the article.

A *layer* is one parameter tensor; its kind says which layers it is compared with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from stochbatch.checks import check_choice, check_real
from stochbatch.optim.kinds import check_kind, kind_by_shape
from stochbatch.optim.pieces import pieces

CrossLayer = Literal["total", "mean", "weighted"]
CROSS_LAYER: tuple[str, ...] = get_args(CrossLayer)
Compare = Literal["kind", "type", "all"]
COMPARE: tuple[str, ...] = get_args(Compare)
_TYPES = {"norm_weight": "norm", "norm_bias": "norm"}
"""Kinds that the article counts as one type of parameter; any other kind is its own type."""

# The powers of f in 2**f for |f| <= 1/2, the first being 1 so that p(0) is exactly 1/2.
# float32: least maximal relative error at degree 5 (9e-8, about one unit in the last
# place). float64: the Taylor series, whose next term is below 1e-17.
POWER_OF_TWO: dict[torch.dtype, tuple[float, ...]] = {
    torch.float32: (
        1.0,
        0.6931470036506653,
        0.24022242426872253,
        0.05550733581185341,
        0.009671512991189957,
        0.001326472731307149,
    ),
    torch.float64: tuple(math.log(2) ** power / math.factorial(power) for power in range(14)),
}
_FLOAT_LAYOUT: dict[torch.dtype, tuple[torch.dtype, int, int]] = {
    torch.float32: (torch.int32, 127, 23),
    torch.float64: (torch.int64, 1023, 52),
}
LARGEST_EXPONENT = 126.0  # of a normal float32; below 2**-24 only the coin 0 moves a weight
_ZERO_SPREAD = {torch.float32: 1e-6, torch.float64: 1e-12}
_BITS_PER_NAT = 1 / math.log(2)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which tensors of ``dtype`` are averaged and compared."""
    return torch.float64 if dtype in (torch.float64, torch.complex128) else torch.float32


def accumulation_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype in which statistics are summed: double where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


class Moments(NamedTuple):
    """Mean and population standard deviation of |g|: one entry per layer."""

    mean: Tensor
    std: Tensor


class Layers(NamedTuple):
    """What is known of the layers before their gradients are: one entry per layer."""

    size: Tensor
    """Number of scalars."""
    peers: Tensor
    """[classes, layers]: which layers are compared with each other; each is in one class."""
    own: Tensor
    """The class of each layer."""
    tolerance: Tensor
    """Standard deviation relative to the mean below which there is no spread."""
    alpha: Tensor
    lambd: Tensor
    readings: tuple[str, ...]
    """Each layer's ``cross_layer``."""


class Scores(NamedTuple):
    """What the probability of a layer's scalars is made from: one entry per layer.

    In bits, not nats, so that the exponential of Eq. 16 becomes a power of two.
    """

    centre: Tensor
    """mu of Eq. 17."""
    slope: Tensor
    """alpha / sigma of Eq. 17 and 18; 0 where the layer has no spread."""
    shift: Tensor
    """gamma = lambda times the layer's score (Eq. 20)."""

    def in_dtype(self, dtype: torch.dtype) -> Scores:
        """Return the scores in ``dtype``, with slopes that stay finite."""
        largest = torch.finfo(dtype).max
        slope = self.slope.clamp(-largest, largest)
        return Scores(self.centre.to(dtype), slope.to(dtype), self.shift.to(dtype))

    def of(self, layer: int) -> Scores:
        """Return those of one layer."""
        return Scores(*(vector[layer] for vector in self))

    def probability(self, grad: Tensor) -> Tensor:
        """Return the probabilities of one layer's scalars, given its scores, in float32 or 64."""
        dtype = compute_dtype(grad.dtype)
        own = (vector.to(grad.device) for vector in self.in_dtype(dtype))
        return probability(grad.to(dtype), *own)


def sums_of(grad: Tensor) -> Tensor:
    """Return sum and sum of squared deviations of |g|, piece by piece, then combined.

    The sums are in double precision whatever the gradient's dtype, so that neither the
    number of elements nor the order of summation shows in a float32 mean.
    """
    dtype = accumulation_dtype(grad.device)
    if not grad.numel():  # an empty part of a tensor that is not empty
        return torch.zeros(2, dtype=dtype, device=grad.device)
    parts, counts = [], []
    for piece in pieces([grad]):
        size = piece.tensors[0].abs().to(dtype)
        total = size.sum()
        count = size.numel()
        deviation = size.sub_(total / count).reshape(-1)
        parts.append(torch.stack((total, deviation.dot(deviation))))
        counts.append(count)
    if len(parts) == 1:
        return parts[0]
    totals, squares = torch.stack(parts, dim=1)
    total = totals.sum()
    # Chan, Golub, LeVeque 1979: deviations within the pieces and between their means.
    full = totals[:-1] / counts[0] - total / sum(counts)
    last = totals[-1] / counts[-1] - total / sum(counts)
    between = counts[0] * full.dot(full) + counts[-1] * last * last
    return torch.stack((total, squares.sum() + between))


def measured(sums: Tensor, sizes: Tensor) -> Moments:
    """Return the moments of |g| of layers, from what :func:`sums_of` returned, as columns."""
    mean, variance = sums / sizes
    return Moments(mean, variance.sqrt())


def compared(kinds: Sequence[str], compare: str) -> list[int]:
    """Return for each layer the number of its class: layers of one class are compared."""
    labels = {
        "kind": list(kinds),
        "type": [_TYPES.get(kind, kind) for kind in kinds],
        "all": [""] * len(kinds),
    }[compare]
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    return [numbers[label] for label in labels]


def describe_layers(
    grads: Sequence[Tensor],
    sizes: Sequence[int],
    classes: Sequence[int],
    alphas: Sequence[float],
    lambds: Sequence[float],
    readings: Sequence[str],
) -> Layers:
    """Return the facts about these layers as tensors on the first gradient's device."""
    home = grads[0].device
    dtype = accumulation_dtype(home)

    def vector(numbers: Sequence[float]) -> Tensor:
        return torch.tensor(numbers, dtype=dtype, device=home)

    own = torch.tensor(classes, device=home)
    return Layers(
        size=vector(sizes),
        peers=torch.arange(max(classes) + 1, device=home)[:, None] == own,
        own=own,
        tolerance=vector([_ZERO_SPREAD[compute_dtype(grad.dtype)] for grad in grads]),
        alpha=vector(alphas),
        lambd=vector(lambds),
        readings=tuple(readings),
    )


def _by_spread(value: Tensor, moments: Moments, tolerance: Tensor) -> Tensor:
    """Return value / std, and 0 where the spread is nothing but rounding."""
    flat = moments.std <= tolerance * moments.mean
    return torch.where(flat, 0.0, value / torch.where(flat, 1.0, moments.std))


def _cross_layer_scores(moments: Moments, layers: Layers, reading: str) -> Tensor:
    """Return the standardised score of each layer among its peers (Eq. 19).

    A layer whose gradient is zero everywhere takes no part in the comparison: its score is 0.
    """
    score = moments.mean * layers.size if reading == "total" else moments.mean
    weight = layers.size if reading == "weighted" else torch.ones_like(layers.size)
    idle = moments.mean == 0
    peers = layers.peers & ~idle

    def mean_of(values: Tensor) -> Tensor:
        """Return for each layer the mean over its peers."""
        # Chosen by where, not by a factor 0: a NaN stays within its class.
        total = torch.where(peers, weight * values, 0.0).sum(dim=1)
        return (total / torch.where(peers, weight, 0.0).sum(dim=1))[layers.own]

    mean = mean_of(score)
    std = mean_of((score - mean).square()).sqrt()
    result = _by_spread(score - mean, Moments(mean, std), layers.tolerance)
    return torch.where(idle, 0.0, result)


def layer_scores(moments: Moments, layers: Layers) -> Scores:
    """Return what Eq. 21 needs of each layer."""
    by_reading = {
        reading: _cross_layer_scores(moments, layers, reading)
        for reading in dict.fromkeys(layers.readings)
    }
    score = next(iter(by_reading.values()))
    if len(by_reading) > 1:
        chosen = [by_reading[reading][layer] for layer, reading in enumerate(layers.readings)]
        score = torch.stack(chosen)
    slope = _by_spread(layers.alpha, moments, layers.tolerance)
    return Scores(moments.mean, slope * _BITS_PER_NAT, layers.lambd * score * _BITS_PER_NAT)


def _sigmoid_of_bits(bits: Tensor) -> Tensor:
    """Return 1 / (1 + 2**-bits) from correctly rounded operations alone; use up ``bits``.

    A library's exponential differs in the last place between devices, vector widths and
    even the ends of one tensor; a coin that falls there would then differ too.
    """
    integer, bias, mantissa = _FLOAT_LAYOUT[bits.dtype]
    bits = bits.neg_().clamp_(-LARGEST_EXPONENT, LARGEST_EXPONENT)
    whole = bits.round()
    fraction = bits.sub_(whole)
    *lower, highest = POWER_OF_TWO[bits.dtype]
    power = fraction * highest
    for coefficient in reversed(lower[1:]):
        power = power.add_(coefficient).mul_(fraction)
    power = power.add_(lower[0])
    scale = whole.to(integer).add_(bias).bitwise_left_shift_(mantissa).view(bits.dtype)
    return power.mul_(scale).add_(1.0).reciprocal_()


def probability(grad: Tensor, centre: Tensor, slope: Tensor, shift: Tensor) -> Tensor:
    """Return the update probability of each scalar of one layer (Eq. 16, 17, 21)."""
    return _sigmoid_of_bits(grad.abs().sub_(centre).mul_(slope).add_(shift))


def update_probability(
    grads: Sequence[Tensor],
    kinds: Sequence[str] | None = None,
    alpha: float = 0.1,
    lambd: float = -4.0,
    cross_layer: CrossLayer = "total",
    compare: Compare = "kind",
) -> list[Tensor]:
    r"""Return the probability with which each scalar moves in a step.

    With mean ``mu`` and population standard deviation ``sigma`` of a layer's \|g\|, and
    ``t`` the standardised score of that layer among the layers that it is compared with,

    .. math:: p_j = 1 / (1 + \exp(-\alpha (|g_j| - \mu) / \sigma - \lambda t)).

    Args:
        grads: one gradient per layer; all layers that the step sees, because they are
            compared with each other. One that is zero everywhere is left out of that.
        kinds: the kind of each layer; by default inferred from the number of dimensions.
        alpha: weight of a scalar's size within its layer.
        lambd: weight of the layer's score among the layers of its kind.
        cross_layer: the layer's score: ``"total"`` is the sum of \|g\|, ``"mean"`` its
            mean, ``"weighted"`` its mean, standardised with layers weighted by size.
        compare: the layers that are compared: those of one ``"kind"``, of one ``"type"``
            (scale and shift of norms together), or ``"all"``.

    Returns:
        One tensor per gradient, of its shape, a complex one's as ``torch.view_as_real`` has it;
        float64 for float64 and complex128 gradients, else float32.

    Example:
        >>> import torch, stochbatch
        >>> g = torch.tensor([0.0, 1.0, 2.0])
        >>> stochbatch.update_probability([g], ["linear"], alpha=1.0)
        [tensor([0.2271, 0.5000, 0.7729])]

    Reference: Nakamura, Soatto, Hong 2020, Equations 16 to 21.
    """
    if kinds is None:
        kinds = [kind_by_shape(grad) for grad in grads]
    grads = [
        torch.view_as_real(grad.resolve_conj()) if grad.is_complex() else grad for grad in grads
    ]
    if len(kinds) != len(grads):
        raise ValueError(f"grads and kinds differ in length: {len(grads)} and {len(kinds)}")
    for kind in kinds:
        check_kind(kind)
    check_choice("cross_layer", cross_layer, CROSS_LAYER)
    check_choice("compare", compare, COMPARE)
    filled = [layer for layer, grad in enumerate(grads) if grad.numel()]
    result = [torch.empty_like(grad, dtype=compute_dtype(grad.dtype)) for grad in grads]
    if not filled:
        return result
    chosen = [grads[layer] for layer in filled]
    classes = compared([kinds[layer] for layer in filled], compare)
    scores = scores_of(chosen, classes, alpha, lambd, cross_layer)
    for position, layer in enumerate(filled):
        result[layer] = scores.of(position).probability(grads[layer])
    return result


def scores_of(
    grads: Sequence[Tensor],
    classes: Sequence[int],
    alpha: float,
    lambd: float,
    cross_layer: str,
    sizes: Sequence[int] | None = None,
    total: Callable[[Tensor], Tensor] = lambda sums: sums,
) -> Scores:
    """Return what the probabilities of layers with the same options are made from.

    Where shards are here, ``sizes`` are those of the whole layers, and ``total`` makes sums over
    whole layers of those over what is here.
    """
    count = len(grads)
    sizes = [grad.numel() for grad in grads] if sizes is None else sizes
    options = [alpha] * count, [lambd] * count, [cross_layer] * count
    layers = describe_layers(grads, sizes, classes, *options)
    sums = torch.stack([sums_of(grad).to(layers.size) for grad in grads], dim=1)
    return layer_scores(measured(total(sums), layers.size), layers)


def check_scheme(options: Mapping[str, Any]) -> None:
    """Raise unless the options that make an update probability are allowed."""
    check_real("alpha", options["alpha"])
    check_real("lambd", options["lambd"])
    if options["probability"] is not None:
        check_real("probability", options["probability"])
        if not 0 < options["probability"] <= 1:
            raise ValueError(f"probability must be None or in (0, 1], got {options['probability']}")
    check_choice("cross_layer", options["cross_layer"], CROSS_LAYER)
    check_choice("compare", options.get("compare", "kind"), COMPARE)
    if "kind" in options:
        check_kind(options["kind"])
