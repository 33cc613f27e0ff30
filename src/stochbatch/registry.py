"""Named things with one line about each: what exists can be listed, and found by its name.

The names of this package's own things are here, the things themselves in the rooms: so all can be
listed without importing torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Generic, TypeVar

from stochbatch.plugins import adding, load_plugins

if TYPE_CHECKING:
    from stochbatch.data.catalogue import Dataset
    from stochbatch.nets import NetworkFactory
    from stochbatch.studies.grid import Study
    from stochbatch.training.lr_schedules import Schedule
    from stochbatch.training.methods import Method

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


@dataclass
class _Entry(Generic[T]):
    summary: str
    thing: T | None = None
    """None before the module that provides it is imported."""
    origin: str | None = None
    """The plugin that added it."""


class Registry(Mapping[str, T]):
    """What can be chosen by name, in the order of its registration.

    Plugins are imported when a name is unknown, or when all are listed.

    Args:
        noun: what the things are, for messages: ``"network"``.
        home: the module that provides this package's own things when it is imported.
        own: their names, with one line about each.
        finder: a module whose ``find`` returns what a name with a colon stands for, or None.

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

    def __init__(
        self, noun: str, home: str = "", own: Mapping[str, str] | None = None, finder: str = ""
    ) -> None:
        self.noun, self._home, self._finder = noun, home, finder
        self._entries = {name: _Entry[T](summary) for name, summary in (own or {}).items()}
        self._found: dict[str, _Entry[T]] = {}
        """What the finder found, which is not listed."""

    def add(self, name: str, summary: str, thing: T) -> T:
        """Register ``thing`` under ``name``; ``summary`` is one line about it."""
        if name in self._entries:
            raise ValueError(f"two {self.noun}s are called {name!r}")
        if (own := getattr(thing, "name", name)) != name:
            raise ValueError(f"the {self.noun} {own!r} cannot be registered as {name!r}")
        if not summary.strip() or "\n" in summary:
            raise ValueError(f"the summary of {name!r} must be one line, got {summary!r}")
        self._entries[name] = _Entry(summary, thing, adding())
        return thing

    def register(self, name: str, summary: str) -> Callable[[T], T]:
        """Return a decorator that registers what it decorates."""
        return lambda thing: self.add(name, summary, thing)

    def provide(self, name: str, thing: T) -> None:
        """Give the thing behind one of this package's own names."""
        self._entries[name].thing = thing

    def summary(self, name: str) -> str:
        """Return the one line about ``name``."""
        return self._entry(name).summary

    def origin(self, name: str) -> str | None:
        """Return the plugin that added ``name``, with its version; None if none did."""
        return self._entry(name).origin

    def __getitem__(self, name: str) -> T:
        """Return what is registered under ``name``."""
        entry = self._entry(name)
        if entry.thing is None:
            import_module(self._home)
        assert entry.thing is not None, f"nothing was provided for {name!r}"
        return entry.thing

    def _entry(self, name: str) -> _Entry[T]:
        if name not in self:
            near = hint(str(name).lower(), self._entries) or "."
            raise UnknownNameError(
                f"no {self.noun} is called {name!r}{near} There are: {', '.join(self._entries)}"
            )
        return self._entries.get(name) or self._found[name]

    def __contains__(self, name: object) -> bool:
        """Whether ``name`` is registered, or stands for something of one's own."""
        if name in self._entries or name in self._found:
            return True
        load_plugins()
        if self._finder and isinstance(name, str) and ":" in name and name not in self._entries:
            thing = import_module(self._finder).find(name)
            if thing is not None:
                self._found[name] = _Entry("Your own.", thing)
        return name in self._entries or name in self._found

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        load_plugins()
        return iter(self._entries)

    def __len__(self) -> int:
        """Return how many there are."""
        load_plugins()
        return len(self._entries)


METHODS: Registry[Method] = Registry(
    "method",
    "stochbatch.training.methods",
    {
        "sgd": "Stochastic gradient descent.",
        "sbs": "Stochastic batch size: every weight its own, random, adaptive batch size.",
        "sbs-mean-field": "The control of SBS: its probabilities without its coin.",
        "sbs-fixed-half": "SBS with a fair coin for every weight, whatever the gradients.",
        "dropout": "SGD on a network with dropout.",
        "adaptive-dropout": "SGD on a network whose dropout grows with depth (stochastic depth in "
        "ResNets).",
        "entropy-sgd": "Entropy-SGD: noisy inner steps, an outer step towards their average.",
        "acc-sgd": "Accelerated-SGD: a long average of the iterates pulls a short step along.",
        "alternating": "Alternating minimisation: each weight moves on one of every two batches.",
        "rmsprop": "RMSProp with the article's smoothing of 0.95 and a rate of 0.0001.",
        "adam": "Adam with a rate of 0.0001.",
        "adamw": "AdamW: Adam with decoupled weight decay.",
        "masked-adamw": "AdamW whose moves a fair coin lets through, weight by weight.",
    },
)

SCHEDULES: Registry[Schedule] = Registry(
    "schedule",
    "stochbatch.training.lr_schedules",
    {
        "sigmoid": "Falls along a sigmoid to end_lr (0.001): the article's choice.",
        "exponential": "Falls as exp(-decay e / E): exp(-0.05 e) over 100 epochs.",
        "staircase": "A tenth from half of the training on, a hundredth from 75 %.",
        "constant": "The learning rate stays as it is.",
        "cosine": "Falls along half a cosine to end_lr (0).",
        "warmup-cosine": "Rises over the first 5 % of the epochs, then falls like cosine.",
    },
)

NETWORKS: Registry[NetworkFactory] = Registry(
    "network",
    "stochbatch.nets",
    {
        "vgg11": "VGG11 with batch norm, 9.2 million parameters, 32x32 and larger.",
        "resnet18": "ResNet18 with a 3x3 stem, 11.2 million parameters.",
        "resnet50": "ResNet50 with a 3x3 stem, 23.5 million parameters.",
        "vgg_tiny": "Three convolutions for 8x8 digits, 94 thousand parameters.",
    },
    finder="stochbatch.nets.own_network",
)
"""The networks, each a factory."""

DATASETS: Registry[Dataset] = Registry(
    "data set",
    "stochbatch.data.catalogue",
    {
        "cifar10": "50,000 + 10,000 colour photographs of 32x32, ten classes of things.",
        "svhn": "73,257 + 26,032 colour photographs of house-number digits, 32x32.",
        "stl10": "5,000 + 8,000 colour photographs of 96x96, ten classes of things.",
        "digits": "1,352 + 445 grey handwritten digits of 8x8; comes with the package.",
    },
    finder="stochbatch.data.own_data",
)

STUDIES: Registry[Study] = Registry(
    "study",
    "stochbatch.studies.grid",
    {
        "lr-schedules": "Eight learning-rate schedules of SGD, RMSProp and Adam; two networks.",
        "batch-momentum": "Batch size and momentum of SGD; two networks.",
        "local-global": "SBS: alpha without the global scheme, lambda with it; two networks.",
        "partial-data": "SGD and SBS on a half, a quarter and an eighth of the data.",
        "comparison": "Six methods, four batch sizes, three networks, three data sets.",
        "printed-cell": "One cell of partial-data as printed, the control of SBS, and SGD tuned.",
        "readings": "SGD and SBS at five rates, and readings that the article leaves open.",
    },
)
"""The article's tables, each a study, `printed-cell` and `readings`."""
