"""Which files of a folder a report made, so that the next one takes away what it does not make.

``report-manifest.json`` has the SHA-256 of every file but the page. A file goes only if it is
listed there and has not been changed since: whatever somebody else put into the folder stays.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from stochbatch.data.atomic import write_atomically

MANIFEST = "report-manifest.json"
FIGURES = "figures"
NAME = re.compile(rf"({FIGURES}/)?[\w.-]+\.(csv|md|tex|png|pdf)", re.ASCII)
"""Of the files that a report makes; a manifest that names others is not believed."""


def read_manifest(folder: Path) -> dict[str, str]:
    """Return hashes by name; nothing if there is no manifest that can be believed."""
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        return {name: digest for name, digest in files.items() if NAME.fullmatch(name)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def write_manifest(folder: Path, files: Mapping[str, str]) -> None:
    """Replace the manifest."""
    text = json.dumps({"schema_version": 1, "files": dict(sorted(files.items()))}, indent=1)
    write_atomically(folder / MANIFEST, lambda file: file.write(f"{text}\n".encode()))


def remove_old(folder: Path, listed: Mapping[str, str], kept: Iterable[str]) -> None:
    """Remove what an earlier report made, unless it is kept or was changed since."""
    for name in listed.keys() - set(kept):
        path = folder / name
        # What cannot be read or removed stays: it does no harm.
        with suppress(OSError):
            linked = path.is_symlink() or path.parent.is_symlink()
            if not linked and digest(path.read_bytes()) == listed[name]:
                path.unlink()


def digest(content: bytes) -> str:
    """Return the SHA-256 in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()
