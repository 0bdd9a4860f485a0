"""For how long a call is listened to whose job no longer waits for it: its hold, on the listener's own clock."""

from __future__ import annotations

from mill_of_one import Mill

from millpond.engine.listening import Listening
from millpond.engine.tenure import Tenure
from millpond.testing import FakeClock


def test_a_hold_ends_when_it_is_over_by_its_listeners_own_clock(mill: Mill) -> None:
    clock = FakeClock(0)
    owner = Tenure(mill.store, mill.folder, "worker", lease_ms=60_000).uuid
    [job] = mill.ask("a")
    [lease] = mill.store.lease(owner, {"": 1}, 1)
    mill.book.reserve("uid", owner, "free", None)
    mill.store.record(lease, "uid", "free")
    listening = Listening(mill.store, clock)
    mill.store.cancel([(job, 1_000)])
    [again] = mill.ask("a")
    assert listening.end_holds(owner) == []
    clock.advance(999)
    assert (listening.end_holds(owner), mill.state(again)) == ([], "waiting/held")
    clock.advance(1)
    assert (listening.end_holds(owner), mill.state(again)) == (["uid"], "ready")
    assert listening.end_holds(owner) == []
