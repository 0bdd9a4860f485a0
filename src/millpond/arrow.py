"""Arrow, where it is installed: the door to pyarrow, which is an extra and takes most of a short run to load."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from millpond.rules.errors import UsageError


def arrow(module: str = "pyarrow") -> Any:
    """Load pyarrow or a part of it. Raises UsageError where it is not installed, saying how to get it.

    It comes without types, so that everything of it is Any.
    """
    try:
        return import_module(module)
    except ImportError as problem:
        raise UsageError(
            "Parquet and data frames need pyarrow, which is not installed; pip install 'millpond[dataframe]'"
        ) from problem
