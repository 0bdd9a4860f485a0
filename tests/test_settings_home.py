"""Where the home, the queue and the spend book are, and how a home is made."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from settings_here import Load, lane

from millpond.rules.errors import MissingKey, SettingsError
from millpond.settings import make_home


def test_the_home_is_the_flags_then_the_variables_then_the_files_then_the_nearest_then_here(
    loaded: Load, folder: Path, tmp_path: Path
) -> None:
    def home(**given: Any) -> tuple[Path, str]:
        settings = loaded(**given)
        return settings.home, settings.home_origin

    assert home() == (folder / ".millpond", "default")
    (tmp_path / ".millpond").mkdir()
    assert home() == (tmp_path / ".millpond", "found upwards")
    said: dict[str, Any] = {"text": "home: from-file"}
    assert home(**said) == (folder / "from-file", "millpond.yaml:1")
    said["env"] = {"MILLPOND_HOME": "../from-variable"}
    assert home(**said) == (tmp_path / "from-variable", "environment MILLPOND_HOME")
    assert home(**said, home="from-flag") == (folder / "from-flag", "flag")
    assert not (folder / ".millpond").exists()


def test_a_path_in_a_file_starts_from_that_file(loaded: Load, tmp_path: Path, folder: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    config = tmp_path / "elsewhere" / "m.yaml"
    config.write_text("home: h\nqueue: {path: q/queue.db}\nspend: {path: ~/s.db}\nlanes: {a: {ca_file: ca.pem}}\n")
    settings = loaded(config=config)
    assert settings.home == tmp_path / "elsewhere" / "h"
    assert settings.queue == tmp_path / "elsewhere" / "q" / "queue.db"
    assert settings.spend == Path.home() / "s.db"
    assert lane(settings, "a").ca_file == str(tmp_path / "elsewhere" / "ca.pem")
    assert loaded(config=config, flags={"queue.path": "q.db"}).queue == folder / "q.db"


def test_the_queue_stands_in_the_home_or_at_an_address(loaded: Load, folder: Path) -> None:
    assert loaded().queue == folder / ".millpond" / "queue.db"
    address = "postgresql://me:secret@127.0.0.1/work"
    assert loaded(env={"MILLPOND_QUEUE": address}).queue == address
    assert loaded(flags={"queue.path": address}).queue == address


def test_the_spend_book_is_the_users_unless_a_home_was_named(loaded: Load, tmp_path: Path) -> None:
    assert loaded().spend == tmp_path / "data" / "millpond" / "spend.db"
    assert loaded("home: x").spend == tmp_path / "data" / "millpond" / "spend.db"
    assert loaded(home=tmp_path / "h").spend == tmp_path / "h" / "spend.db"
    assert loaded(env={"MILLPOND_HOME": str(tmp_path / "v")}).spend == tmp_path / "v" / "spend.db"


def test_a_home_is_made_for_its_owner_alone_and_kept_out_of_git(tmp_path: Path) -> None:
    home = make_home(tmp_path / "deep" / ".millpond")
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert (home / ".gitignore").read_text() == "*\n"
    assert make_home(home) == home


def test_a_folder_that_holds_something_gets_no_gitignore(tmp_path: Path) -> None:
    (tmp_path / "code.py").touch()
    make_home(tmp_path)
    assert not (tmp_path / ".gitignore").exists()


def test_a_file_in_the_place_of_the_home_is_refused(tmp_path: Path) -> None:
    (tmp_path / "h").touch()
    for path in (tmp_path / "h", tmp_path / "h" / "below"):
        with pytest.raises(SettingsError, match="found a file, wanted a folder; name another with --home"):
            make_home(path)


@contextmanager
def nobody() -> Iterator[None]:
    """Root may write everywhere; as root, be somebody else for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_home_that_may_not_be_made_lacks_a_permission() -> None:
    with TemporaryDirectory() as folder:  # not pytest's own, into which nobody else may look
        Path(folder).chmod(0o555)
        with nobody(), pytest.raises(MissingKey, match="may not be written"):
            make_home(Path(folder) / "h")
        Path(folder).chmod(0o700)
