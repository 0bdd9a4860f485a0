"""The home: the folder that holds a queue. Finding it reads only; making it is a verb of its own."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from millpond.rules.errors import MissingKey, QueueUnavailable, SettingsError

NAME = ".millpond"


def nearest_home(cwd: Path) -> Path | None:
    """The nearest `.millpond` folder, from here upwards."""
    for folder in (cwd, *cwd.parents):
        with suppress(OSError):  # a parent that may not be looked into holds no home of ours
            if (folder / NAME).is_dir():
                return folder / NAME
    return None


def make_home(home: Path) -> Path:
    """Make the home if it is not there: readable by its owner alone, kept out of git by a `.gitignore` of its own.

    A folder that already holds something gets no `.gitignore`: it may be somebody's project. Several processes may
    call this at once. Raises SettingsError if a file is in the way, MissingKey (exit 4) where a permission lacks,
    QueueUnavailable (exit 74) where the disk refuses.
    """
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            home.mkdir(mode=0o700)
        if next(home.iterdir(), None) is None:
            with suppress(FileExistsError), (home / ".gitignore").open("x", encoding="utf-8") as file:
                file.write("*\n")
    except (FileExistsError, NotADirectoryError):
        raise SettingsError(f"home {home}: found a file, wanted a folder; name another with --home") from None
    except PermissionError:
        raise MissingKey(f"home {home}: may not be written; mend its permissions or name another with --home") from None
    except OSError as fault:
        raise QueueUnavailable(
            f"home {home}: {fault.strerror or fault}; make room or name another with --home"
        ) from None
    return home
