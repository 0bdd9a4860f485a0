"""Named statements: how a file of SQL is read."""

from __future__ import annotations

import pytest

from millpond.db.sqlite import TOKENS
from millpond.db.statements import load, split


def test_a_statement_goes_by_its_name_and_may_say_why():
    statements = load("""
-- This file holds two.
-- name: move
-- The fence: a worker may move a job only under its lease.
UPDATE job SET state = ';' -- not the end;
WHERE id = :id;

-- name: drop
DELETE FROM job
""")
    assert statements == {
        "move": "UPDATE job SET state = ';' -- not the end;\nWHERE id = :id",
        "drop": "DELETE FROM job",
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("-- name: a\nSELECT 1;\n-- name: a\nSELECT 2", "'a' stands twice"),
        ("-- name: a\nSELECT 1; SELECT 2", "found 2 statements"),
        ("-- name: a\n-- nothing but words;\n", "found 0 statements"),
        ("-- name: a\n;;\n", "found 0 statements"),
        ("-- name: \nSELECT 1", "statement name ''"),
        ("-- name: two words\nSELECT 1", "statement name 'two words'"),
        ("SELECT 1;\n-- name: a\nSELECT 1", "before the first"),
    ],
)
def test_a_file_that_could_be_misread_is_refused(text: str, words: str):
    with pytest.raises(ValueError, match=words):
        load(text)


def test_a_token_is_spelt_as_the_dialect_wants_it():
    text = "-- name: a\nSELECT * FROM job WHERE id IN {list ids} AND body != '{}' AND x != '{\"k\": 1}'"
    sql = load(text, TOKENS)["a"]
    assert "id IN (SELECT value FROM json_each(:ids))" in sql
    assert "'{}'" in sql
    assert "'{\"k\": 1}'" in sql
    assert "{list ids}" in load(text)["a"], "without a dialect tokens are left for the database to expand"


@pytest.mark.parametrize(
    ("token", "words"), [("{lists ids}", r"'a': unknown token \{lists ids\}; known: list"), ("{list}", "lacks an arg")]
)
def test_an_unknown_token_is_named(token: str, words: str):
    with pytest.raises(ValueError, match=words):
        load(f"-- name: a\nSELECT {token}", TOKENS)


def test_splitting_leaves_triggers_strings_and_comments_whole():
    text = """
-- A table; and its trigger;
CREATE TABLE a (b TEXT DEFAULT ';'); /* ; */

CREATE TRIGGER t AFTER INSERT ON a BEGIN
  UPDATE a SET b = CASE WHEN b = 'x' THEN 'y' ELSE b END;
  DELETE FROM a WHERE b = ';';
END;
-- the end;
SELECT 1
"""
    first, trigger, last = split(text)
    assert first == "CREATE TABLE a (b TEXT DEFAULT ';')"
    assert trigger.startswith("/* ; */\n\nCREATE TRIGGER")
    assert trigger.endswith("END")
    assert last == "SELECT 1"
    assert split("-- only words;\n ; \n") == ()
