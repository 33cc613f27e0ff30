"""Errors of data files; every message names the file and what to do."""

from __future__ import annotations


class DataError(Exception):
    """Something is wrong with a data set's files."""


class MissingFileError(DataError, FileNotFoundError):
    """A source file is not in the data folder."""


class HashError(DataError):
    """A source file is not the published one."""


class FormatError(DataError):
    """A source file does not have the layout, the number of images or the labels it should."""


class DownloadError(DataError, OSError):
    """A file could not be fetched."""


class CacheWarning(UserWarning):
    """A cache could not be read or written; the data are read from their source instead."""
