"""The kill matrix: a drain is killed between every two durable steps, and what may then have been paid twice is known.

Run as a program, this file plays every row and writes docs/kill-matrix.md anew.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

import pytest
from killings import HEADING, ROWS, Row, Seen, play

DOCS = Path(__file__).resolve().parents[2] / "docs/kill-matrix.md"
TABLE = r"(<!-- kill matrix: .*? -->\n)(.*?)(<!-- end of the kill matrix -->)"

SOON = {
    "plain: ledger row not committed",
    "plain: first byte",
    "asks: head sent",
    "fails: reply in hand",
    "plain: refused, kept",
    "recalls: reply in hand, then recalled end not committed",
    "recalls: reply in hand, then its lane has answered, in `reconcile`",
}
"""Rows that every run of the tests plays; `make prove` plays them all."""


def check(row: Row, seen: Seen) -> None:
    """What the promises say of a row, whatever the table has."""
    unheard = [point for point in row.points if point.called in ("recorded", "sent")]
    if not unheard:
        assert (seen.posts, seen.ledger, seen.maybe_paid_again) == (1, ("ok",), 0)
    elif row.lane == "recalls":
        assert (seen.posts, seen.maybe_paid_again) == (1, 0), "what its lane can be asked for is paid once"
        assert seen.answered_by.startswith("call ")
    elif row.lane == "plain":
        assert seen.posts <= 1 + len(unheard)
        assert seen.posts - 1 <= seen.maybe_paid_again == seen.ledger.count("ambiguous (same)"), "it is said"
        assert seen.answered_by == f"call {len(seen.ledger)}"
    else:
        assert seen.posts <= 1
        assert [one.split()[0] for one in seen.ledger] == ["ambiguous"], "it is said"
        assert seen.answered_by.startswith("nobody")


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=str(row), marks=[] if str(row) in SOON else pytest.mark.prove) for row in ROWS]
)
def test_a_drain_that_is_killed_loses_nothing_and_says_what_it_may_have_paid_twice(tmp_path: Path, row: Row) -> None:
    seen = play(row, tmp_path)
    check(row, seen)
    assert seen.line(row) in DOCS.read_text(encoding="utf-8").splitlines(), f"{Path(__file__).name} draws the table"


def test_the_table_has_these_rows_and_no_others() -> None:
    found = re.search(TABLE, DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    named = [tuple(line.removeprefix("| ").split(" | ")[:2]) for line in found[2].splitlines()[2:]]
    assert named == [(row.where, row.lane) for row in ROWS]
    assert {str(row) for row in ROWS} >= SOON


def drawn(page: str) -> str:
    """The page with the table as it is now. Every row is played."""
    lines = list(HEADING)
    for row in ROWS:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["XDG_DATA_HOME"] = f"{folder}/data"
            seen = play(row, Path(folder))
        check(row, seen)
        lines.append(seen.line(row))
        print(lines[-1], file=sys.stderr, flush=True)
    return re.sub(TABLE, lambda m: m[1] + "\n".join(lines) + "\n" + m[3], page, flags=re.DOTALL)


if __name__ == "__main__":
    DOCS.write_text(drawn(DOCS.read_text(encoding="utf-8")), encoding="utf-8")
