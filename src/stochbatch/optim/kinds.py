"""Kinds of parameters: which layers the global scheme compares with each other.

Eq. 19 of the article compares all layers; its local paragraph names types of parameters
(convolution, fully connected, bias, batch normalisation), whose gradients differ in range.
Here a *kind* is any string. ``KINDS`` are those of common layers; projections
of transformers have kinds by their role, found by the names that public models give them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import UninitializedParameter

from stochbatch.checks import shown

KINDS = ("conv", "linear", "bias", "norm_weight", "norm_bias", "embedding", "other")
"""The kinds of common layers; their groups come first, in this order."""

KindOf = Callable[[nn.Module, str, nn.Parameter], str | None]

_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
_LINEAR = (nn.Linear, nn.Bilinear, nn.MultiheadAttention)
_RECURRENT = (nn.RNNBase, nn.RNNCellBase)
_RECURRENT_ROLES = {"weight_ih": "input", "weight_hh": "hidden", "weight_hr": "projection"}
_NORM_BIAS_NAMES = ("bias", "beta", "shift")
_PARAMETRIZATIONS = "parametrizations"
_WRAPPERS = ("base_layer", "default", "module", "_orig_mod")  # of PEFT, DDP, torch.compile


def _by_name(names_of_roles: dict[str, str]) -> dict[str, str]:
    return {name: role for role, names in names_of_roles.items() for name in names.split()}


_ATTENTION_ROLES = _by_name(
    {
        "q": "q q_proj q_lin q_linear query query_proj to_q wq w_q",
        "k": "k k_proj k_lin k_linear key key_proj to_k wk w_k",
        "v": "v v_proj v_lin v_linear value value_proj to_v wv w_v",
        "kv": "kv kv_proj to_kv wkv",
        "qkv": "qkv qkv_proj to_qkv wqkv c_attn in_proj query_key_value",
        "o": "o o_proj out out_proj out_lin proj proj_out c_proj to_out wo w_o dense",
    }
)
_MLP_ROLES = _by_name(
    {
        "up": "up up_proj fc1 fc_in c_fc lin1 linear1 wi wi_1 w3 w_1 dense_h_to_4h "
        "intermediate.dense",
        "gate": "gate_proj wi_0 w1",
        "gate_up": "gate_up_proj",
        "down": "down down_proj fc2 fc_out c_proj lin2 linear2 wo w2 w_2 dense_4h_to_h "
        "output.dense",
    }
)
_ATTENTION = re.compile("attn|attention", re.IGNORECASE)
_QUERIES_KEYS_VALUES: tuple[set[str | None], ...] = ({"qkv"}, {"q", "kv"}, {"q", "k", "v"})


def check_kind(kind: object) -> None:
    """Raise unless ``kind`` is a string that is not empty."""
    if not isinstance(kind, str) or not kind:
        raise ValueError(f"kind must be a string that is not empty, got {shown(kind)}")


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
    if isinstance(module, _RECURRENT):
        role = _RECURRENT_ROLES.get(name[: len("weight_ih")])
        return f"recurrent_{role}" if role else "other"
    if isinstance(module, _LINEAR):
        return "linear"
    if type(module).__name__ == "Conv1D" and parameter.dim() == 2:
        return "linear"  # of Hugging Face's GPT-2, with a transposed weight
    return "embedding" if isinstance(module, _EMBEDDINGS) else "other"


def _is_norm(module: nn.Module, parameter: Tensor) -> bool:
    # Normalisations from other libraries are known by their name and their vectors.
    named_so = type(module).__name__.lower().rstrip("123d_").endswith("norm")
    return isinstance(module, _NORMS) or (named_so and parameter.dim() <= 1)


def _as_used(path: str) -> str:
    """Return the path of a parameter where it is used, not where a parametrization keeps it."""
    parts = path.split(".")
    if _PARAMETRIZATIONS in parts:
        # "conv.parametrizations.weight.original0" is what conv knows as "weight".
        parts = parts[: parts.index(_PARAMETRIZATIONS) + 2]
        parts.remove(_PARAMETRIZATIONS)
    return ".".join(parts)


class _Roles:
    """Where the transformer blocks of a model are, and so which matrices have which role.

    An *attention* is a module whose class or attribute name has "attn" or "attention" in it and
    which has projections to queries, keys and values below it. Its parent is a *block*. A matrix
    in an attention may have one of an attention's roles, another matrix in a block one of an
    MLP's; of several such modules around it the innermost decides.
    """

    def __init__(self, model: nn.Module) -> None:
        below: defaultdict[str, set[str | None]] = defaultdict(set)
        for path in (_as_used(path) for path, _ in model.named_parameters()):
            for place in _places(path):
                below[place].add(_role(_ATTENTION_ROLES, path))
        self.attentions = {
            place
            for place, module in model.named_modules()
            if _ATTENTION.search(f"{place.rpartition('.')[2]} {type(module).__name__}")
            and any(roles <= below[place] for roles in _QUERIES_KEYS_VALUES)
        }
        self.blocks = {place.rpartition(".")[0] for place in self.attentions if place}

    def kind(self, path: str, parameter: Tensor) -> str | None:
        """Return the kind of a matrix, or of a stack of them, by its role; None without a role."""
        parts = path.lower().split(".")
        for matrix in ("lora_a", "lora_b"):
            if matrix in parts or matrix.replace("_", "_embedding_") in parts:
                return matrix
        mlp, role = "expert" if "experts" in parts else "mlp", _role(_MLP_ROLES, path)
        if mlp == "expert" and parameter.dim() == 3:
            return f"expert_{role}" if role else "expert"
        for place in _places(path):
            if place in self.attentions:
                role = _role(_ATTENTION_ROLES, path)
                return role and f"attention_{role}"
            if place in self.blocks:
                return role and f"{mlp}_{role}"
        return None


def _places(path: str) -> list[str]:
    """Return the modules around a parameter, the innermost first, the model ("") last."""
    parts = path.split(".")[:-1]
    return [".".join(parts[:length]) for length in range(len(parts), -1, -1)]


def _role(roles: dict[str, str], path: str) -> str | None:
    """Return the role of a matrix by its name, which is "fc1" for "layers.0.mlp.fc1.weight"."""
    parts = path.lower().removesuffix(".weight").removesuffix("_weight").split(".")
    parts = [part for part in parts if not part.isdigit() and part not in _WRAPPERS]
    return roles.get(".".join(parts[-2:])) or roles.get(".".join(parts[-1:]))


def param_groups(
    model: nn.Module, *, kind: KindOf | None = None, **overrides_by_kind: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return one parameter group per kind, for :class:`stochbatch.SBS` or any optimizer.

    The kind comes from the module that holds a parameter: ``conv`` (convolutions of any
    dimension, transposed too), ``linear`` (``Linear``, ``Bilinear``, Hugging Face's ``Conv1D``),
    ``norm_weight`` and ``norm_bias`` (batch, instance, layer, group, RMS norm, and any module
    whose class name ends in "norm"), ``embedding``, ``bias`` (of any other module), ``other``. A
    shared parameter is listed once, under the module that comes first; frozen ones are left out.

    Some matrices have a kind of their own, by the names that public models give them:

    * in an attention ``attention_q``, ``_k``, ``_v``, ``_o``, and packed ones ``_kv``, ``_qkv``;
    * beside an attention ``mlp_up``, ``mlp_gate``, ``mlp_down``, packed ``mlp_gate_up``; below a
      module called "experts" ``expert_up`` and so on, stacked experts too;
    * anywhere ``lora_a`` and ``lora_b``, and in recurrent layers ``recurrent_input``,
      ``recurrent_hidden``, ``recurrent_projection``.

    An attention is a module whose class or attribute name has "attn" or "attention" in it, and
    that has projections to queries, keys and values. "Beside" is anywhere in its parent module, so
    ``fc1`` and ``fc2`` of a network without attention are ``linear``.

    Args:
        model: the network.
        kind: a function ``(module, name, parameter) -> str | None`` that names the kind of a
            parameter: any string, or None for the rule above. ``module`` is the module that uses
            the parameter, ``name`` its full name, as in ``model.named_parameters()``.
        **overrides_by_kind: options for the group of a kind, as ``bias=dict(weight_decay=0)``.

    Returns:
        Groups in the order of ``KINDS``, then further kinds in the order in which they appear in
        the model, each with named ``params``, its ``kind`` and its overrides. (A parameter's coins
        follow from its position over all groups.)

    Example:
        >>> import torch, stochbatch
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8))
        >>> groups = stochbatch.param_groups(model, norm_weight=dict(weight_decay=0.0))
        >>> [(group["kind"], [name for name, _ in group["params"]]) for group in groups]
        [('conv', ['0.weight']), ('bias', ['0.bias']), ('norm_weight', ['1.weight']), \
('norm_bias', ['1.bias'])]
        >>> optimizer = stochbatch.SBS(groups, lr=0.1)
        >>> def stem_apart(module, name, parameter):
        ...     return "stem" if name.startswith("0.") else None
        >>> [group["kind"] for group in stochbatch.param_groups(model, kind=stem_apart)]
        ['norm_weight', 'norm_bias', 'stem']
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    by_kind: dict[str, list[tuple[str, Tensor]]] = {known: [] for known in KINDS}
    roles = _Roles(model)
    for path, parameter in model.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise ValueError(
                f"parameter {path!r} is not initialised: run the model once on a batch first"
            )
        if parameter.requires_grad:
            place, _, attribute = _as_used(path).rpartition(".")
            module = model.get_submodule(place)
            found = kind(module, path, parameter) if kind is not None else None
            if found is None:
                found = kind_in_module(module, attribute, parameter)
                if found in ("linear", "other") and parameter.dim() > 1:
                    found = roles.kind(_as_used(path), parameter) or found
            check_kind(found)
            by_kind.setdefault(found, []).append((path, parameter))
    _check_overrides(overrides_by_kind, by_kind)
    groups = [
        {"params": params, "kind": its_kind, **overrides_by_kind.get(its_kind, {})}
        for its_kind, params in by_kind.items()
        if params
    ]
    if not groups:
        raise ValueError("model has no parameters that require a gradient")
    return groups


def _check_overrides(overrides: dict[str, dict[str, Any]], known: Collection[str]) -> None:
    for kind, override in overrides.items():
        if kind not in known:
            raise ValueError(f"no parameter is of kind {kind!r}, known are {', '.join(known)}")
        if not isinstance(override, dict):
            raise TypeError(f"options of kind {kind!r} must be a dict, got {override!r}")
        if reserved := {"params", "kind"} & override.keys():
            raise ValueError(f"options of kind {kind!r} must not set {sorted(reserved)}")
