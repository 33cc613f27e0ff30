"""Named things with one line about each: what exists can be listed, and found by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import TypeVar

from stochbatch.plugins import adding, load_plugins

T = TypeVar("T")


class UnknownNameError(KeyError, ValueError):
    """A name that is in no registry; the message has the nearest one, and all there are."""

    def __str__(self) -> str:  # KeyError would print the message in quotes
        return str(self.args[0])


def hint(name: str, known: Iterable[str]) -> str:
    """Return a question that asks for the nearest of the known names, or nothing.

    Example:
        >>> from stochbatch.registry import hint
        >>> hint("metod", ["method", "network"]), hint("colour", ["method"])
        (", did you mean 'method'?", '')
    """
    near = get_close_matches(name, list(known), n=1)
    return f", did you mean {near[0]!r}?" if near else ""


def check_settings(owner: str, known: Iterable[str], given: Iterable[str]) -> None:
    """Raise ``ValueError`` for the first name that ``owner`` has no setting of."""
    there = list(known)
    for name in given:
        if name not in there:
            raise ValueError(
                f"{owner} has no setting {name!r}{hint(name, there) or '.'} "
                f"It has: {', '.join(there) or 'none'}"
            )


class Registry(Mapping[str, T]):
    """What can be chosen by name, in the order of its registration.

    Plugins are imported when a name is not there, or when all are asked for.

    Args:
        noun: what the things are, for messages: ``"network"``.

    Example:
        >>> from stochbatch.registry import Registry
        >>> shapes = Registry("shape")
        >>> @shapes.register("square", "Four equal sides.")
        ... def square(side):
        ...     return side * side
        >>> shapes["square"](3)
        9
        >>> shapes.summary("square")
        'Four equal sides.'
        >>> shapes["sqare"]
        Traceback (most recent call last):
        ...
        stochbatch.registry.UnknownNameError: no shape is called 'sqare', did you mean 'square'? \
There are: square
    """

    def __init__(self, noun: str) -> None:
        self.noun = noun
        self._things: dict[str, T] = {}
        self._summaries: dict[str, str] = {}
        self._origins: dict[str, str | None] = {}

    def add(self, name: str, summary: str, thing: T) -> T:
        """Register ``thing`` under ``name``; ``summary`` is one line about it."""
        if name in self._things:
            raise ValueError(f"two {self.noun}s are called {name!r}")
        if not summary.strip() or "\n" in summary:
            raise ValueError(f"the summary of {name!r} must be one line, got {summary!r}")
        self._things[name] = thing
        self._summaries[name] = summary
        self._origins[name] = adding()
        return thing

    def register(self, name: str, summary: str) -> Callable[[T], T]:
        """Return a decorator that registers what it decorates."""
        return lambda thing: self.add(name, summary, thing)

    def summary(self, name: str) -> str:
        """Return the one line about ``name``."""
        self[name]
        return self._summaries[name]

    def origin(self, name: str) -> str | None:
        """Return the plugin that added ``name``, with its version; None if none did."""
        self[name]
        return self._origins[name]

    def there(self) -> list[T]:
        """Return what is registered by now; no plugin is imported for it."""
        return list(self._things.values())

    def __getitem__(self, name: str) -> T:
        """Return what is registered under ``name``."""
        if isinstance(name, str) and name in self:
            return self._things[name]
        near = hint(str(name).lower(), self._things) or "."
        raise UnknownNameError(
            f"no {self.noun} is called {name!r}{near} There are: {', '.join(self._things)}"
        )

    def __contains__(self, name: object) -> bool:
        """Whether ``name`` is registered."""
        if name not in self._things:
            load_plugins()
        return name in self._things

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        load_plugins()
        return iter(self._things)

    def __len__(self) -> int:
        """Return how many there are."""
        load_plugins()
        return len(self._things)
