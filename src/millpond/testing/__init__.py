"""What tests need that stand on Millpond: a clock, a lane that answers by a script, and a suite for stores.

clock = FakeClock()
lane = ScriptedLane("free", ["retryable", Held("ok")])
exercise_store(lambda now_ms: MyStore(now_ms))      # or parametrise over STORE_CASES
"""

from millpond.testing.clock import FakeClock
from millpond.testing.exercise import STORE_CASES, MakeStore, exercise_store, run_store_case
from millpond.testing.scripted_lane import Held, ScriptedLane, evidence_of

__all__ = [
    "STORE_CASES",
    "FakeClock",
    "Held",
    "MakeStore",
    "ScriptedLane",
    "evidence_of",
    "exercise_store",
    "run_store_case",
]
