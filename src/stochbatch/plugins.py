"""What others add to the registries: methods, networks, data sets, schedules and studies.

An installed package adds its own by an entry point of the group ``stochbatch``, whose module
registers them when it is imported. A module, or a file, is named in the environment variable
``STOCHBATCH_PLUGINS``, several separated by commas. All are imported once per process, when a name
is unknown, or when names are listed.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import RLock

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
    global _begun, _failure, _adding
    with _lock:
        if not _begun:
            _begun = True  # first, as a plugin may look up names itself
            try:
                for _adding, load in _found():
                    _import(_adding, load)
            except PluginError as error:
                _failure = error
            finally:
                _adding = None
        if _failure is not None:
            raise _failure


def adding() -> str | None:
    """Return the plugin that is being imported, with its version; None if there is none."""
    return _adding


def _import(label: str, load: Callable[[], object]) -> None:
    try:
        load()
    except (Exception, SystemExit) as error:  # a plugin does not decide when the command ends
        what = str(error).splitlines()[0] if str(error) else "no message"
        raise PluginError(
            f"the plugin {label} cannot be imported: {type(error).__name__}: {what}"
        ) from error


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
        spec = find_spec(name.partition(".")[0])
        if spec is None:
            raise ImportError("there is no such module")
        folders = spec.submodule_search_locations
        files = [Path(spec.origin or "")]
        if folders:
            files = [path for each in folders for path in sorted(Path(each).rglob("*.py"))]
        return f"{name} {_digest(files)}", lambda: import_module(name)
    except (ImportError, OSError, ValueError) as error:
        raise PluginError(f"{VARIABLE} has {name!r}, which cannot be found: {error}") from error


def _digest(paths: list[Path]) -> str:
    content = b"".join(hashlib.sha256(path.read_bytes()).digest() for path in paths)
    return hashlib.sha256(content).hexdigest()[:_DIGITS]


def _import_file(path: Path) -> None:
    sys.path.append(str(path.resolve().parent))  # last: nothing else may be taken from there
    module = import_module(path.stem)
    if Path(getattr(module, "__file__", None) or "").resolve() != path.resolve():
        raise ImportError(f"there is a module {path.stem!r} already: give the file another name")
