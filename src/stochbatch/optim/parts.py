r"""What the processes that hold parts of parameters tell each other: one collective a step.

Before a step, each process adds up \|g\| over its parts. All parts of all parameters
together make one message, and what comes back is the same on every process, so that all of
them decide alike.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stochbatch.optim.kernels.eager import Account, account, record
from stochbatch.optim.optimizer import Member
from stochbatch.optim.pieces import Window
from stochbatch.optim.probability import accumulation_dtype
from stochbatch.optim.roster import Layer, Roster
from stochbatch.optim.shards import local, window_of

SUM, SQUARES, COUNT, CHANCES, BATCHES = range(5)
"""Rows of a message: sum and squared deviations of a part's gradients, its number of elements,
and the sums of probabilities and batches of the step before."""

ABSENT = -1.0
"""Number of elements where there is no gradient. (A part that is empty has 0.)"""


class Parts:
    """The parameters of an optimizer that are cut into parts, and what is told of them.

    Args:
        members: all parameters of the optimizer, the same on every process.
    """

    def __init__(self, members: Iterable[Member]) -> None:
        members = list(members)
        found = {member.number: (member.tensor, window_of(member.tensor)) for member in members}
        cut = {number: (tensor, window) for number, (tensor, window) in found.items() if window}
        self.windows: dict[int, Window] = {number: window for number, (_, window) in cut.items()}
        """Where each part lies, by the number of its parameter."""
        self._columns = {number: column for column, number in enumerate(cut)}
        self._tensors = [tensor for tensor, _ in cut.values()]
        self._everyone = _Everyone(self._tensors) if cut else None
        self._fingerprint = _fingerprint(members)
        self._seating: _Seating | None = None
        self._told: _Told | None = None

    def __bool__(self) -> bool:
        return self._everyone is not None

    def listen(self) -> None:
        """Take part in the collective of a step that finds no gradient in this process."""
        if self._everyone is not None:
            self._exchange(self._blank(local(self._tensors[0]).device), check=True)

    def _blank(self, device: torch.device) -> Tensor:
        """Return a message that says nothing of any parameter; its last column says of which."""
        dtype = accumulation_dtype(device)
        message = torch.zeros(5, len(self._columns) + 1, dtype=dtype, device=device)
        message[COUNT] = ABSENT
        message[SUM, -1] = self._fingerprint
        return message

    def whole_sums(self, layers: Sequence[Layer], roster: Roster, sums: Tensor) -> Tensor:
        """Return sum and squared deviations of the whole layers' |g|, given those of what is here.

        The step before enters the layers' accounts on the way.
        """
        if self._everyone is None:
            return sums
        former, seating = self._seating, self._seat(layers, roster, sums.device)
        message = self._blank(sums.device)
        message[: SQUARES + 1, seating.columns] = sums[:, seating.places].to(message)
        message[COUNT, seating.columns] = seating.counts.to(message.dtype)
        check = _may_look(sums.device) or former is not seating
        everyone = self._exchange(message, check)
        whole = _combined(everyone[:, :, seating.columns], roster.layers.size[seating.places])
        if not check:
            # Where some have a gradient and others none, nobody may move: those that look say so.
            whole = torch.where(_differ(everyone), torch.nan, whole)
        return sums.index_copy(1, seating.places, whole.to(sums))

    def _exchange(self, message: Tensor, check: bool) -> Tensor:
        assert self._everyone is not None
        told, self._told = self._told, None
        if told is not None:
            message[CHANCES:, told.columns] = told.sums.T.to(message)
        raw = self._everyone.gather(message)
        if check:
            _check(raw)
        everyone = self._everyone.each_part_once(raw[:, :, :-1])
        if told is not None:
            sums = everyone[:, CHANCES:, told.columns].sum(dim=0).T
            record(told.accounts, sums.to(told.sizes.device), told.sizes, told.counts)
        return everyone

    def tell(self, layers: Sequence[Layer], roster: Roster, sums: Tensor, counts: Tensor) -> None:
        """Enter a step into the layers' accounts: of whole ones now, of parts with the next step.

        Args:
            layers: what moved.
            roster: facts about them.
            sums: of their probabilities and batches, one row a layer.
            counts: whether the step counted.
        """
        sizes, accounts = roster.layers.size, [account(layer) for layer in layers]
        if self._everyone is None:
            record(accounts, sums, sizes, counts)
            return
        seating = self._seat(layers, roster, sizes.device)
        cut = [place for place, layer in enumerate(layers) if layer.window]
        if len(cut) < len(layers):
            rest = seating.rest
            whole = [own for own, layer in zip(accounts, layers, strict=True) if not layer.window]
            record(whole, sums[rest], sizes[rest], counts)
        if not cut:  # nobody has anything of them to tell: all have the same gradients
            return
        self._told = _Told(
            [accounts[place] for place in cut],
            seating.columns,
            sums[seating.places],
            sizes[seating.places],
            counts,
        )

    def _seat(self, layers: Sequence[Layer], roster: Roster, device: torch.device) -> _Seating:
        if self._seating is None or self._seating.roster is not roster:
            cut = [place for place, layer in enumerate(layers) if layer.window]
            rest = [place for place, layer in enumerate(layers) if not layer.window]
            columns = [self._columns[layers[place].index] for place in cut]
            counts = [layers[place].grad.numel() for place in cut]
            numbers = (
                torch.tensor(each, dtype=torch.int64, device=device)
                for each in (cut, columns, counts, rest)
            )
            self._seating = _Seating(roster, *numbers)
        return self._seating


class _Seating(NamedTuple):
    """Which of a step's layers stand in which column of a message."""

    roster: Roster
    places: Tensor
    columns: Tensor
    counts: Tensor
    """Number of elements of each part."""
    rest: Tensor
    """Places of the layers that are whole."""


class _Told(NamedTuple):
    """What a step did to the parts that are here; told to the others with the next one."""

    accounts: list[Account]
    columns: Tensor
    sums: Tensor
    sizes: Tensor
    counts: Tensor


class _Everyone:
    """All processes that hold parts of these tensors."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        self._mesh = max((tensor.device_mesh for tensor in tensors), key=lambda mesh: mesh.size())
        self._ranks: list[int] = self._mesh.mesh.flatten().tolist()
        for tensor in tensors:
            if not set(tensor.device_mesh.mesh.flatten().tolist()) <= set(self._ranks):
                raise ValueError(
                    "parameters lie on meshes of which none contains the others: "
                    f"{tensor.device_mesh} and {self._mesh}"
                )
        self._groups = self._find_groups()
        order = self._ranks
        if len(self._groups) == 1:
            order = _distributed().get_process_group_ranks(self._groups[0])
        self._of_one_copy = torch.stack([_of_one_copy(tensor, order) for tensor in tensors], dim=1)

    def _find_groups(self) -> list[Any]:
        """Return groups that, gathered along one after the other, reach all processes.

        None is made here: to make one, NCCL may want processes that know nothing of this mesh.
        """
        distributed = _distributed()
        if len(self._ranks) == distributed.get_world_size():
            return [distributed.group.WORLD]
        # The last first, so that all come in the order of the mesh.
        return [self._mesh.get_group(axis) for axis in reversed(range(self._mesh.ndim))]

    def gather(self, message: Tensor) -> Tensor:
        """Return what every process says: processes x rows x columns."""
        home, wire = message.device, message
        if home.type != self._mesh.device_type:  # parameters that wait on the host
            wire = message.to(self._mesh.device_type)
        for group in self._groups:
            count = _distributed().get_world_size(group)
            result = wire.new_empty(count * len(wire), wire.shape[1])
            _gather(result, wire, group)
            wire = result
        return wire.to(home).view(len(self._ranks), *message.shape)

    def each_part_once(self, everyone: Tensor) -> Tensor:
        """Return what is said with zeros where a process has a part that another has too."""
        self._of_one_copy = self._of_one_copy.to(everyone.device)
        return torch.where(self._of_one_copy[:, None], everyone, 0.0)


def _may_look(device: torch.device) -> bool:
    """Return whether to look costs nothing. On a GPU it is to wait: only when something changed."""
    return device.type == "cpu"


def _fingerprint(members: Sequence[Member]) -> int:
    """Return a number of 32 bits that is the same for the same parameters in the same order."""
    facts = [(member.number, member.kind, tuple(member.tensor.shape)) for member in members]
    return zlib.crc32(repr(facts).encode())


def _check(everyone: Tensor) -> None:
    """Raise, in all processes alike, if they do not step with the same parameters."""
    if (everyone[:, SUM, -1] != everyone[0, SUM, -1]).any():
        raise RuntimeError(
            "the optimizers of these processes have different parameters, or another order of them"
        )
    if _differ(everyone[:, :, :-1]):
        raise RuntimeError(
            "some processes have no gradient where others have one: of a sharded parameter all "
            "of them must have one, or none"
        )


def _differ(everyone: Tensor) -> Tensor:
    """Return whether some processes have a gradient that others have not."""
    counts = everyone[:, COUNT]
    return ((counts < 0).any(dim=0) & (counts >= 0).any(dim=0)).any()


def _of_one_copy(tensor: Any, order: Sequence[int]) -> Tensor:
    """Return for each process whether its part of a tensor counts: of equal parts one does."""
    ranks = tensor.device_mesh.mesh
    for axis, placement in enumerate(tensor.placements):
        if placement.is_replicate():
            ranks = ranks.narrow(axis, 0, 1)
    counted = set(ranks.flatten().tolist())
    return torch.tensor([rank in counted for rank in order])


def _combined(everyone: Tensor, sizes: Tensor) -> Tensor:
    """Return sum and squared deviations of whole tensors' |g|, from those of their parts.

    Added up in the order of the processes: all of them get the same bits.
    """
    totals, squares = everyone[:, SUM], everyone[:, SQUARES]
    counts = everyone[:, COUNT].clamp(min=0)
    total = totals.sum(dim=0)
    # Chan, Golub, LeVeque 1979, as for the pieces of one tensor.
    apart = totals / counts.clamp(min=1) - total / sizes
    return torch.stack((total, (squares + counts * apart * apart).sum(dim=0)))


def _gather(result: Tensor, message: Tensor, group: Any) -> None:
    distributed = _distributed()
    # The older name warns where there is the newer one.
    newer = getattr(distributed, "all_gather_single", None)
    (newer or distributed.all_gather_into_tensor)(result, message, group=group)


def _distributed() -> Any:
    import torch.distributed

    return torch.distributed
