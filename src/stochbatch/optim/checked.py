"""What all optimizers here share: options, groups and state are checked, and loaded exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT, StateDict

from stochbatch.checks import check_agreement, check_not_negative
from stochbatch.optim.kinds import kind_by_shape
from stochbatch.optim.probability import compute_dtype
from stochbatch.optim.shards import check_placements, is_sharded
from stochbatch.optim.slots import (
    STEP,
    Slots,
    check_groups,
    check_state,
    exact_state,
    like,
    real_grad,
    real_view,
    share,
)


class Member(NamedTuple):
    """A parameter of an optimizer."""

    number: int
    """Position over all groups, in their order."""
    name: str
    kind: str
    tensor: Tensor
    group: dict[str, Any]


class CheckedOptimizer(Optimizer):
    """An optimizer that refuses wrong input before it changes anything, and loads exactly.

    A subclass says what its options may be (:meth:`_check_options`) and what it keeps for
    each parameter (``slots``).
    """

    slots: ClassVar[Slots] = {}
    """The state of a parameter."""

    whole: ClassVar[tuple[str, ...]] = ()
    """Options that decide a step as a whole and so must be the same in every group."""

    sharded: ClassVar[bool] = False
    """Whether it can move parameters of which each process has a part (``DTensor``)."""

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        check_parameters(params)
        self._check_options(defaults)
        self._check_sense(defaults)
        super().__init__(params, defaults)

    @staticmethod
    def _check_options(options: Mapping[str, Any]) -> None:
        """Raise ``TypeError`` or ``ValueError`` for the first option that is not allowed."""
        raise NotImplementedError

    @staticmethod
    def _check_sense(options: Mapping[str, Any]) -> None:
        """Raise for what nobody means who makes an optimizer, but a training may come to."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, as ``torch.optim.Optimizer.add_param_group`` does."""
        if not isinstance(param_group, dict) or "params" not in param_group:
            given = f"{param_group!r:.60}"
            raise TypeError(f"a parameter group must be a dict with 'params', got {given}")
        check_parameters(param_group["params"])
        params = param_group["params"]
        owner = type(self).__name__
        if isinstance(params, Tensor):
            check_members([params], owner, self.sharded)
        elif isinstance(params, Iterable) and not isinstance(params, set):
            param_group = {**param_group, "params": list(params)}
            check_members(param_group["params"], owner, self.sharded)
        # What must be the same in all groups is so, unless told otherwise: also after a
        # state_dict of another seed was loaded.
        first = self.param_groups[0] if self.param_groups else self.defaults
        param_group = {**{name: first[name] for name in self.whole}, **param_group}
        options = {**self.defaults, **param_group}
        self._check_options(options)
        self._check_sense(options)
        check_agreement([*self.param_groups, options], self.whole)
        super().add_param_group(param_group)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # Torch adds this to the options of all optimizers, whether they have it or not: then a
        # state_dict from before would lack it.
        self.defaults.pop("differentiable", None)
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load what :meth:`state_dict` returned, exactly, in the dtypes it was saved in."""
        if not isinstance(state_dict, dict):
            raise TypeError(f"state_dict must be a dict, got {type(state_dict).__name__}")
        saved: list[StateDict] = []

        # Torch casts floating-point and integer state to the parameter's dtype. So the
        # dict is kept as the last pre-hook leaves it, and put in place exactly before
        # the first post-hook runs.
        def keep(_: Optimizer, final: StateDict) -> None:
            self._check_state_dict(final)
            saved.append(final)

        def restore(_: Optimizer) -> None:
            for tensor, state in exact_state(saved[0], self.param_groups, self.slots).items():
                self.state[tensor].update(state)  # what others keep there is as torch loads it
            share(self.state, self.slots)

        before = self.register_load_state_dict_pre_hook(keep)
        after = self.register_load_state_dict_post_hook(restore, prepend=True)
        try:
            super().load_state_dict(state_dict)
        finally:
            before.remove()
            after.remove()

    def _check_state_dict(self, state_dict: StateDict) -> None:
        owner = type(self).__name__
        groups = check_groups(state_dict, self.param_groups, self.defaults, owner)
        for group in groups:
            self._check_options(group)
        check_agreement(groups, self.whole)
        check_state(state_dict, self.param_groups, self.slots, owner)

    @property
    def steps(self) -> int:
        """Number of steps that counted; the next step's number (may wait for the device)."""
        return self._read_counter(STEP)

    def _read_counter(self, name: str) -> int:
        counter = self._shared(name)
        return 0 if counter is None else int(counter)

    def _counter(self) -> Tensor:
        """Return the number of steps on the host, to be counted on when a step is sure."""
        counter = self._shared(STEP)
        return torch.zeros((), dtype=torch.int64, device="cpu") if counter is None else counter

    def _members(self) -> Iterator[Member]:
        return members_of(self.param_groups)

    def _ready(self) -> list[Member]:
        """Return the parameters that have a gradient; a sparse one is refused."""
        ready = [member for member in self._members() if member.tensor.grad is not None]
        for member in ready:
            if member.tensor.grad.layout != torch.strided:  # type: ignore[union-attr]
                raise RuntimeError(
                    f"{type(self).__name__} needs dense gradients, parameter {member.name} "
                    "has a sparse one: make its layer with sparse=False"
                )
        return ready

    @staticmethod
    def _is_dummy(ready: list[Member]) -> bool:
        """Whether all rates and all gradients are zero.

        ``torch.distributed.checkpoint`` takes such a step to make an optimizer allocate its
        state: nothing else may come of it.
        """
        for member in ready:
            lr = member.group["lr"]
            if isinstance(lr, Tensor) and lr.device.type != "cpu":
                return False  # to know it would be to wait for the device
            if lr != 0:
                return False
        return not any(bool(member.tensor.grad.any()) for member in ready)  # type: ignore[union-attr]

    def _follow(self, state: dict[str, Tensor], weight: Tensor) -> None:
        """Let the state go where its parameter went, to another dtype."""
        for name, slot in self.slots.items():
            held = state.get(name)
            if held is not None and slot.shape is None:
                dtype = slot.dtype or compute_dtype(weight.dtype)
                if held.dtype != dtype:
                    state[name] = like(weight, held, dtype)

    def _filled(self) -> list[dict[str, Tensor]]:
        # Asking for the state of a parameter that has none leaves an empty entry behind, and
        # wrappers of optimizers keep things of their own in it.
        return [state for state in self.state.values() if STEP in state]

    def _shared(self, name: str) -> Tensor | None:
        """Return the tensor that all parameters hold under ``name``, if any has state yet."""
        return next((state[name] for state in self._filled()), None)


def members_of(groups: Iterable[dict[str, Any]]) -> Iterator[Member]:
    """Yield the parameters of an optimizer's groups, in their order."""
    number = 0
    for group in groups:
        names = group.get("param_names") or range(number, number + len(group["params"]))
        for name, tensor in zip(names, group["params"], strict=True):
            kind = group.get("kind") or kind_by_shape(tensor)
            yield Member(number, str(name), kind, tensor, group)
            number += 1


def rate_of(group: Mapping[str, Any]) -> float | Tensor:
    """Return a group's learning rate, a tensor without dimensions if it is a tensor."""
    lr: float | Tensor = group["lr"]
    return lr.reshape(()) if isinstance(lr, Tensor) else lr


def weight_and_grad(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Return the real views of a parameter and of its gradient."""
    assert tensor.grad is not None, "only parameters with a gradient are asked for it"
    return real_view(tensor), real_grad(tensor.grad)


def call_closure(closure: Callable[[], float] | None) -> float | None:
    """Return the closure's loss, computed with gradients on; None without a closure."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


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
