"""Where data files lie, and whether they are the published ones."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from stochbatch.data.catalogue import Dataset, SourceFile
from stochbatch.data.data_errors import HashError

ROOT_VARIABLE = "STOCHBATCH_DATA"
BLOCK = 1 << 20


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of all data, which need not exist.

    It is ``root`` if that is given, else the environment variable ``STOCHBATCH_DATA`` has it, else
    it is ``stochbatch/data`` in the user's cache folder (``XDG_CACHE_HOME``, or ``~/.cache``).

    Example:
        >>> from stochbatch.data.folder import data_root
        >>> data_root("pictures").as_posix()
        'pictures'
    """
    if root is None:
        root = os.environ.get(ROOT_VARIABLE) or None
    if root is not None:
        return Path(root).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "stochbatch" / "data"


def find(entry: Dataset, file: SourceFile, root: Path) -> Path | None:
    """Return where a file lies: in the data set's folder, or in ``root`` itself; or None."""
    places = root / entry.name / file.name, root / file.name
    return next((path for path in places if path.is_file()), None)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def hash_error(file: SourceFile, path: Path, found: str, remedy: str) -> HashError:
    """Return the error that ``path`` is not the published file."""
    return HashError(
        f"{path} is not the published file: "
        f"SHA-256 {found} ({path.stat().st_size:,} bytes), "
        f"expected {file.sha256} ({file.size:,} bytes). {remedy}"
    )
