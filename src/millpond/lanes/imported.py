"""What a setting names as `module:name`: imported, with the working directory looked in last, so it shadows nothing."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from millpond.rules.errors import SettingsError


def load_target(target: str, where: str) -> Any:
    """The object of a `module:name`. `where` names the setting. Raises SettingsError saying what is not there."""
    module_name, _, path = target.partition(":")
    if not module_name or not path:
        raise SettingsError(f"{where}: found {target!r}, wanted module:name")
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"{where}: no module {error.name!r}, wanted by {target!r}; "
            "put it beside where you run, install it, or mend the name"
        ) from None
    except Exception as error:  # A module runs when it is imported, and may raise anything.
        raise SettingsError(f"{where}: importing {module_name!r} failed: {type(error).__name__}: {error}") from error
    for name in path.split("."):
        if not hasattr(found, name):
            raise SettingsError(f"{where}: {module_name!r} has no {path!r}")
        found = getattr(found, name)
    return found
