"""The table of states and moves, and the diagram that is drawn from it."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.rules.job import State, WaitReason
from millpond.rules.lifecycle import LIVE, MOVES, STATES, TRANSITIONS, UNBORN, WAIT_REASON, advance, diagram, may

DOCS = Path(__file__).resolve().parents[2] / "docs/lifecycle.md"
BEGIN, END = "<!-- diagram: drawn from lifecycle.TRANSITIONS -->", "<!-- end of the diagram -->"
REDRAW = ".venv/bin/python tests/rules/test_lifecycle.py"


def drawn(text: str) -> str:
    """The document with the diagram between its markers as the table has it now."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n```mermaid\n{diagram()}\n```\n{END}{tail}"


def test_the_diagram_in_the_docs_is_drawn_from_the_table() -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert BEGIN in text
    assert text == drawn(text), f"docs/lifecycle.md is not what the table says; redraw it: {REDRAW}"


def test_the_diagram_shows_every_move_once() -> None:
    arrows = [line.split(": ", 1) for line in diagram().splitlines() if ": " in line]
    shown = sorted(
        (UNBORN if before == "[*]" else before, move, after)
        for line, moves in arrows
        for before, after in [line.strip().split(" --> ")]
        for move in moves.split(", ")
    )
    assert shown == sorted((before, move, after) for (before, move), after in TRANSITIONS.items())


def test_the_table_uses_every_move_and_every_state() -> None:
    assert {move for _, move in TRANSITIONS} == set(MOVES)
    assert set(TRANSITIONS.values()) == set(STATES)
    assert {before for before, _ in TRANSITIONS} == {*STATES, UNBORN} - {"done"}


def test_done_is_final() -> None:
    assert [move for move in MOVES if may("done", move)] == []


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_only_a_persons_retry_leaves_a_terminal_state(state: State) -> None:
    assert {move for move in MOVES if may(state, move)} == {"retry", "retry_held", "retry_answered"}


@pytest.mark.parametrize("state", sorted(LIVE))
def test_every_live_job_can_be_answered_and_cancelled(state: State) -> None:
    assert (advance(state, "answer"), advance(state, "cancel")) == ("done", "cancelled")


@pytest.mark.parametrize("state", sorted(LIVE))
def test_every_live_state_is_reached_from_birth_and_leads_to_every_end(state: State) -> None:
    assert state in reached(UNBORN)
    assert {"done", "failed", "cancelled"} <= reached(state)


@pytest.mark.parametrize("move", MOVES)
def test_one_move_leads_to_one_state_wherever_it_starts(move: str) -> None:
    assert len({after for (_, name), after in TRANSITIONS.items() if name == move}) == 1


def test_only_a_lease_leads_to_leased_and_only_from_ready() -> None:
    assert [key for key, after in TRANSITIONS.items() if after == "leased"] == [("ready", "lease")]


def test_a_move_waits_exactly_where_it_has_a_reason_to() -> None:
    """`shelve` and its kin always wait; each reason that a job can wait for is some move's."""
    assert {move for (_, move), after in TRANSITIONS.items() if after == "waiting"} == set(WAIT_REASON)
    assert set(WAIT_REASON.values()) == set(get_args(WaitReason))


@given(st.sampled_from([*STATES, UNBORN, "nowhere"]), st.sampled_from(MOVES))
def test_advance_has_what_the_table_has_and_refuses_the_rest(state: str, move: str) -> None:
    if may(state, move):  # pyright: ignore[reportArgumentType]
        assert advance(state, move) == TRANSITIONS[state, move]  # pyright: ignore[reportArgumentType]
    else:
        with pytest.raises(AssertionError, match=f"no move '{move}' from state"):
            advance(state, move)  # pyright: ignore[reportArgumentType]


def reached(start: str) -> set[str]:
    """The states that some moves lead to from here."""
    found: set[str] = set()
    todo = [start]
    while todo:
        state = todo.pop()
        for (before, _), after in TRANSITIONS.items():
            if before == state and after not in found:
                found.add(after)
                todo.append(after)
    return found


if __name__ == "__main__":
    DOCS.write_text(drawn(DOCS.read_text(encoding="utf-8")), encoding="utf-8")
