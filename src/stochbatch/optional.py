"""Packages that not everybody needs, imported when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def optional(module: str, extra: str = "lab") -> Any:
    """Return a module by its full name, or say which extra of this package installs it.

    Example:
        >>> from stochbatch.optional import optional
        >>> optional("json").dumps([1, 2])
        '[1, 2]'
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise  # it is installed, but one of its own requirements is not
        raise ModuleNotFoundError(
            f"{module} is not installed; install it with: pip install 'stochbatch[{extra}]'",
            name=module,
        ) from error
