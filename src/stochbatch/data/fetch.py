"""Downloads: each file whole and with the published SHA-256, or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from stochbatch.data.catalogue import Dataset, SourceFile, entry_of
from stochbatch.data.data_errors import DownloadError
from stochbatch.data.folder import data_root, find, hash_error, sha256_of
from stochbatch.optional import optional


def get(
    name: str | Dataset, root: str | os.PathLike[str] | None = None, progress: bool = True
) -> list[Path]:
    """Download the files of a data set that are not there yet.

    A download goes to a temporary name and is renamed when its SHA-256 is right. If it is
    stopped, the next call starts with the first file that is not complete.

    Args:
        name: name of the data set, or an entry like those in `DATASETS`.
        root: the folder of all data, see `data_root`.
        progress: whether to show a progress bar.

    Returns:
        The files' paths; none for data that need no download.

    Raises:
        DownloadError: a file could not be fetched, or the downloaded file is not the published one.
        HashError: a file exists and is not the published one; it is left as it is.

    Example:
        >>> from stochbatch import data
        >>> data.get("digits")
        []
    """
    entry = entry_of(name)
    folder = data_root(root)
    return [_get_file(entry, file, folder, progress) for file in entry.files]


def _get_file(entry: Dataset, file: SourceFile, root: Path, progress: bool) -> Path:
    path = find(entry, file, root)
    if path is None:
        return _download(file, root / entry.name, progress)
    found = sha256_of(path)
    if found != file.sha256:
        raise hash_error(
            file, path, found, "It is left as it is: move it away, and ask for it again."
        )
    return path


class _AtMost:
    """A file that takes no more bytes than it should have, whatever a server sends."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file, self.size = file, size
        self.flush = file.flush

    def write(self, content: bytes) -> None:
        if self.file.tell() + len(content) > self.size:
            raise OSError(f"the server sends more than the published {self.size:,} bytes")
        self.file.write(content)


def _download(file: SourceFile, folder: Path, progress: bool) -> Path:
    pooch = optional("pooch")
    pooch.get_logger().setLevel("INFO" if progress else "WARNING")
    path = folder / file.name
    try:
        known = f"sha256:{file.sha256}"
        inner = pooch.downloaders.choose_downloader(file.url, progressbar=progress)

        def download(url: str, path: str, _: object) -> None:
            with open(path, "wb") as output:
                inner(url, _AtMost(output, file.size), None)

        pooch.retrieve(file.url, known, file.name, folder, downloader=download)
        # pooch makes files that only their owner reads; data are for whoever reads the folder.
        with suppress(OSError):  # some file systems have no such rights
            path.chmod(folder.stat().st_mode & 0o666)
    except (OSError, ValueError) as error:  # requests' errors are OSErrors, a wrong hash is a value
        raise DownloadError(
            f"could not fetch {file.name} from {file.url}: {error} -- "
            f"To put it there by hand: SHA-256 {file.sha256}, {file.size:,} bytes, "
            f"into the folder {folder}"
        ) from error
    return path
