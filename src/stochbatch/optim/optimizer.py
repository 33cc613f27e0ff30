"""The base class of all optimizers here: members, declared state, exact loading.

A subclass declares what it keeps per parameter (``slots``). Torch casts loaded state to the
parameter's dtype and takes anything under any name; here declared state is checked before
anything changes, and comes back in the dtype of its slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT, StateDict

from stochbatch.checks import check_agreement, check_real, shown
from stochbatch.optim.coins import MOST_ELEMENTS
from stochbatch.optim.kinds import kind_by_shape
from stochbatch.optim.shards import check_placements, is_sharded
from stochbatch.optim.slots import STEP, Slots, follow

_LISTS = (list, tuple)


class Member(NamedTuple):
    """A parameter of an optimizer."""

    number: int  # its position over all groups, in their order
    name: str
    kind: str
    tensor: Tensor
    group: dict[str, Any]

    @property
    def called(self) -> str:
        """The name, or else the number and the shape."""
        if "param_names" in self.group:
            return self.name
        return f"parameter {self.name} of shape {tuple(self.tensor.shape)}"


class CheckedOptimizer(Optimizer):
    """An optimizer that refuses wrong input before it changes anything, and loads exactly."""

    slots: ClassVar[Slots] = {}
    """The state of a parameter."""
    whole: ClassVar[tuple[str, ...]] = ()
    """Options that decide a step as a whole and so must be the same in every group."""
    later: ClassVar[tuple[str, ...]] = ()
    """Options that an older state_dict may lack: they get this optimizer's default."""
    sharded: ClassVar[bool] = False
    """Whether it can move sharded parameters (``DTensor``)."""

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        _refuse_module(params)
        self._check_options(defaults)
        self._check_sense(defaults)
        super().__init__(params, defaults)

    @staticmethod
    def _check_options(options: Mapping[str, Any]) -> None:
        """Raise ``TypeError`` or ``ValueError`` for the first option that is not allowed."""
        raise NotImplementedError

    @staticmethod
    def _check_sense(options: Mapping[str, Any]) -> None:
        """Reject what is wrong at construction but legal later, as after a scheduler's change."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, as ``torch.optim.Optimizer.add_param_group`` does."""
        if not isinstance(param_group, dict) or "params" not in param_group:
            raise TypeError(
                f"a parameter group must be a dict with 'params', got {shown(param_group)}"
            )
        _refuse_module(param_group["params"])
        # Options that must be the same in all groups are so, unless given: also after loading
        # a state_dict with another seed.
        first = self.param_groups[0] if self.param_groups else self.defaults
        super().add_param_group({**{name: first[name] for name in self.whole}, **param_group})
        group = self.param_groups[-1]
        try:
            for tensor in group["params"]:
                check_member(tensor, type(self).__name__, self.sharded)
            self._check_options(group)
            self._check_sense(group)
            check_agreement(self.param_groups, self.whole)
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # Torch adds this to the options of all optimizers, whether they have it or not: then a
        # state_dict from before would lack it.
        self.defaults.pop("differentiable", None)
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)

    def state_dict(self) -> StateDict:
        """Return the state as torch does; what is kept in a shorter dtype, as a copy."""

        def widen(_: Optimizer, found: StateDict) -> StateDict:  # as the first post-hook
            slots = {name: slot.dtype for name, slot in self.slots.items() if slot.whole}
            states = dict(found["state"])
            for key, state in states.items():
                if short := slots.keys() & state.keys():
                    states[key] = {**state, **{name: state[name].to(slots[name]) for name in short}}
            return {**found, "state": states}

        hook = self.register_state_dict_post_hook(widen, prepend=True)
        try:
            return super().state_dict()
        finally:
            hook.remove()

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load what :meth:`state_dict` returned, exactly: all of it, or nothing and an error."""
        if not isinstance(state_dict, dict):
            raise TypeError(f"state_dict must be a dict, got {type(state_dict).__name__}")
        states: dict[Tensor, dict[str, Tensor]] = {}

        # As the last pre-hook: check everything, copy declared state, and leave to torch the
        # rest, which wrappers of optimizers keep in the same place.
        def take(_: Optimizer, final: StateDict) -> StateDict:
            groups = self._loaded_groups(final)
            states.update(self._loaded_states(final["state"], groups))
            rest = {
                key: {name: saved[name] for name in saved if name not in self.slots}
                for key, saved in final["state"].items()
            }
            return {**final, "state": rest, "param_groups": groups}

        def put(_: Optimizer) -> None:  # as the first post-hook
            for tensor, state in states.items():
                self.state[tensor].update(state)

        before = self.register_load_state_dict_pre_hook(take)
        after = self.register_load_state_dict_post_hook(put, prepend=True)
        try:
            super().load_state_dict(state_dict)
        finally:
            before.remove()
            after.remove()

    def _loaded_groups(self, state_dict: StateDict) -> list[dict[str, Any]]:
        """Return the saved groups with all options; raise unless they fit the present ones."""
        if not isinstance(state_dict, dict) or not {"state", "param_groups"} <= state_dict.keys():
            raise ValueError("state_dict must be a dict with 'state' and 'param_groups'")
        groups = state_dict["param_groups"]
        if not isinstance(groups, _LISTS) or not all(
            isinstance(group, dict) and isinstance(group.get("params"), _LISTS) for group in groups
        ):
            raise TypeError("param_groups of a state_dict must be dicts with lists of 'params'")
        sizes, saved = ([len(group["params"]) for group in g] for g in (self.param_groups, groups))
        if sizes != saved:
            raise ValueError(f"state_dict has groups of sizes {saved}, this optimizer {sizes}")
        groups = [{**{name: self.defaults[name] for name in self.later}, **g} for g in groups]
        for number, group in enumerate(groups):
            if missing := [name for name in self.defaults if name not in group]:
                raise ValueError(
                    f"state_dict is not one of {type(self).__name__}: its parameter group "
                    f"{number} lacks {', '.join(missing)}"
                )
            self._check_options(group)
            names = group.get("param_names", group["params"])
            if not isinstance(names, _LISTS) or len(names) != sizes[number]:
                raise ValueError(f"group {number} needs {sizes[number]} param_names, in a list")
        check_agreement(groups, self.whole)
        return groups

    def _loaded_states(
        self, states: object, groups: list[dict[str, Any]]
    ) -> dict[Tensor, dict[str, Tensor]]:
        """Return the declared state of each parameter, copied; raise unless all of it fits."""
        if not isinstance(states, dict):
            raise TypeError(f"state of a state_dict must be a dict, got {type(states).__name__}")
        tensors: dict[object, Tensor] = {}  # saved and present parameters correspond by position
        keys = chain.from_iterable(group["params"] for group in groups)
        held = chain.from_iterable(group["params"] for group in self.param_groups)
        for key, tensor in zip(keys, held, strict=True):
            if not isinstance(key, (int, str)):
                raise TypeError(f"params of a state_dict must be int or str, got {shown(key)}")
            if tensors.setdefault(key, tensor) is not tensor:
                raise ValueError(f"state_dict has parameter {key!r} in two places")
        if strays := [key for key in states if key not in tensors]:
            raise ValueError(f"state_dict has state for parameter {shown(strays[0])}, of no group")
        loaded = {
            tensors[key]: self._loaded_state(key, states[key], tensors[key]) for key in states
        }
        for name in (name for name, slot in self.slots.items() if slot.shared):
            holders = [state for state in loaded.values() if name in state]
            for state in holders:
                first = holders[0][name]
                if not first.is_meta and state[name].tolist() != first.tolist():
                    pair = f"{shown(first.tolist())} and {shown(state[name].tolist())}"
                    raise ValueError(f"{name} must be the same for all parameters, got {pair}")
                state[name] = first
        return loaded

    def _loaded_state(self, key: object, saved: object, tensor: Tensor) -> dict[str, Tensor]:
        if not isinstance(saved, dict):
            kind = type(saved).__name__
            raise TypeError(f"the state of parameter {key!r} must be a dict, got {kind}")
        names = [name for name in saved if name in self.slots]
        always = [name for name, slot in self.slots.items() if slot.always]
        if names and not set(always) <= set(names):  # without names: a wrapper's, or empty
            raise ValueError(
                f"state_dict is not one of {type(self).__name__}: its state of parameter {key!r} "
                f"has {shown(names)}, expected {sorted(always)}"
            )
        weight = real_view(tensor.detach())
        return {
            name: self.slots[name].loaded(saved[name], weight, f"{name} of parameter {key!r}")
            for name in names
        }

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
            if hasattr(member.tensor, "_in_backward_optimizers"):
                # torch marks it after making the optimizer (SBS looks when it makes a plan)
                check_member(member.tensor, type(self).__name__, self.sharded)
            if member.tensor.grad.layout != torch.strided:  # type: ignore[union-attr]
                raise RuntimeError(
                    f"{type(self).__name__} needs dense gradients, parameter {member.name} "
                    "has a sparse one: make its layer with sparse=False"
                )
        return ready

    @staticmethod
    def _is_dummy(ready: list[Member]) -> bool:
        """Whether this step only allocates state, as ``torch.distributed.checkpoint`` does.

        All rates and all gradients are zero then.
        """
        if not rates_are_zero([member.group for member in ready]):
            return False
        return not any(bool(member.tensor.grad.any()) for member in ready)  # type: ignore[union-attr]

    def _moving(self) -> Iterator[tuple[Member, dict[str, Tensor], Tensor]]:
        """Yield each parameter to be moved, with its state and the number of steps; count it.

        A dummy step makes the state and moves nothing.
        """
        ready = [member for member in self._ready() if member.tensor.numel()]
        counter, dummy = self._counter(), self._is_dummy(ready)
        for member in ready:
            weight, state = real_view(member.tensor), self.state[member.tensor]
            self._make(state, weight)
            state.setdefault(STEP, counter)
            follow(state, self.slots, weight)
            if not dummy:
                yield member, state, counter
        if ready and not dummy:
            counter.add_(1)

    def _make(self, state: dict[str, Tensor], weight: Tensor) -> None:
        """Make what is missing of a parameter's state, but for the counter."""

    def _filled(self) -> list[dict[str, Tensor]]:
        # Reading the state of a parameter that has none leaves an empty entry behind, and
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


def check_member(tensor: Any, owner: str, sharded: bool) -> None:
    """Raise if an optimizer of the name ``owner`` cannot move a parameter."""
    if is_sharded(tensor):
        if not sharded:
            raise TypeError(f"{owner} cannot move sharded parameters (DTensor), SBS can")
        check_placements(tensor, owner)
    if getattr(tensor, "_is_flat_param", False) or getattr(tensor, "_fsdp_flattened", False):
        raise TypeError(
            f"{owner} needs parameters as they are, FullyShardedDataParallel flattens them: "
            "use torch.distributed.fsdp.fully_shard"
        )
    if tensor.numel() > MOST_ELEMENTS // (2 if tensor.is_complex() else 1):
        raise ValueError(
            f"{owner} cannot move a parameter of more than 2**32 numbers: split the one of shape "
            f"{tuple(tensor.shape)}"
        )
    if hasattr(tensor, "_in_backward_optimizers"):
        raise TypeError(
            f"{owner} needs all parameters in one step, apply_optimizer_in_backward gives "
            "each an optimizer of its own: call step() after the backward pass"
        )


def real_view(tensor: Tensor) -> Tensor:
    """Return complex tensors as pairs of real numbers, as torch's optimizers treat them."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def real_grad(grad: Tensor) -> Tensor:
    """Return a gradient as real numbers; what autograd left to be conjugated is conjugated."""
    return real_view(grad.resolve_conj())


def weight_and_grad(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Return the real views of a parameter and of its gradient."""
    assert tensor.grad is not None, "only called for parameters with a gradient"
    return real_view(tensor), real_grad(tensor.grad)


def rate_of(group: Mapping[str, Any]) -> float | Tensor:
    """Return a group's learning rate, a tensor without dimensions if it is a tensor."""
    lr: float | Tensor = group["lr"]
    return lr.reshape(()) if isinstance(lr, Tensor) else lr


def rates_are_zero(groups: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether all learning rates are known to be 0 without waiting for a device."""
    for lr in (group.get("lr") for group in groups):
        if (isinstance(lr, Tensor) and not lr.is_cpu) or lr != 0:
            return False
    return True


def call_closure(closure: Callable[[], float] | None) -> float | None:
    """Return the closure's loss, computed with gradients on; None without a closure."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def check_lr(lr: object) -> None:
    """Raise unless ``lr`` is a number, or a tensor of one floating-point number, of 0 or more."""
    if isinstance(lr, Tensor):
        if lr.numel() != 1:
            raise ValueError(f"Tensor lr must be 1-element, got shape {tuple(lr.shape)}")
        if not lr.is_floating_point():
            raise ValueError(f"lr as a tensor must be floating-point, got {lr.dtype}")
        lr = float(lr)
    check_real("lr", lr)
    if lr < 0:  # type: ignore[operator]
        raise ValueError(f"Invalid learning rate: {lr} (lr must be 0 or more)")


def _refuse_module(params: object) -> None:
    if isinstance(params, torch.nn.Module):
        raise TypeError(
            f"params must be parameters, got the module {type(params).__name__}: "
            "use model.parameters() or stochbatch.param_groups(model)"
        )
