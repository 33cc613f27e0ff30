"""The article's data sets, and smaller ones: fetched, verified, read, cached."""

from __future__ import annotations

from stochbatch.data.batches import Batches, Normalisation
from stochbatch.data.catalogue import DATASETS, Dataset, Part, SourceFile
from stochbatch.data.drawing import Augmentation, epoch_order, subset
from stochbatch.data.errors import (
    CacheWarning,
    DataError,
    DownloadError,
    FormatError,
    HashError,
    MissingFileError,
)
from stochbatch.data.fetch import get
from stochbatch.data.folders import FileReport, check, data_root
from stochbatch.data.loader import Split, load

__all__ = [
    "DATASETS",
    "Augmentation",
    "Batches",
    "CacheWarning",
    "DataError",
    "Dataset",
    "DownloadError",
    "FileReport",
    "FormatError",
    "HashError",
    "MissingFileError",
    "Normalisation",
    "Part",
    "SourceFile",
    "Split",
    "check",
    "data_root",
    "epoch_order",
    "get",
    "load",
    "subset",
]
