"""Kinds of parameters: which layers the global scheme compares with each other.

The article compares layers of one type only (convolution, fully connected, bias, batch
normalisation), "since different types of parameters tend to have different ranges of
gradient norms". Here a *kind* is one of ``KINDS``.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import UninitializedParameter

from stochbatch.checks import shown

KINDS = ("conv", "linear", "bias", "norm_weight", "norm_bias", "embedding", "other")

_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
_NORM_BIAS_NAMES = ("bias", "beta", "shift")
_PARAMETRIZATIONS = "parametrizations"


def check_kind(kind: object) -> None:
    """Raise unless ``kind`` is one of ``KINDS``."""
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"kind must be one of {KINDS}, got {shown(kind)}")


def kind_by_shape(tensor: Tensor) -> str:
    """Return the kind of a parameter of which nothing is known but its dimensions.

    Three and more: ``conv``. Two: ``linear``. One: ``bias``. None: ``other``.
    """
    return ("other", "bias", "linear", "conv")[min(tensor.dim(), 3)]


def kind_in_module(module: nn.Module, name: str, parameter: Tensor) -> str:
    """Return the kind of ``parameter``, held by ``module`` under the attribute ``name``."""
    if _is_norm(module, parameter):
        return "norm_bias" if name in _NORM_BIAS_NAMES else "norm_weight"
    if name.startswith("bias") or name.endswith("_bias"):
        return "bias"
    if isinstance(module, _ConvNd):
        return "conv"
    if isinstance(module, (nn.Linear, nn.Bilinear, nn.MultiheadAttention)):
        return "linear"
    return "embedding" if isinstance(module, _EMBEDDINGS) else "other"


def _is_norm(module: nn.Module, parameter: Tensor) -> bool:
    # Normalisations from other libraries are known by their name and their vectors.
    named_so = type(module).__name__.lower().rstrip("123d_").endswith("norm")
    return isinstance(module, _NORMS) or (named_so and parameter.dim() <= 1)


def _holder(model: nn.Module, path: str) -> tuple[nn.Module, str]:
    """Return the module that uses the parameter at ``path`` and the name it has there."""
    parts = path.split(".")
    if _PARAMETRIZATIONS in parts:
        # "conv.parametrizations.weight.original0" is what conv knows as "weight".
        parts = parts[: parts.index(_PARAMETRIZATIONS) + 2]
        parts.remove(_PARAMETRIZATIONS)
    return model.get_submodule(".".join(parts[:-1])), parts[-1]


def param_groups(model: nn.Module, **overrides_by_kind: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one parameter group a kind, for :class:`stochbatch.SBS` or any optimizer.

    The kind comes from the module that holds a parameter: ``conv`` (convolutions of any
    dimension, transposed too), ``linear`` (``Linear``, ``Bilinear``, the projections of
    ``MultiheadAttention``), ``norm_weight`` and ``norm_bias`` (batch, instance, layer,
    group, RMS norm, and any module whose class name ends in "norm"), ``embedding``,
    ``bias`` (of any other module), ``other``. A shared parameter is listed once, under
    the module that comes first; frozen ones are left out.

    Args:
        model: the network.
        **overrides_by_kind: options for the group of a kind, as ``bias=dict(weight_decay=0)``.

    Returns:
        Groups in the order of ``KINDS``, each with named ``params``, its ``kind`` and its
        overrides; kinds of which the model has no parameter are left out.

    Example:
        >>> import torch, stochbatch
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8))
        >>> groups = stochbatch.param_groups(model, norm_weight=dict(weight_decay=0.0))
        >>> [(group["kind"], [name for name, _ in group["params"]]) for group in groups]
        [('conv', ['0.weight']), ('bias', ['0.bias']), ('norm_weight', ['1.weight']), \
('norm_bias', ['1.bias'])]
        >>> optimizer = stochbatch.SBS(groups, lr=0.1)
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    for kind, override in overrides_by_kind.items():
        check_kind(kind)
        if not isinstance(override, dict):
            raise TypeError(f"options of kind {kind!r} must be a dict, got {override!r}")
        if reserved := {"params", "kind"} & override.keys():
            raise ValueError(f"options of kind {kind!r} must not set {sorted(reserved)}")
    by_kind: dict[str, list[tuple[str, Tensor]]] = {kind: [] for kind in KINDS}
    for path, parameter in model.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise ValueError(
                f"parameter {path!r} is not initialised: run the model once on a batch first"
            )
        if parameter.requires_grad:
            by_kind[kind_in_module(*_holder(model, path), parameter)].append((path, parameter))
    groups = [
        {"params": params, "kind": kind, **overrides_by_kind.get(kind, {})}
        for kind, params in by_kind.items()
        if params
    ]
    if not groups:
        raise ValueError("model has no parameters that require a gradient")
    return groups
