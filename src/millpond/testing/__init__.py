"""What tests need that stand on Millpond: a clock, a lane by a script, a suite for stores, and worlds of chance.

clock = FakeClock()
lane = ScriptedLane("free", ["retryable", Held("ok")])
exercise_store(lambda now_ms: MyStore(now_ms))      # or parametrise over STORE_CASES
simulate(17)                                        # the real rules and store; the same seed does the same again
"""

from millpond.testing.clock import FakeClock
from millpond.testing.exercise import STORE_CASES, MakeStore, exercise_store, run_store_case
from millpond.testing.scripted_lane import Held, ScriptedLane, evidence_of
from millpond.testing.simulation import PromiseBroken, simulate

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
]
