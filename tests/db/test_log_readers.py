"""Who keeps a log from shrinking."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from item_database import add, open_items, start_script, total

from millpond.db.log_readers import Reader, log_readers, readers_of

LOCKS = """1: POSIX  ADVISORY  READ 4242 08:02:77 124 124
2: POSIX  ADVISORY  READ 4242 08:02:77 128 128
3: POSIX  ADVISORY  WRITE 17 08:02:77 120 120
4: POSIX  ADVISORY  READ 99 08:03:77 124 124
5: POSIX  ADVISORY  READ 5 08:02:78 124 124
6: POSIX  ADVISORY  READ 12 08:02:77 127 127
7: -> POSIX  ADVISORY  READ 13 08:02:77 125 125
8: POSIX  ADVISORY  READ 14 08:02:77 0 EOF
9: FLOCK  ADVISORY  WRITE 15 08:02:77 0 EOF
"""


def test_readers_are_those_who_hold_a_readers_byte_of_this_file() -> None:
    assert readers_of(LOCKS, os.makedev(8, 2), 77) == [12, 14, 4242]
    assert readers_of("", os.makedev(8, 2), 77) == []


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /proc/locks")
def test_o07_a_process_that_keeps_reading_is_found_until_it_ends(path: Path):
    database = open_items(path)
    database.write(add())
    total(database)
    assert log_readers(path) == []
    outside = start_script(
        "import apsw, sys; c = apsw.Connection(sys.argv[1]); c.execute('BEGIN'); "
        "c.execute('SELECT * FROM item').fetchall(); print('reading', flush=True); sys.stdin.read()",
        path,
    )
    assert outside.stdout is not None
    assert outside.stdout.readline() == "reading\n"
    [reader] = log_readers(path)
    assert reader.pid == outside.pid
    assert str(reader) == f"pid {outside.pid} ({reader.name})" != str(Reader(outside.pid, ""))
    outside.communicate()
    assert log_readers(path) == []
