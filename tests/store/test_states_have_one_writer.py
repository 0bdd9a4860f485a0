"""`lifecycle.TRANSITIONS` is the only source of a job's state: no statement and no verb writes one of its own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import apsw
import pytest

import millpond
from millpond.db.statements import load
from millpond.rules.lifecycle import TRANSITIONS, UNBORN
from millpond.store.store import Store, open_sqlite
from millpond.testing import run_store_case
from millpond.testing.store_suite import STORE_CASES

STATEMENTS = load(files("millpond.store").joinpath("statements.sql").read_text(encoding="utf-8"))
HOUSE = Path(millpond.__file__).parent
WRITERS = {"moves.py": {"move"}, "lease.py": {"lease_jobs"}, "enqueue.py": {"insert_job"}}
"""The modules that may use a statement that writes states, and which. Each takes the state from `advance`."""

STATE_COLUMN = 5
"""Where `state` stands among the columns of job."""

SET_STATE = re.compile(r"(?:\bset\b|,)\s*(?:job\.)?state\s*=\s*(\S+?)[,\s]", re.IGNORECASE)


def written_states(sql: str) -> list[str]:
    """What a statement assigns to job.state, as it stands in its SET or VALUES."""
    found: list[str] = []
    if inserted := re.search(r"INSERT INTO job \(([^)]*)\)\s*VALUES\s*\(([^)]*)\)", sql):
        names, values = ([part.strip() for part in inserted[at].split(",")] for at in (1, 2))
        found += [value for name, value in zip(names, values, strict=True) if name == "state"]
    if updated := re.search(r"\b(?:UPDATE|DO UPDATE)\b.*?\bSET\b(.*?)(?:\bWHERE\b|\bRETURNING\b|$)", sql, re.DOTALL):
        found += SET_STATE.findall(f"SET {updated[1]} ")
    return found


def test_three_statements_write_a_state_and_each_is_given_it() -> None:
    writers = {name: states for name, sql in STATEMENTS.items() if (states := written_states(sql))}
    assert writers == {"move": [":to_state"], "lease_jobs": [":to_state"], "insert_job": [":state"]}


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE job SET state = 'done' WHERE id = 1",
        "UPDATE job SET lease_owner = NULL,\n  state = CASE WHEN 1 THEN 'done' END WHERE id = 1",
        "INSERT INTO job (id, state) VALUES (1, 'done')",
    ],
)
def test_a_state_written_otherwise_would_be_seen(sql: str) -> None:
    assert not all(state.startswith(":") for state in written_states(sql))


def test_only_three_modules_use_them() -> None:
    found: dict[str, set[str]] = {}
    for path in HOUSE.rglob("*.py"):
        texts = {node.value for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
                 if isinstance(node, ast.Constant) and isinstance(node.value, str)}  # fmt: skip
        if used := texts & {"move", "lease_jobs", "insert_job"}:
            found[path.name] = used
    assert found == WRITERS


@pytest.mark.parametrize("module", WRITERS)
def test_they_take_every_state_from_the_table(module: str) -> None:
    """The value given as `to_state` or under "state" is `advance(…)` itself, or a name that was bound to it."""
    tree = ast.parse((HOUSE / "store" / module).read_text(encoding="utf-8"))
    given: list[ast.expr] = []
    bound: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and _is_advance(node.value):
            bound |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.keyword) and node.arg == "to_state":
            given.append(node.value)
        elif isinstance(node, ast.Dict):
            given += [value for key, value in zip(node.keys, node.values, strict=True) if _is_text(key, "state")]
    assert given, f"{module} gives no state to any statement"
    assert [ast.unparse(one) for one in given if not (_is_advance(one) or getattr(one, "id", "") in bound)] == []


@pytest.fixture
def seen() -> Iterator[set[tuple[str, str]]]:
    """Every change of a job's state that SQLite itself sees, on connections opened from now on."""
    changes: set[tuple[str, str]] = set()

    def note(update: apsw.PreUpdate) -> None:
        if update.table_name == "job":
            before = update.old[STATE_COLUMN] if update.old else UNBORN
            after = update.new[STATE_COLUMN] if update.new else UNBORN
            if before != after:
                changes.add((str(before), str(after)))

    def watch(connection: apsw.Connection) -> None:
        connection.preupdate_hook(note)

    apsw.connection_hooks.append(watch)
    yield changes
    apsw.connection_hooks.remove(watch)


def test_no_state_changes_but_as_the_table_says(seen: set[tuple[str, str]], tmp_path: Path) -> None:
    """Over the whole suite. And the suite makes every move there is, except those of issues to come."""
    for name, case in STORE_CASES:
        path = tmp_path / f"{name}.db"
        run_store_case(case, lambda now_ms, path=path: Store(open_sqlite(path, durable=False), now_ms))
    allowed = {(before, after) for (before, _), after in TRANSITIONS.items() if before != after}
    assert seen - allowed == set()
    unused = {pair for pair in allowed - seen if "offloaded" not in pair}
    assert unused == {("waiting", "failed")}, "moves that no case of the suite makes"


def _is_advance(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") == "advance"


def _is_text(node: ast.expr | None, text: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == text
