"""What others add to the registries: methods, networks, data sets, schedules and studies.

An installed package adds its own by an entry point of the group ``stochbatch``, whose module
registers them when it is imported. A module, or a file, is named in the environment variable
``STOCHBATCH_PLUGINS``, several separated by commas. All are imported once per process, when a name
is unknown, or when names are listed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from threading import RLock
from types import ModuleType

GROUP = "stochbatch"
VARIABLE = "STOCHBATCH_PLUGINS"
_DIGITS = 12

_lock = RLock()
_begun = False
_failure: PluginError | None = None
_adding: str | None = None


class PluginError(ValueError):
    """A plugin that cannot be imported."""


def load_plugins() -> None:
    """Import all plugins, if that has not been done yet.

    Raises:
        PluginError: one of them cannot be imported; it is raised again the next time.
    """
    global _begun, _failure
    with _lock:
        if _failure is not None:
            raise _failure
        if _begun:  # a plugin may look up names itself
            return
        _begun = True
        try:
            for label, load in _found():
                _load(label, load)
        except PluginError as error:
            _failure = error
            raise
        except BaseException:
            _begun = False
            raise


def adding() -> str | None:
    """Return the plugin that is being imported, with its version; None if there is none."""
    return _adding


def _load(label: str, load: Callable[[], object]) -> None:
    try:
        with _named(label):
            load()
    except (Exception, SystemExit) as error:  # a plugin does not decide when the command ends
        what = str(error).splitlines()[0] if str(error) else "no message"
        raise PluginError(
            f"the plugin {label} cannot be imported: {type(error).__name__}: {what}"
        ) from error


@contextmanager
def _named(label: str) -> Iterator[None]:
    global _adding
    before, _adding = _adding, label
    try:
        yield
    finally:
        _adding = before


def _found() -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the plugins in an order that does not change: their labels, and what imports them."""
    from importlib.metadata import entry_points

    installed = {
        (point.dist.name if point.dist else "", point.name): point
        for point in entry_points(group=GROUP)
    }
    for (package, name), point in sorted(installed.items()):
        version = point.dist.version if point.dist else ""
        yield f"{package or name} {version}".strip(), point.load
    for text in os.environ.get(VARIABLE, "").split(","):
        if name := text.strip():
            yield _own(name)


def _own(name: str) -> tuple[str, Callable[[], object]]:
    """Return label and import of a file or module; the label has the hash of what it says."""
    try:
        if name.endswith(".py"):
            path = Path(name)
            return f"{path.name} {_digest([path])}", lambda: _import_file(path)
        # Of the package that it is in: to look for a part of it would import it.
        spec = importlib.util.find_spec(name.partition(".")[0])
        if spec is None:
            raise ImportError("there is no such module")
        digest = _digest(_sources(spec))
    except (ImportError, OSError, ValueError) as error:
        raise PluginError(f"{VARIABLE} has {name!r}, which cannot be found: {error}") from error
    return f"{name} {digest}", lambda: importlib.import_module(name)


def _sources(spec: ModuleSpec) -> list[Path]:
    """Return the files of a module, or all those of a package."""
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    if folders:
        return [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    return [Path(spec.origin)] if spec.has_location and spec.origin else []


def _digest(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:_DIGITS]


def _import_file(path: Path) -> None:
    name = path.stem
    there = sys.modules.get(name)
    if there is not None and _is_of(there, path):
        return  # somebody has imported it: what it registers is registered
    if there is not None:
        raise ImportError(f"there is a module {name!r} already: give the file another name")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # as its classes and functions say where they are from
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def _is_of(module: ModuleType, path: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).resolve() == path.resolve()
