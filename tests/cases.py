"""Faults that users of other queues reported in public, and which tests here bear their number: `pytest -k o14`."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLACES = (ROOT / "tests", ROOT / "src/millpond/testing")
"""Where behaviour is named: the tests, and the suites that others may run too."""

WENT_WRONG = {
    1: "an older program met a newer database, or an upgraded file differed from a fresh one",
    2: "work of low priority never ran",
    3: "a job was cancelled and done",
    4: "half an answer, or none, was kept as a good one",
    5: "a lock file was deleted, and two were let in",
    6: "an answer with a NUL character could not be stored",
    7: "the log grew without end behind a reader",
    9: "a worker that was stopped left its jobs running for ever",
    10: "text of a job or a provider was obeyed by who showed it",
    11: "a file by an editor on Windows was misread",
    12: "what could be stored could not be loaded",
    13: "one hopeless job was tried, and paid for, for days",
    14: "a connection was used on both sides of a fork",
    15: "a writer was told that the database is locked, at once",
    20: "a local model never came to an end",
    21: "no money left was taken for no room now",
    22: "a key stood in an error that was kept",
    23: "two different jobs had one fingerprint",
    24: "a slow worker settled what had been given to another",
    25: "who waited missed its work, or waited past its time",
    26: "an error inside a 200 was taken for an answer",
    27: "a model without a price was free",
    30: "an empty account failed thousands of jobs",
    32: "a Retry-After was misread",
    33: "a time without its zone was guessed",
}
"""The fault reports that this version answers, by number, in a few words."""

TABLE = r"(<!-- cases: .*? -->\n)(.*?)(<!-- end of the cases -->)"

_NAMED = re.compile(r"^ *(?:async )?def (?:test_)?o(\d\d)_\w+", re.MULTILINE)


def files_by_case() -> dict[int, set[str]]:
    """Which files have tests that bear which number."""
    found: dict[int, set[str]] = defaultdict(set)
    for place in PLACES:
        for file in place.rglob("*.py"):
            for number in _NAMED.findall(file.read_text(encoding="utf-8")):
                found[int(number)].add(file.relative_to(ROOT).as_posix())
    return dict(found)


def table_of_cases() -> str:
    """Each case, what went wrong elsewhere, and where it is shown that it does not here."""
    rows = ["| case | went wrong elsewhere | shown not to, here |", "|---|---|---|"]
    for number, files in sorted(files_by_case().items()):
        shown = ", ".join(f"`{file}`" for file in sorted(files, key=lambda file: file.partition("/")[2]))
        rows.append(f"| O{number:02} | {WENT_WRONG[number]} | {shown} |")
    return "\n".join(rows) + "\n"
