"""Settings: files, environment and flags become the Policy and the paths, each value with where it was said."""

from __future__ import annotations

from millpond.settings.home import make_home
from millpond.settings.load import Settings, load, template
from millpond.settings.shape import File, schema

__all__ = ["File", "Settings", "load", "make_home", "schema", "template"]
