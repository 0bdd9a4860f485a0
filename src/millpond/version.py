"""The version of this program, as its installer wrote it down."""

from __future__ import annotations

from importlib.metadata import version

__version__ = version("millpond")
