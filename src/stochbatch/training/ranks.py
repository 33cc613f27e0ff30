"""The processes that train one trial together: what they do in turn, and what they agree on.

Every method that talks to the others must be called by all of them, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, distributed, nn

from stochbatch.training.checkpoint import from_bytes, to_bytes
from stochbatch.training.errors import Interrupted, RunError
from stochbatch.training.launch import decide_who_tells

T = TypeVar("T")


def _as_it_is(value: Any) -> Any:
    return value


class Wishes(NamedTuple):
    """What a process wants all of them to do after a step."""

    stop: int = 0
    """The number of the signal that asks for it, or 0."""
    save: bool = False


class Ranks:
    """One process that trains alone. :class:`Several` has the same methods for many.

    Example:
        >>> from stochbatch.training.ranks import Ranks
        >>> alone = Ranks()
        >>> alone.is_first, alone.count, alone.do_first(lambda: "done")
        (True, 1, 'done')
    """

    rank = 0
    count = 1
    device: torch.device | None = None
    """Where this process trains, if that is decided by its place among the others."""
    saved: str | None = None
    """What is safe, in words, for the case that another process dies."""

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes and shows."""
        return self.rank == 0

    def do_first(
        self,
        work: Callable[[], T],
        pack: Callable[[T], Any] = _as_it_is,
        unpack: Callable[[Any], T] = _as_it_is,
    ) -> T:
        """Let the first process do something, and return what it gave in all of them.

        Args:
            work: what to do; if it fails, it fails in all of them.
            pack: makes tensors, numbers, texts, and lists and dicts of them from the outcome.
            unpack: makes the outcome of these in the other processes.
        """
        return work()

    def do_all(self, work: Callable[[], T]) -> T:
        """Do something in every process; if it fails in one, it fails in all."""
        return work()

    def in_turn(self, work: Callable[[], T]) -> T:
        """Do something in the first process, and then, with what it left, in the others."""
        return work()

    def check_same(self, fact: str, otherwise: str) -> None:
        """Raise in all processes, saying ``otherwise``, if they do not have the same fact."""

    def agree(self, wishes: Wishes) -> Wishes:
        """Return what all do, given what this process wishes: what anyone of them wished."""
        return wishes

    def forget_wishes(self) -> None:
        """Take back what was wished and is not yet agreed on: it was done."""

    def interrupted(self, signal_number: int, folder: Path) -> Interrupted:
        """Return the error of an agreed stop, which the first process tells."""
        self.forget_wishes()
        stop = Interrupted(signal_number, folder)
        stop.told = not self.is_first
        return stop

    def sum(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Return the sums of all processes' tensors, exact for whole numbers."""
        return list(parts)

    def copy_buffers(self, network: nn.Module) -> None:
        """Give all processes the first one's buffers: running statistics."""


class Several(Ranks):
    """A process among several that train together.

    Args:
        rank: its number.
        count: how many there are.
        device: where it trains.
        control: a group of all of them, on the CPU, for everything that is no gradient.
    """

    def __init__(
        self, rank: int, count: int, device: torch.device, control: distributed.ProcessGroup
    ) -> None:
        self.rank, self.count, self.device = rank, count, device
        self._control = control
        self._wished: tuple[Tensor, distributed.Work] | None = None

    def do_first(
        self,
        work: Callable[[], T],
        pack: Callable[[T], Any] = _as_it_is,
        unpack: Callable[[Any], T] = _as_it_is,
    ) -> T:
        """Let the first process do something, and return what it gave in all of them."""
        if not self.is_first:
            message = from_bytes(self._spread(b""), self.device or "cpu")
            if message["error"] is not None:
                raise _told_elsewhere(message["error"])
            return unpack(message["value"])
        try:
            value = work()
            content = to_bytes({"error": None, "value": pack(value)})
        except Exception as error:
            decide_who_tells(error)  # before the others know
            self._spread(to_bytes({"error": _text(error), "value": None}))
            raise
        self._spread(content)
        return value

    def do_all(self, work: Callable[[], T]) -> T:
        """Do something in every process; if it fails in one, it fails in all."""
        try:
            value = work()
        except Exception as error:
            decide_who_tells(error)
            self._gather(_text(error))
            raise
        failed = [text for text in self._gather("") if text]
        if failed:
            raise _told_elsewhere(failed[0])
        return value

    def in_turn(self, work: Callable[[], T]) -> T:
        """Do something in the first process, and then, with what it left, in the others."""
        done: list[T] = []
        self.do_first(lambda: done.append(work()))
        self.do_all(lambda: None if done else done.append(work()))
        return done[0]

    def check_same(self, fact: str, otherwise: str) -> None:
        """Raise in all processes, saying ``otherwise``, if they do not have the same fact."""
        if len(set(self._gather(fact))) > 1:
            raise RunError(f"the processes of this training {otherwise}")

    def agree(self, wishes: Wishes) -> Wishes:
        """Return what anyone wished one call ago.

        The wishes of this call travel while the next step is computed, so that no process
        waits for another's; all of them learn of a wish after the same step.
        """
        tensor = torch.tensor(wishes, dtype=torch.int64)
        work = distributed.all_reduce(
            tensor, distributed.ReduceOp.MAX, group=self._control, async_op=True
        )
        before, self._wished = self._wished, (tensor, work)
        if before is None:
            return Wishes()
        before[1].wait()
        stop, save = before[0].tolist()
        return Wishes(stop, bool(save))

    def forget_wishes(self) -> None:
        """Take back what was wished and is not yet agreed on: it was done."""
        if self._wished is not None:
            self._wished[1].wait()
            self._wished = None

    def sum(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Return the sums of all processes' tensors, exact for whole numbers."""
        sums = []
        for part in parts:
            total = part.detach().to("cpu", copy=True)
            distributed.all_reduce(total, group=self._control)
            sums.append(total.to(part.device))
        return sums

    def copy_buffers(self, network: nn.Module) -> None:
        """Give all processes the first one's buffers: running statistics."""
        for buffer in network.buffers():
            distributed.broadcast(buffer, 0)

    def _spread(self, content: bytes) -> bytes:
        """Return the first process's bytes."""
        size = torch.tensor([len(content)])
        distributed.broadcast(size, 0, group=self._control)
        if self.is_first:
            data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        else:
            data = torch.empty(int(size), dtype=torch.uint8)
        distributed.broadcast(data, 0, group=self._control)
        return data.numpy().tobytes()

    def _gather(self, text: str) -> list[str]:
        """Return the texts of all processes, in their order."""
        content = text.encode()
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.count)]
        distributed.all_gather(sizes, torch.tensor([len(content)]), group=self._control)
        longest = max(1, *(int(size) for size in sizes))
        padded = torch.frombuffer(bytearray(content.ljust(longest, b"\0")), dtype=torch.uint8)
        parts = [torch.empty_like(padded) for _ in range(self.count)]
        distributed.all_gather(parts, padded, group=self._control)
        return [
            part.numpy().tobytes()[: int(size)].decode()
            for part, size in zip(parts, sizes, strict=True)
        ]


def _told_elsewhere(text: str) -> RunError:
    error = RunError(text)
    error.told = True
    return error


def _text(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
