"""Members of a ``.tar.gz`` read into memory: nothing is ever unpacked to the disk.

So no member can land outside of a folder, and no half-unpacked folder can stay behind.
Members that are neither files nor folders, and names that lead elsewhere, are refused all
the same: an archive that has them is not what it claims to be. Reading stops at the last
member that was asked for; what lies behind it is not looked at.
"""

from __future__ import annotations

import gzip
import posixpath
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from stochbatch.data.errors import FormatError

BUFFER = 1 << 20


def read_members(path: Path, names: Sequence[str]) -> dict[str, bytes]:
    """Return the contents of some members of an archive.

    Args:
        path: a ``.tar.gz`` file.
        names: the members' names.

    Returns:
        The contents by name.

    Raises:
        FormatError: the archive is cut short or damaged, lacks a member, has one of them
            twice, or holds a link, a device or a name that leads out of a folder.
    """
    found: dict[str, bytes] = {}
    try:
        # A stream, since going back in a compressed file means to decompress it again.
        with (
            gzip.open(path) as plain,
            tarfile.open(fileobj=plain, mode="r|", bufsize=BUFFER) as archive,
        ):
            for member in archive:
                name = _safe_name(member, path)
                if name in names:
                    found[name] = _content(archive, member, name in found, path)
                if len(found) == len(names):
                    break
    except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
        raise FormatError(
            f"{path} is cut short, damaged or no .tar.gz archive ({error}); fetch it again"
        ) from error
    missing = [name for name in names if name not in found]
    if missing:
        raise FormatError(f"{path} has no member {', '.join(missing)}; fetch it again")
    return found


def _safe_name(member: tarfile.TarInfo, path: Path) -> str:
    name = member.name
    if name.startswith("/") or ".." in name.split("/"):
        raise FormatError(f"{path} has a member that leads out of its folder: {name!r}; refused")
    if not (member.isreg() or member.isdir()):
        raise FormatError(
            f"{path} has a member that is neither a file nor a folder: {name!r}; refused"
        )
    return posixpath.normpath(name)


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo, again: bool, path: Path) -> bytes:
    if again:
        raise FormatError(f"{path} has the member {member.name!r} twice; refused")
    file = archive.extractfile(member)
    if file is None:
        raise FormatError(f"{path}: {member.name!r} is a folder, a file is expected")
    return file.read()
