"""Checks of an optimizer's options: what was given, what is allowed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from stochbatch.optim.coins import check_seed
from stochbatch.optim.kinds import check_kind
from stochbatch.optim.probability import CROSS_LAYER
from stochbatch.optim.shards import check_placements, is_sharded
from stochbatch.optim.update import LR_SCALING


def check_options(options: Mapping[str, Any]) -> None:
    """Raise ``TypeError`` or ``ValueError`` for the first option of SBS that is not allowed."""
    check_lr(options["lr"])
    check_scheme(options)
    check_choice("lr_scaling", options["lr_scaling"], LR_SCALING)
    check_momentum(options["momentum"])
    for name in ("nesterov", "maximize", "skip_nonfinite"):
        check_bool(name, options[name])
    check_not_negative("weight_decay", options["weight_decay"])
    check_seed(options["seed"])
    if options["fused"] is not None:
        check_bool("fused", options["fused"], "None, True or False")


def check_nesterov(options: Mapping[str, Any]) -> None:
    """Raise for Nesterov's momentum without momentum."""
    if options["nesterov"] and options["momentum"] == 0:
        raise ValueError("nesterov needs a momentum above 0, got momentum=0")


def check_scheme(options: Mapping[str, Any]) -> None:
    """Raise unless the options that make an update probability are allowed."""
    check_real("alpha", options["alpha"])
    check_real("lambd", options["lambd"])
    if options["probability"] is not None:
        check_real("probability", options["probability"])
        if not 0 < options["probability"] <= 1:
            raise ValueError(f"probability must be None or in (0, 1], got {options['probability']}")
    check_choice("cross_layer", options["cross_layer"], CROSS_LAYER)
    if "kind" in options:
        check_kind(options["kind"])


def check_momentum(momentum: float) -> None:
    """Raise unless ``momentum`` is a number in [0, 1)."""
    check_real("momentum", momentum)
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum must be in [0, 1), got {momentum}")


def check_not_negative(name: str, value: float) -> None:
    """Raise unless ``value`` is a number of 0 or more."""
    check_real(name, value)
    if value < 0:
        raise ValueError(f"{name} must be 0 or more, got {value}")


def check_positive(name: str, value: float) -> None:
    """Raise unless ``value`` is a number above 0."""
    check_real(name, value)
    if value <= 0:
        raise ValueError(f"{name} must be above 0, got {value}")


def check_agreement(groups: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    """Raise unless the options ``names``, which decide a step as a whole, agree in all groups."""
    for name in names:
        given = [group[name] for group in groups]
        if any(value != given[0] for value in given):
            raise ValueError(f"{name} must be the same in all parameter groups, got {given}")


def check_lr(lr: object) -> None:
    """Raise unless ``lr`` is a number, or a tensor of one floating-point number, of 0 or more."""
    if isinstance(lr, Tensor):
        if lr.numel() != 1 or not lr.is_floating_point():
            raise ValueError(
                f"lr as a tensor must be one floating-point number, "
                f"got shape {tuple(lr.shape)} of {lr.dtype}"
            )
        lr = float(lr)
    check_not_negative("lr", lr)  # type: ignore[arg-type]


def check_count(name: str, value: object) -> None:
    """Raise unless ``value`` is an int of 1 or more."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}: {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be 1 or more, got {value}")


def check_real(name: str, value: object) -> None:
    """Raise unless ``value`` is a finite number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}: {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}")


def check_bool(name: str, value: object, allowed: str = "True or False") -> None:
    """Raise unless ``value`` is a bool."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be {allowed}, got {type(value).__name__}: {value!r}")


def check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raise unless ``value`` is one of ``allowed``."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {allowed}, got {value!r}")


def check_parameters(params: object) -> None:
    """Raise with a hint for what people pass in place of parameters."""
    if isinstance(params, torch.nn.Module):
        name = type(params).__name__
        raise TypeError(
            f"params must be parameters, got the module {name}: "
            "use model.parameters() or stochbatch.param_groups(model)"
        )


def check_members(params: Sequence[object], owner: str, sharded: bool) -> None:
    """Raise if a parameter, named or not, is listed twice in one group, or cannot be moved.

    Args:
        params: the parameters.
        owner: name of the optimizer.
        sharded: whether it can move sharded parameters.
    """
    seen: set[int] = set()
    for entry in params:
        tensor = entry[1] if isinstance(entry, tuple) and len(entry) == 2 else entry
        if is_sharded(tensor):
            if not sharded:
                raise TypeError(f"{owner} cannot move sharded parameters (DTensor), SBS can")
            check_placements(tensor, owner)  # type: ignore[arg-type]
        if getattr(tensor, "_is_flat_param", False) or getattr(tensor, "_fsdp_flattened", False):
            raise TypeError(
                f"{owner} needs parameters as they are, FullyShardedDataParallel flattens them: "
                "use torch.distributed.fsdp.fully_shard"
            )
        if id(tensor) in seen:
            raise ValueError(f"a parameter is listed twice in one group: {entry!r:.60}")
        seen.add(id(tensor))
