"""The methods that can be compared, by name: an optimizer, and what it asks of the network."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from stochbatch.optim.baselines.acc_sgd import AccSGD
from stochbatch.optim.baselines.alternating import AlternatingSGD
from stochbatch.optim.baselines.entropy_sgd import EntropySGD
from stochbatch.optim.kinds import param_groups
from stochbatch.optim.masked import Masked
from stochbatch.optim.sbs import SBS
from stochbatch.registry import METHODS, check_settings

COMMON = ("lr", "momentum", "weight_decay", "seed")
"""Options of every method; its *settings* are the others."""

_NOT_SETTINGS = (*COMMON, "params", "maximize", "foreach", "capturable", "differentiable", "fused")


@dataclass(frozen=True)
class Method:
    """An optimizer with its settings, and the network options that belong to the method.

    Example:
        >>> import torch
        >>> from stochbatch.training import METHODS
        >>> method = METHODS["sbs"]
        >>> method.title, method.settings["lambd"]
        ('SBS', -4.0)
        >>> model = torch.nn.Linear(4, 2)
        >>> optimizer = method.optimizer(model, lr=0.1, momentum=0.9, lambd=-2.0)
        >>> optimizer.param_groups[0]["lambd"]
        -2.0
    """

    title: str
    """Its name in tables."""
    make: Callable[..., Optimizer]
    presets: Mapping[str, Any] = field(default_factory=dict)
    """Settings that differ from the optimizer's own defaults."""
    network: Mapping[str, Any] = field(default_factory=dict)
    """Options that the method asks of the network; each may be set like a setting."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Options that make the method what it is: given to the optimizer, not to be set."""
    hidden: tuple[str, ...] = ()
    """Options of the optimizer that are not settings."""
    by_kind: bool = False
    """Whether parameters are grouped by kind."""
    closure: bool = False
    """Whether a step evaluates several batches through a closure."""
    usual_lr: float | None = None
    """Rate of a trial that gives none, if it is another than SGD's."""
    usual_schedule: str | None = None
    """Schedule of a trial that gives neither a rate nor a schedule."""
    usual_weight_decay: float | None = None
    """Weight decay of a trial that gives none, if it is another than SGD's."""
    lr_range: tuple[float, float] = (1e-3, 1.0)
    """Rates among which a tuned comparison looks for the best."""

    def __post_init__(self) -> None:
        """Refuse what no training could use."""
        if self.closure and "L" not in self.settings:
            raise ValueError(
                f"{self.title} takes a closure: its setting L must say how often it calls it"
            )

    @property
    def retired(self) -> Mapping[str, Any]:
        """Return settings that the optimizer had once, each with the one value it still has.

        An optimizer's class names them as ``retired_settings``. They stay in the text that
        identifies a trial, and are not passed on.
        """
        return getattr(self.make, "retired_settings", {})

    @property
    def settings(self) -> dict[str, Any]:
        """Return the names of all settings with their defaults, or `inspect.Parameter.empty`."""
        own = {
            name: option.default
            for name, option in inspect.signature(self.make).parameters.items()
            if name not in (*_NOT_SETTINGS, *self.hidden, *self.fixed)
            and option.kind not in (option.VAR_POSITIONAL, option.VAR_KEYWORD)
        }
        return {**own, **self.retired, **self.presets, **self.network}

    def check_settings(self, given: Iterable[str]) -> None:
        """Raise ``ValueError`` for the first name that is no setting."""
        names = [name for name in self.settings if name not in self.retired]
        check_settings(self.title, names, (name for name in given if name not in self.retired))

    def without_later(self, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return all settings with their defaults, and those given, as a trial's text has them.

        Settings that came later, which an optimizer's class names in ``later``, are in that text
        only where they differ from their default, so that trials keep their names.
        """
        known, later = self.settings, getattr(self.make, "later", ())
        given = {n: v for n, v in given.items() if n not in later or v != known.get(n)}
        return {n: v for n, v in known.items() if n not in later or n in given}, given

    @property
    def common(self) -> tuple[str, ...]:
        """Return which of lr, momentum, weight decay and seed the optimizer knows."""
        known = inspect.signature(self.make).parameters
        return tuple(name for name in COMMON if name in known)

    def optimizer(
        self,
        model: nn.Module,
        *,
        lr: float = 0.1,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        seed: int = 0,
        **settings: Any,
    ) -> Optimizer:
        """Return the optimizer of ``model``'s parameters.

        A momentum or weight decay other than 0 is refused by methods that have none.
        """
        self.check_settings(settings)
        for name, only in self.retired.items():
            if (value := settings.pop(name, only)) != only:
                raise ValueError(f"{self.title} has only {name}={only!r}, got {value!r}")
        common = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "seed": seed}
        for name in ("momentum", "weight_decay"):
            if common[name] and name not in self.common:
                raise ValueError(
                    f"{self.title} has no {name.replace('_', ' ')}, got {name}={common[name]}"
                )
        options = {name: common[name] for name in self.common}
        options |= {**self.presets, **self.fixed, **settings}
        params = param_groups(model) if self.by_kind else model.named_parameters()
        return self.make(
            params, **{name: value for name, value in options.items() if name not in self.network}
        )

    def network_options(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the network must be built with, given the method's settings."""
        return {name: settings.get(name, value) for name, value in self.network.items()}


def masked_adamw(
    params: Any,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    *,
    probability: float = 0.5,
    coin: Literal["scalar", "tensor", "none"] = "scalar",
    rescale: bool = False,
    seed: int = 0,
) -> Masked:
    """Return AdamW whose moves a coin lets through."""
    base = torch.optim.AdamW(params, lr, betas, eps, weight_decay)
    return Masked(base, probability=probability, coin=coin, rescale=rescale, seed=seed)


_SBS: dict[str, Any] = {"make": SBS, "by_kind": True}
_ADAPTIVE: dict[str, Any] = {
    "usual_lr": 1e-4,
    "usual_schedule": "constant",
    "lr_range": (1e-5, 1e-2),
}
_ADAMW: dict[str, Any] = {
    "usual_lr": 1e-3,
    "usual_schedule": "cosine",
    "usual_weight_decay": 1e-2,  # decoupled: times the rate, where SGD's is part of the gradient
    "lr_range": (1e-5, 1e-2),
}
for _name, _method in {
    "sgd": Method("SGD", torch.optim.SGD),
    "sbs": Method("SBS", hidden=("coin",), **_SBS),
    "sbs-mean-field": Method(
        "SBS mean field", fixed={"coin": "none", "lr_scaling": "none"}, **_SBS
    ),
    "sbs-fixed-half": Method("SBS fixed 1/2", fixed={"probability": 0.5}, hidden=("coin",), **_SBS),
    "dropout": Method(
        "Dropout", torch.optim.SGD, network={"dropout": "block", "dropout_rate": 0.5}
    ),
    "adaptive-dropout": Method(
        "Adaptive dropout", torch.optim.SGD, network={"dropout": "adaptive", "dropout_rate": 0.5}
    ),
    # Its outer rate multiplies a difference of weights: ten times SGD's, as its authors advise.
    "entropy-sgd": Method(
        "Entropy-SGD", EntropySGD, closure=True, usual_lr=1.0, lr_range=(1e-2, 10.0)
    ),
    "acc-sgd": Method("Accelerated-SGD", AccSGD),
    "alternating": Method("Alternating", AlternatingSGD),
    "rmsprop": Method("RMSProp", torch.optim.RMSprop, presets={"alpha": 0.95}, **_ADAPTIVE),
    "adam": Method(
        "Adam",
        torch.optim.Adam,
        hidden=("decoupled_weight_decay",),  # not in torch 2.6
        **_ADAPTIVE,
    ),
    "adamw": Method("AdamW", torch.optim.AdamW, hidden=("amsgrad",), **_ADAMW),
    "masked-adamw": Method("Masked AdamW", masked_adamw, by_kind=True, **_ADAMW),
}.items():
    METHODS.provide(_name, _method)
