"""Whoever is told of a drain may fail; what was under way comes to its end all the same."""

from __future__ import annotations

import asyncio

import pytest
from mill_of_one import Mill, free

from millpond.engine.perform import Happening
from millpond.testing.scripted_lane import Held


@pytest.mark.parametrize("kind", ["held", "ended", "done"])
def test_the_drain_ends_with_it_once_its_calls_have_ended(mill: Mill, kind: str) -> None:
    """A call that was let go of is listened to on, though the telling of that raised."""
    lane = free([Held()], soft_timeout_ms=20)
    [job] = mill.ask("a")

    def tell(happening: Happening) -> None:
        if happening.kind == "held":
            lane.let_go()
        if happening.kind == kind:
            raise OSError("nobody reads this")

    mill.tell = tell  # type: ignore[method-assign]
    with pytest.raises(OSError, match="nobody reads this"):
        asyncio.run(mill.drainer(lane).run())
    assert (mill.state(job), mill.ledger()) == ("done", [("free", "ok", "late")])
