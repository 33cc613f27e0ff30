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
from typing import Any

from stochbatch.files import write_atomically

MANIFEST = "report-manifest.json"
FIGURES = "figures"
NAME = re.compile(rf"({FIGURES}/)?[\w.-]+\.(csv|md|tex|png|pdf)", re.ASCII)
"""Of the files that a report makes; a manifest that names others is not believed."""


Hashes = dict[str, set[str]]
"""What each file may contain: of a report that was killed, the old content or the new one."""


def read_manifest(folder: Path) -> Hashes:
    """Return hashes by name; nothing if there is no manifest that can be believed."""
    found: Hashes = {}
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        for name, digest in manifest["files"].items():
            found.setdefault(name, set()).add(digest)
        for name, digests in manifest.get("before", {}).items():
            found.setdefault(name, set()).update(digests)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {name: digests for name, digests in found.items() if NAME.fullmatch(name)}


def write_manifest(folder: Path, files: Mapping[str, str], before: Hashes | None = None) -> None:
    """Replace the manifest; ``before`` is of files that are about to be replaced or removed."""
    content: dict[str, Any] = {"schema_version": 1, "files": dict(sorted(files.items()))}
    if before:
        content["before"] = {name: sorted(digests) for name, digests in sorted(before.items())}
    text = json.dumps(content, indent=1)
    write_atomically(folder / MANIFEST, lambda file: file.write(f"{text}\n".encode()))


def remove_old(folder: Path, listed: Hashes, kept: Iterable[str]) -> None:
    """Remove what an earlier report made, unless it is kept or was changed since."""
    for name in listed.keys() - set(kept):
        path = folder / name
        # What cannot be read or removed stays: it does no harm.
        with suppress(OSError):
            linked = path.is_symlink() or path.parent.is_symlink()
            if not linked and digest(path.read_bytes()) in listed[name]:
                path.unlink()


def digest(content: bytes) -> str:
    """Return the SHA-256 in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()
