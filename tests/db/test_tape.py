"""A list that grows on disk."""

from __future__ import annotations

import tracemalloc

from millpond.db.tape import MEMORY_BYTES, Tape


def test_what_is_appended_is_read_in_its_order_as_often_as_wanted() -> None:
    with Tape[tuple[int, str]]() as tape:
        assert list(tape) == []
        for n in range(1_000):
            tape.append((n, "duck"))
        assert list(tape) == list(tape) == [(n, "duck") for n in range(1_000)]
        assert all(one == other for one, other in zip(tape, tape, strict=True))


def test_it_holds_no_more_memory_however_long_it_is() -> None:
    text = "duck " * 200
    tracemalloc.start()
    with Tape[str]() as tape:
        for n in range(20_000):
            tape.append(f"{n}{text}")
        assert sum(len(one) for one in tape) > 20_000_000
        peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * MEMORY_BYTES
