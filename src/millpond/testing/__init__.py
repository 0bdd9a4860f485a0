"""What tests need that stand on Millpond: a clock, a lane by a script, a suite and a machine for stores, worlds.

clock = FakeClock()
lane = ScriptedLane("free", ["retryable", Held("ok")])
exercise_store(lambda now_ms: MyStore(now_ms))      # or parametrise over STORE_CASES
store_machine(lambda now_ms: MyStore(now_ms))       # needs hypothesis, which is loaded when this is first asked for
simulate(17)                                        # the real rules and store; the same seed does the same again
"""

from typing import TYPE_CHECKING, Any

from millpond.testing.clock import FakeClock
from millpond.testing.exercise import STORE_CASES, MakeStore, exercise_store, run_store_case
from millpond.testing.scripted_lane import Held, ScriptedLane, evidence_of
from millpond.testing.simulation import PromiseBroken, simulate

if TYPE_CHECKING:
    from millpond.testing.beside_a_model import store_machine

__all__ = [
    "STORE_CASES",
    "FakeClock",
    "Held",
    "MakeStore",
    "PromiseBroken",
    "ScriptedLane",
    "evidence_of",
    "exercise_store",
    "run_store_case",
    "simulate",
    "store_machine",
]


def __getattr__(name: str) -> Any:
    """Load what needs hypothesis."""
    if name == "store_machine":
        from millpond.testing.beside_a_model import store_machine

        return store_machine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
