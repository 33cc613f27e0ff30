"""The article's data sets, and smaller ones: fetched, verified, read, cached."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stochbatch.data.catalogue import Augmentation, Dataset, Part, SourceFile
from stochbatch.data.data_errors import (
    CacheWarning,
    DataError,
    DownloadError,
    FormatError,
    HashError,
    MissingFileError,
)
from stochbatch.data.fetch import get
from stochbatch.data.folder import data_root
from stochbatch.registry import DATASETS

if TYPE_CHECKING:
    from stochbatch.data.batches import Batches, Normalisation
    from stochbatch.data.loader import Split, load
    from stochbatch.data.own_data import add
    from stochbatch.data.sampling import epoch_order, hold_out, subset

__all__ = [
    "DATASETS",
    "Augmentation",
    "Batches",
    "CacheWarning",
    "DataError",
    "Dataset",
    "DownloadError",
    "FormatError",
    "HashError",
    "MissingFileError",
    "Normalisation",
    "Part",
    "SourceFile",
    "Split",
    "add",
    "data_root",
    "epoch_order",
    "get",
    "hold_out",
    "load",
    "subset",
]

# These need torch, and are imported when they are first used: data sets are listed without it.
_WITH_TORCH = {
    **dict.fromkeys(("Batches", "Normalisation"), "batches"),
    **dict.fromkeys(("epoch_order", "hold_out", "subset"), "sampling"),
    **dict.fromkeys(("Split", "load"), "loader"),
    "add": "own_data",
}


def __getattr__(name: str) -> Any:
    if name in _WITH_TORCH:
        return getattr(import_module(f"stochbatch.data.{_WITH_TORCH[name]}"), name)
    raise AttributeError(f"module 'stochbatch.data' has no attribute {name!r}")
