"""``Masked``: the coin around any optimizer of torch."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.optim.optimizer import Optimizer, StateDict

from stochbatch.checks import check_bool, check_choice, check_seed
from stochbatch.optim.coins import stream_keys, stream_roots, uniform_at
from stochbatch.optim.kinds import check_kind
from stochbatch.optim.optimizer import (
    Member,
    call_closure,
    check_member,
    members_of,
    rates_are_zero,
    real_grad,
    real_view,
)
from stochbatch.optim.pieces import pieces, uniforms
from stochbatch.optim.probability import (
    Compare,
    CrossLayer,
    Scores,
    accumulation_dtype,
    check_scheme,
    compared,
    compute_dtype,
    scores_of,
    sums_of,
)
from stochbatch.optim.shards import KnownShards, Shards, local, local_grad, window_of

Coin = Literal["scalar", "tensor", "none"]
Exclude = Iterable[Tensor] | Callable[[str, Tensor], bool]

STEPS = "masked_steps"
"""Key of the step counter in a parameter's state. It is an int: torch casts every loaded tensor
to the parameter's dtype, and bfloat16 counts to 256."""

_KEEPS_WEIGHTS = "keeps weights in its state, which a mask does not reach"
_REFUSED = {
    "LBFGS": "moves several times in one step",
    "SBS": "has coins of its own",
    "AlternatingSGD": "has coins of its own",
    "Masked": "has coins of its own",
    **dict.fromkeys(("ASGD", "AccSGD", "EntropySGD", "Lookahead", "ScheduleFree"), _KEEPS_WEIGHTS),
}
"""Why an optimizer cannot be masked, by a part of the name of its class or of a parent's."""


class _Held(NamedTuple):
    """A masked parameter, held while the base moves it."""

    member: Member
    key: Tensor
    """The two words of the key of its coins."""
    weight: Tensor
    """What it was before; NaN where its coin came up, if the base's weight is then final."""
    chance: Tensor | float | None
    """The update probability, where the move is scaled."""


class _Turn(NamedTuple):
    """One step, from the moment its gradients are known."""

    number: int
    counts: bool
    ready: list[Member]
    held: list[_Held]


def _of_base(name: str) -> Any:
    """Return a property that is the base's attribute of this name."""
    return property(
        lambda self: getattr(self.base, name),
        lambda self, value: setattr(self.base, name, value),
        lambda self: delattr(self.base, name),
    )


class Masked(Optimizer):
    r"""The coin around any optimizer: a weight that is not drawn in a step stays where it was.

    Let :math:`b_j` be where the base would take the weight :math:`w_j` of parameter :math:`i` in
    step :math:`t`. With the numbers :math:`u` of :func:`stochbatch.uniform`,

    .. math::
        \chi_j &= 1 \text{ if } u(\text{seed}, t, i)_j < p_j \text{, else } 0 \\
        w_j &\leftarrow b_j \text{ if } \chi_j \text{, else } w_j

    and with ``rescale`` :math:`w_j + (b_j - w_j) / p_j` in place of :math:`b_j`. A weight is
    selected, never multiplied: it has the base's bits or its old ones, and a NaN does not reach
    a resting weight. The base's state (momentum, second moments) advances in every step. Masks
    are a function of seed, step and position: they agree on all ranks, whole or sharded (DDP,
    FSDP2), and continue after a resume.

    ``param_groups``, ``state`` and ``defaults`` are the base's. Give this optimizer to
    schedulers, clipping, ``GradScaler`` and checkpoints as you would give them the base, and
    call only its ``step``. The step counter is ``masked_steps`` in each parameter's state, an
    int on the host: a CUDA graph cannot replay a step. A step holds one extra copy of the masked
    parameters, and where the probability is adaptive and the move is scaled, their probabilities
    too. The mask takes the whole move: decoupled weight decay, as in AdamW, shrinks with the
    probability.

    Args:
        base: an optimizer, constructed. LBFGS is refused, and so are optimizers that keep weights
            in their state (ASGD, Lookahead, schedule-free ones) or have coins of their own.
        probability: a number in (0, 1], or None for the adaptive probability of
            :func:`stochbatch.update_probability`. With 1 this is the base, bit for bit.
        alpha: weight of a scalar's gradient size within its layer.
        lambd: weight of the layer's score among the layers it is compared with.
        cross_layer: the layer's score: ``"total"``, ``"mean"`` or ``"weighted"``.
        compare: the layers that are compared: those of one ``"kind"``, of one ``"type"`` (scale
            and shift of norms together), or ``"all"``. The kind comes from the group, or else
            from the number of dimensions, as for :class:`stochbatch.SBS`.
        coin: ``"scalar"``: a number :math:`u_j` for every scalar. ``"tensor"``: one for all
            scalars of a tensor, ``uniform(seed, step, index, ())``; with a fixed probability a
            tensor then moves as a whole or not at all. ``"none"``: the base's whole move, decay
            included, is scaled by :math:`p_j` (the control).
        rescale: divide the move by :math:`p_j`.
        exclude: parameters that are left to the base, out of every comparison: an iterable of
            parameters, or a function (name, parameter) that returns True for them. A parameter
            without a name is called by its index. Groups with ``"masked": False`` are left out
            too. All parameters have an index, also these.
        seed: seed of the coins, in [0, 2**64). Two wrappers need two seeds, or parameter k of
            both has the same coins.

    Example:
        >>> import torch, stochbatch
        >>> model = torch.nn.Linear(4, 2)
        >>> base = torch.optim.AdamW(model.parameters(), lr=1e-3)
        >>> optimizer = stochbatch.Masked(base, probability=0.5)
        >>> model(torch.ones(8, 4)).square().mean().backward()
        >>> optimizer.step()
        >>> optimizer.zero_grad()
        >>> optimizer.steps
        1

    Reference: Nakamura, Soatto, Hong 2020 for the adaptive probability; Lin et al., "Learning
    rate dropout", 2019, for a fixed one.
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        probability: float | None = 0.5,
        alpha: float = 0.1,
        lambd: float = -4.0,
        cross_layer: CrossLayer = "total",
        compare: Compare = "kind",
        coin: Coin = "scalar",
        rescale: bool = False,
        exclude: Exclude | None = None,
        seed: int = 0,
    ) -> None:
        _check_base(base)
        options = {
            "probability": probability,
            "alpha": alpha,
            "lambd": lambd,
            "cross_layer": cross_layer,
            "compare": compare,
            "coin": coin,
            "rescale": rescale,
            "exclude": _excluded(() if exclude is None else exclude),
            "seed": seed,
        }
        check_scheme(options)
        check_choice("coin", coin, get_args(Coin))
        check_bool("rescale", rescale)
        check_seed(seed)
        for member in members_of(base.param_groups):
            check_member(member.tensor, "Masked", sharded=True)
        self.__setstate__({"base": base, "_options": options})

    def __getstate__(self) -> dict[str, Any]:
        return {"base": self.base, "_options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.base: Optimizer = state["base"]
        self._options: dict[str, Any] = state["_options"]
        self._known = KnownShards()
        self._optimizer_step_pre_hooks = OrderedDict()
        self._optimizer_step_post_hooks = OrderedDict()
        self._patch_step_function()

    param_groups = _of_base("param_groups")
    state = _of_base("state")
    defaults = _of_base("defaults")
    _optimizer_state_dict_pre_hooks = _of_base("_optimizer_state_dict_pre_hooks")
    _optimizer_state_dict_post_hooks = _of_base("_optimizer_state_dict_post_hooks")
    _optimizer_load_state_dict_pre_hooks = _of_base("_optimizer_load_state_dict_pre_hooks")
    _optimizer_load_state_dict_post_hooks = _of_base("_optimizer_load_state_dict_post_hooks")
    # What GradScaler asks of an optimizer with a fused step, and tells it.
    _step_supports_amp_scaling = _of_base("_step_supports_amp_scaling")
    grad_scale = _of_base("grad_scale")
    found_inf = _of_base("found_inf")

    def state_dict(self) -> StateDict:
        """Return the base's ``state_dict``; its ``state`` has the step counter too."""
        return self.base.state_dict()

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load what :meth:`state_dict` returned, as the base does."""
        self.base.load_state_dict(state_dict)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients of all parameters."""
        self.base.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters to the base."""
        self.base.add_param_group(param_group)
        try:
            for tensor in self.param_groups[-1]["params"]:
                check_member(tensor, "Masked", sharded=True)
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise

    @property
    def steps(self) -> int:
        """Number of steps that counted; the next step's number."""
        states = (self.state.get(member.tensor, {}) for member in members_of(self.param_groups))
        return max((state.get(STEPS, 0) for state in states), default=0)

    @_disable_dynamo
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step; ``closure``, if given, is evaluated by the base."""
        turn: _Turn | None = None

        def evaluate() -> float | None:
            nonlocal turn
            loss = call_closure(closure)
            turn = turn or self._begin()  # a base that evaluates twice has moved by then
            return loss

        if closure is None:
            turn = self._begin()
            loss: float | None = self.base.step()
        else:
            loss = self.base.step(evaluate)  # type: ignore[arg-type]
        if turn is not None:
            self._end(turn)
        return loss

    def _begin(self) -> _Turn:
        """Decide about a step whose gradients are known, and hold the masked parameters."""
        members = list(members_of(self.param_groups))
        ready = [member for member in members if member.tensor.grad is not None]
        shards = self._known.of([m.tensor for m in members], [m.kind for m in members])
        # What GradScaler tells a fused base: to read it is to wait for the device, as GradScaler
        # itself does for any other base.
        found_inf = getattr(self.base, "found_inf", None)
        counts = bool(ready) and not (found_inf is not None and bool(found_inf))
        if rates_are_zero([member.group for member in ready or members]):
            counts = not _is_dummy(ready, shards) and counts
        turn = _Turn(self.steps, counts, ready, [])
        chosen = [member for member in ready if self._masks(member)] if counts else []
        fixed = self._options["probability"] is not None
        if not fixed and (counts or not ready) and not chosen:
            shards.listen()
        if chosen and self._options["probability"] != 1:
            scores = None if fixed else self._scores(chosen, shards)
            step = torch.tensor(turn.number, device=_here(chosen[0].tensor).device)
            indices = torch.tensor([member.number for member in chosen], device=step.device)
            keys = stream_keys(stream_roots(self._options["seed"], indices), step)
            for place, member in enumerate(chosen):
                key = keys[:, place].to(_here(member.tensor).device)
                turn.held.append(self._hold(member, key, scores and scores.of(place)))
        return turn

    def _masks(self, member: Member) -> bool:
        exclude = self._options["exclude"]
        if not member.tensor.numel() or not member.group.get("masked", True):
            return False
        if callable(exclude):
            return not exclude(member.name, member.tensor)
        return member.tensor not in exclude

    def _scores(self, members: Sequence[Member], shards: Shards) -> Scores:
        """Return what the layers' probabilities are made from."""
        for member in members:
            check_kind(member.kind)
        options = self._options
        grads = [_grad(member) for member in members]
        return scores_of(
            grads,
            compared([member.kind for member in members], options["compare"]),
            *(options["alpha"], options["lambd"], options["cross_layer"]),
            sizes=[real_view(member.tensor).numel() for member in members],
            total=lambda sums: _of_all_ranks(sums, members, grads, shards),
        )

    def _hold(self, member: Member, key: Tensor, scores: Scores | None) -> _Held:
        """Keep what is needed of a parameter when the base has moved it."""
        weight, chance = _here(member.tensor), self._options["probability"]
        grads = [] if scores is None else [_grad(member)]
        if self._options["rescale"] or self._options["coin"] == "none":
            if scores is not None:
                chance = torch.empty_like(weight, dtype=compute_dtype(weight.dtype))
                for piece in pieces([chance, *grads]):
                    piece.tensors[0].copy_(scores.probability(piece.tensors[1]))
            return _Held(member, key, weight.clone(), chance)
        # The base may change gradients (SGD with foreach and nesterov does), so coins fall now.
        # NaN marks where they came up, so that one tensor holds the mask and the old weights. (A
        # weight that is NaN already is NaN after any move too.)
        kept = torch.empty_like(weight)
        for numbers, (old, now, *grad) in self._draw(member, key, kept, weight, *grads):
            came_up = numbers < (chance if scores is None else scores.probability(*grad))
            old.copy_(torch.where(came_up, torch.nan, now))
        return _Held(member, key, kept, None)

    def _end(self, turn: _Turn) -> None:
        """Select or scale what the base has moved, and count the step."""
        for held in turn.held:
            self._settle(*held)
        moved = {member.tensor for member in turn.ready}
        for member in members_of(self.param_groups):
            # A base makes the state of a parameter with its first gradient, and only if there is
            # nothing in it yet.
            if member.tensor in moved or STEPS in self.state.get(member.tensor, ()):
                self.state[member.tensor][STEPS] = turn.number + turn.counts

    def _settle(
        self, member: Member, key: Tensor, kept: Tensor, chance: Tensor | float | None
    ) -> None:
        weight, dtype = _here(member.tensor), compute_dtype(kept.dtype)
        if chance is None:
            for piece in pieces([weight, kept]):
                new, old = piece.tensors
                new.copy_(torch.where(old.isnan(), new, old))
            return
        given = [chance] if isinstance(chance, Tensor) else []
        for numbers, (new, old, *own) in self._draw(member, key, weight, kept, *given):
            p = own[0] if own else chance
            factor = p if self._options["coin"] == "none" else 1.0
            factor = factor / p if self._options["rescale"] else factor
            # lerp, not old + factor * (new - old), is new to the last bit where the factor is 1
            scaled = torch.lerp(old.to(dtype), new.to(dtype), factor)
            new.copy_(torch.where(numbers < p, scaled, old))

    def _draw(
        self, member: Member, key: Tensor, *tensors: Tensor
    ) -> Iterator[tuple[Tensor, tuple[Tensor, ...]]]:
        """Yield the uniforms of a parameter piece by piece, with the pieces of these tensors."""
        single = torch.zeros((), dtype=torch.int32, device=tensors[0].device)
        if self._options["coin"] == "tensor":
            single = uniform_at(single, key[0], key[1], torch.float32)
        for piece in pieces(tensors, window_of(member.tensor)):
            scalar = self._options["coin"] == "scalar"
            yield uniforms(piece, key, torch.float32) if scalar else single, piece.tensors


def _here(tensor: Tensor) -> Tensor:
    """Return what is here of a parameter, as real numbers."""
    return real_view(local(tensor))


def _grad(member: Member) -> Tensor:
    """Return what is here of a parameter's gradient, as real numbers."""
    grad = member.tensor.grad
    assert grad is not None, "only parameters with a gradient are ready"
    if grad.layout != torch.strided:
        raise RuntimeError(
            f"an adaptive probability needs dense gradients, parameter {member.name} has a sparse "
            "one: exclude it, make its layer with sparse=False, or give a probability"
        )
    return real_grad(local_grad(member.tensor, grad))


def _is_dummy(ready: Sequence[Member], shards: Shards) -> bool:
    """Whether all gradients are zero, on all ranks, where all rates are.

    ``torch.distributed.checkpoint`` takes such a step to make an optimizer allocate its state.
    """
    if not ready:
        shards.listen()
        return False
    grads: list[Any] = [member.tensor.grad for member in ready]
    if any(grad.layout != torch.strided for grad in grads):
        return False
    grads = [_grad(member) for member in ready]
    dtype = accumulation_dtype(grads[0].device)
    sums = torch.stack([sums_of(grad).to(grads[0].device, dtype) for grad in grads], dim=1)
    return not bool(_of_all_ranks(sums, ready, grads, shards)[0].any())


def _of_all_ranks(
    sums: Tensor, members: Sequence[Member], grads: Sequence[Tensor], shards: Shards
) -> Tensor:
    """Return [2, layers]: sums over whole tensors, given those over what is here."""
    if not shards:
        return sums
    counts = [grad.numel() for grad in grads]
    return shards.total(sums, shards.seats([m.number for m in members], counts, sums))


def _check_base(base: object) -> None:
    """Raise unless this is an optimizer whose moves can be masked."""
    if not isinstance(base, Optimizer):
        given = f"the class {base.__name__}" if isinstance(base, type) else type(base).__name__
        raise TypeError(f"base must be an optimizer, constructed, got {given}")
    names = " ".join(kind.__name__ for kind in type(base).__mro__)
    reason = next((reason for part, reason in _REFUSED.items() if part in names), None)
    if reason is None and hasattr(base, "train") and hasattr(base, "eval"):
        reason = _KEEPS_WEIGHTS  # schedule-free, by another name
    if reason is not None:
        raise TypeError(f"Masked cannot wrap {type(base).__name__}: it {reason}")


def _excluded(exclude: Any) -> Callable[[str, Tensor], bool] | frozenset[Tensor]:
    """Return the function that says what is excluded, or the parameters that are."""
    if isinstance(exclude, Iterable) and not isinstance(exclude, Tensor):
        chosen = frozenset(exclude)
        if all(isinstance(tensor, Tensor) for tensor in chosen):
            return chosen
    elif callable(exclude) and not isinstance(exclude, torch.nn.Module):
        return exclude  # type: ignore[no-any-return]
    raise TypeError(
        "exclude must be an iterable of parameters or a function (name, parameter) -> bool, "
        f"got {type(exclude).__name__}"
    )
