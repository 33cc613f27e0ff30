"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

TEMPORARY = ".{name}.{unique}.tmp"
FORGOTTEN_AFTER = 24 * 3600.0
"""Seconds after which a temporary file is taken for one that a killed process left."""


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file under a temporary name, flush it to the disk, and rename it to ``path``.

    The temporary name is unique, so that two processes that write the same file cannot mix;
    the one that renames last wins.

    Args:
        path: the file; its folder exists.
        write: is given the open file.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from stochbatch.files import write_atomically
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_atomically(Path(folder, "a.txt"), lambda file: file.write(b"whole"))
        ...     [(path.name, path.read_bytes()) for path in Path(folder).iterdir()]
        [('a.txt', b'whole')]
    """
    temporary = path.with_name(TEMPORARY.format(name=path.name, unique=uuid.uuid4().hex))
    try:
        with temporary.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def remove_forgotten(folder: Path, after: float = FORGOTTEN_AFTER) -> None:
    """Remove temporary files that are too old, in seconds, to belong to a running process."""
    for path in folder.glob(TEMPORARY.format(name="*", unique="*")):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime >= after:
                path.unlink()
