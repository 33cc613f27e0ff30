"""A network of your own by ``module:function``, known in a trial by a hash of its source.

The function takes ``classes``, ``channels``, ``width``, ``dropout`` and ``dropout_rate`` by
keyword, or those of them that it has, and returns a module.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

DIGITS = 12
"""Hexadecimal digits of the hash of a module's file."""


def named(text: str) -> str:
    """Return the name of a network for a trial: ``module:function@hash``.

    Raises:
        ValueError: there is no such function.
    """
    reference, at, _ = text.partition("@")
    return text if at else f"{reference}@{_source_hash(_function(reference), reference)}"


def find(name: str) -> Callable[..., nn.Module] | None:
    """Return the factory of a network that a trial names, or None if it is no such name.

    Raises:
        ValueError: there is no such function, or its file has changed.
    """
    reference, at, wanted = name.partition("@")
    if ":" not in reference or not at:
        return None
    function = _function(reference)
    if (found := _source_hash(function, reference)) != wanted:
        raise ValueError(
            f"the network {reference} has changed: its file has the hash {found}, the trial has "
            f"{wanted}; for a new trial, leave out @{wanted}"
        )
    known = inspect.signature(function).parameters
    if any(each.kind is each.VAR_KEYWORD for each in known.values()):
        return function

    def make(**options: Any) -> nn.Module:
        usual = {"width": 1.0, "dropout": None, "dropout_rate": 0.5}
        for option, value in options.items():
            if option not in known and option in usual and value != usual[option]:
                raise ValueError(f"the network {reference} has no {option}, got {value!r}")
        return function(**{option: options[option] for option in options if option in known})

    return make


def _function(reference: str) -> Callable[..., nn.Module]:
    module, _, attribute = reference.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # as for `python -m`
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever somebody's module makes happen
        why = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"the network {reference} cannot be imported: {why}") from None
    if not callable(found):
        raise ValueError(f"the network {reference} is not a function")
    return found  # type: ignore[no-any-return]


def _source_hash(function: Callable[..., nn.Module], reference: str) -> str:
    file = getattr(sys.modules[reference.partition(":")[0]], "__file__", None)
    if file is None:
        raise ValueError(f"the network {reference} has no source file to be known by")
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:DIGITS]
