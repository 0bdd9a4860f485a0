"""Loading: every source laid over the one below, checked as a whole, and read as a Policy and the paths."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from millpond.rules.errors import SettingsError
from millpond.rules.policy import Policy
from millpond.settings import home as homes
from millpond.settings.faults import sense_faults, shape_faults
from millpond.settings.meaning import fill, policy
from millpond.settings.said import (
    Key,
    Origin,
    Said,
    dotted,
    lay_over,
    read_environment,
    read_file,
    read_flags,
    user_file,
    without_nulls,
)
from millpond.settings.shape import File

FILE_NAME = "millpond.yaml"
DEFAULT = "default"

NOT_READ_YET = (
    "caps", "spill", "alerts", "tz",
    "rpm", "tpm", "daily_requests", "daily_tokens", "reset_tz", "recall", "context_tokens", "can_detach",
)  # fmt: skip
"""Keys that are checked and kept, and that nothing reads yet. A limit that does not limit must be said aloud."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that was set: the Policy, the paths, and for each key where it was said."""

    policy: Policy
    home: Path
    """Absolute. It need not exist: `make_home` makes it."""
    home_origin: str
    """As in `origins`, or `found upwards`."""
    queue: Path | str
    """The queue's database: an absolute path, or a postgresql:// address."""
    spend: Path
    """The spend book: an absolute path."""
    commands: str
    """module:REGISTRY of typed commands, or ""."""
    keys: Mapping[str, str]
    """Lane -> environment variable that holds its key; lanes that need none are left out. No key is read here."""
    origins: Mapping[str, str]
    """Dotted key -> `millpond.yaml:7`, `environment MILLPOND_X`, `flag`, or `default`; every key that has a value."""
    unread: tuple[str, ...]
    """Keys that were said and that nothing in this version reads yet, in the order of the file."""
    raw: File
    """The file as it counts, every default put in; durations in seconds."""

    def shown(self) -> Iterator[tuple[str, Any, str]]:
        """Every key with its value (as a file would say it) and its origin. Values may hold secrets: headers, proxy."""
        for key, value in _leaves(self.raw, ()):
            yield dotted(key), value, self.origins[dotted(key)]


def load(
    *,
    home: str | Path | None = None,
    config: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Settings:
    """Read all settings: flag > MILLPOND_… > ./millpond.yaml > the user's file > defaults.

    `config` (else MILLPOND_CONFIG) stands in the place of ./millpond.yaml. `flags` go by dotted key; None counts as not
    given. Paths in a file start from its folder, others from `cwd`. Nothing is made and no key is read. Raises
    SettingsError with one line for each fault.
    """
    env = os.environ if env is None else env
    cwd = Path.cwd() if cwd is None else Path(cwd).absolute()
    said = _read(config, env, cwd)
    said = lay_over(said, read_environment(env, said.tree, cwd), whole_lanes=False)
    given = {**(flags or {}), **({} if home is None else {"home": str(home)})}
    said = lay_over(said, read_flags(given, cwd), whole_lanes=False)
    file = fill(_checked(said))
    file = _with_absolute_paths(file, said.origins)

    home_path, home_origin = _home(file, said.origins, cwd)
    of_its_own = home_origin == "flag" or home_origin.startswith("environment ")
    queue = file.queue.path or str(home_path / "queue.db")
    return Settings(
        policy=policy(file),
        home=home_path,
        home_origin=home_origin,
        queue=queue if "://" in queue else Path(queue),
        spend=Path(file.spend.path) if file.spend.path else _spend(home_path, of_its_own=of_its_own, env=env),
        commands=file.commands or "",
        keys={name: lane.key_env for name, lane in file.lanes.items() if lane.key_env},
        origins={dotted(key): _origin(key, said.origins) for key, _ in _leaves(file, ())},
        unread=tuple(dotted(key) for key in said.origins if _is_unread(key, said.origins, file)),
        raw=file,
    )


def template() -> str:
    """The commented millpond.yaml that `millpond init` writes: a local lane that works, everything else as comments.

    A line `#key: …` becomes a setting when its `#` is taken away; a line `# words` explains.
    """
    return files("millpond.settings").joinpath("template.yaml").read_text(encoding="utf-8")


def _read(config: Path | None, env: Mapping[str, str], cwd: Path) -> Said:
    said = Said()
    below = user_file(env)
    if _is_there(below):
        said = lay_over(said, read_file(below, cwd), whole_lanes=True)
    named = config if config is not None else env.get("MILLPOND_CONFIG") or None
    path = cwd / FILE_NAME if named is None else cwd / Path(named).expanduser()
    if named is not None or _is_there(path):
        said = lay_over(said, read_file(path, cwd), whole_lanes=True)
    return said


def _is_there(path: Path) -> bool:
    """Whether something bears the name; a folder that may not be looked into counts, and reading will say so."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass
    return True


def _checked(said: Said) -> File:
    try:
        file = File.model_validate(without_nulls(said))
    except ValidationError as fault:
        raise SettingsError("\n".join([*said.faults, *shape_faults(fault, said.origins)])) from None
    faults = [*said.faults, *sense_faults(file, said.origins)]
    if faults:
        raise SettingsError("\n".join(faults))
    return file


def _with_absolute_paths(file: File, origins: Mapping[Key, Origin]) -> File:
    def absolute(path: str | None, key: Key) -> str | None:
        if not path or "://" in path:
            return path
        return os.path.normpath(origins[key].folder / Path(path).expanduser())

    lanes = {
        name: lane.model_copy(update={"ca_file": absolute(lane.ca_file, ("lanes", name, "ca_file"))})
        for name, lane in file.lanes.items()
    }
    return file.model_copy(
        update={
            "lanes": lanes,
            "home": absolute(file.home, ("home",)),
            "queue": file.queue.model_copy(update={"path": absolute(file.queue.path, ("queue", "path"))}),
            "spend": file.spend.model_copy(update={"path": absolute(file.spend.path, ("spend", "path"))}),
        }
    )


def _home(file: File, origins: Mapping[Key, Origin], cwd: Path) -> tuple[Path, str]:
    if file.home:
        return Path(file.home), origins[("home",)].text
    found = homes.nearest_home(cwd)
    return (found, "found upwards") if found else (cwd / homes.NAME, DEFAULT)


def _spend(home: Path, *, of_its_own: bool, env: Mapping[str, str]) -> Path:
    """In the user's data folder, so that caps hold across folders; in the home if that was named on purpose."""
    if of_its_own:
        return home / "spend.db"
    from platformdirs import user_data_path

    chosen = env.get("XDG_DATA_HOME", "")
    return (Path(chosen) / "millpond" if os.path.isabs(chosen) else user_data_path("millpond")) / "spend.db"


def _leaves(value: Any, key: Key) -> Iterator[tuple[Key, Any]]:
    """Every key that has a value, in the order of the file; a list is one value."""
    if isinstance(value, BaseModel):
        parts = [(name, getattr(value, name)) for name in type(value).model_fields]
    elif isinstance(value, dict):
        parts = list(cast("dict[str, Any]", value).items())
    else:
        if value is not None:
            yield key, value
        return
    for name, item in parts:
        yield from _leaves(item, (*key, name))


def _origin(key: Key, origins: Mapping[Key, Origin]) -> str:
    """Where a key was said; a single value that stands for several (`hold_s: 0`) gives its origin to each."""
    for end in range(len(key), 1, -1):
        if key[:end] in origins and not _said_below(key[:end], origins):
            return origins[key[:end]].text
    return origins[key].text if key in origins else DEFAULT


def _said_below(key: Key, origins: Mapping[Key, Origin]) -> bool:
    return any(
        len(other) == len(key) + 1 and other[: len(key)] == key and isinstance(other[-1], str) for other in origins
    )


def _is_unread(key: Key, origins: Mapping[Key, Origin], file: File) -> bool:
    name = key[2] if key[0] == "lanes" and len(key) == 3 else key[0]
    if name == "recall" and file.lanes[str(key[1])].recall != "background":
        return False
    return name in NOT_READ_YET and not _said_below(key, origins)
