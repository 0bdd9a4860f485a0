"""Bringing a file to this program's schema: forward only, one transaction a step, the version kept in the file itself.

A step and its version number are committed together, so a program killed in its middle leaves the file as it was before
the step, and the next start goes on from there. Two programs that start at once wait for each other and look again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path

import apsw

from millpond.db.connection import Connection
from millpond.db.failures import raise_translated, translate
from millpond.db.statements import split
from millpond.rules.errors import QueueUnavailable, SchemaTooNew, SettingsError

_FILE_NAME = re.compile(r"(\d{3})(?:[_-]([a-z0-9_-]+))?\.sql")


@dataclass(frozen=True, slots=True)
class Migration:
    """One step: it brings a file of version `version - 1` to `version`."""

    version: int
    name: str
    statements: tuple[str, ...]


def read_folder(folder: Traversable) -> tuple[Migration, ...]:
    """Read the steps `001.sql`, `002_name.sql`, … of a folder of package resources (importlib.resources.files).

    Raises ValueError where a number is missing, stands twice, or a file says nothing.
    """
    steps: list[Migration] = []
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        if not file.name.endswith(".sql"):
            continue
        match = _FILE_NAME.fullmatch(file.name)
        if match is None:
            raise ValueError(f"migration {file.name!r}: wanted a name like 001.sql or 002_what_it_does.sql")
        statements = split(file.read_text(encoding="utf-8"))
        if not statements:
            raise ValueError(f"migration {file.name!r} holds no statement")
        steps.append(Migration(int(match[1]), match[2] or match[1], statements))
    check_order(steps)
    return tuple(steps)


def check_order(migrations: Sequence[Migration]) -> None:
    """Refuse steps that are not numbered 1, 2, 3, … (ValueError)."""
    found = [migration.version for migration in migrations]
    if found != list(range(1, len(found) + 1)):
        raise ValueError(f"migrations are numbered {found}; wanted 1, 2, 3, … without a gap")


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose file it is and how far along, as the file says: both numbers are 0 in a new one."""

    application_id: int
    version: int
    is_empty: bool


def identify(connection: Connection) -> Identity:
    """Read whose file this is, as of one moment: another may make it just now.

    Writes nothing; raises QueueUnavailable if it is no database at all.
    """
    try:
        connection.run("SAVEPOINT look")
        try:
            return Identity(
                connection.value("PRAGMA application_id"),
                connection.value("PRAGMA user_version"),
                connection.value("SELECT NOT EXISTS (SELECT 1 FROM sqlite_schema)") == 1,
            )
        finally:
            connection.run("RELEASE look")
    except apsw.Error as error:
        raise_translated(error, connection.path)


def check(identity: Identity, latest: int, application_id: int, path: Path) -> None:
    """Refuse another program's file (SettingsError) and one that a newer program has upgraded (SchemaTooNew)."""
    if identity.application_id != application_id and not (identity.is_empty and identity.application_id == 0):
        raise SettingsError(
            f"{path} belongs to another program (application id {identity.application_id}, ours is {application_id}); "
            f"it was left as it is. Name another path"
        )
    check_version(identity.version, latest, path)


def check_version(found: int, latest: int, path: Path) -> None:
    """Refuse a file of a newer schema than this program knows (O01)."""
    if found > latest:
        raise SchemaTooNew(
            f"{path} has schema version {found}, this program knows {latest} at most; nothing was touched. "
            f"Run the newer program that upgraded it, or restore the backup made before the upgrade"
        )


def upgrade(connection: Connection, migrations: Sequence[Migration], application_id: int) -> None:
    """Run the steps that the file has not had yet. The caller has passed the turnstile.

    Raises QueueUnavailable if a step fails; the file is then at the version before that step.
    """
    for migration in migrations:
        if identify(connection).version >= migration.version:
            continue
        # Steps may rebuild tables that others refer to; the references are checked as a whole before the commit.
        connection.run("PRAGMA foreign_keys = OFF")
        try:
            connection.run("BEGIN IMMEDIATE")
            _step(connection, migration, application_id, len(migrations))
        except apsw.Error as error:
            words = f"upgrading {connection.path} to schema version {migration.version} ({migration.name}) failed"
            disk = translate(error, connection.path)
            if disk is not None:
                raise type(disk)(f"{words}: {disk}") from error
            raise QueueUnavailable(f"{words} and changed nothing: {error}. Please report this as a bug") from error
        finally:
            connection.roll_back()
            connection.run("PRAGMA foreign_keys = ON")


def _step(connection: Connection, migration: Migration, application_id: int, latest: int) -> None:
    # Looked at again under the lock: somebody may have gone before us.
    identity = identify(connection)
    check(identity, latest, application_id, connection.path)
    if identity.version >= migration.version:
        return
    for sql in migration.statements:
        connection.run(sql)
    if dangling := connection.run("PRAGMA foreign_key_check"):
        raise apsw.ConstraintError(f"{len(dangling)} rows of {dangling[0][0]} refer to rows that are not there")
    connection.run(f"PRAGMA application_id = {application_id}")
    connection.run(f"PRAGMA user_version = {migration.version}")
    connection.run("COMMIT")
