"""What tests need that stand on Millpond: a clock, a lane by a script, suites for stores and lanes, a machine, worlds.

clock = FakeClock()
lane = ScriptedLane("free", ["retryable", Held("ok")])
exercise_lane(MyLane)                               # or parametrise over LANE_CASES
exercise_store(lambda now_ms: MyStore(now_ms))      # or parametrise over STORE_CASES
store_machine(lambda now_ms: MyStore(now_ms))       # needs hypothesis
simulate(17)                                        # the real rules and store; the same seed does the same again

Names are loaded when they are first asked for: pytest loads `millpond.testing.plugin` wherever Millpond is installed.
"""

from typing import TYPE_CHECKING

from millpond.lazily import names

if TYPE_CHECKING:
    from millpond.testing.beside_a_model import store_machine
    from millpond.testing.clock import FakeClock
    from millpond.testing.lane_suite import LANE_CASES, Fault, MakeLane, exercise_lane, run_lane_case
    from millpond.testing.scripted_lane import Held, ScriptedLane, evidence_of
    from millpond.testing.simulation import PromiseBroken, simulate
    from millpond.testing.store_suite import STORE_CASES, MakeStore, exercise_store, run_store_case

__all__ = [
    "LANE_CASES",
    "STORE_CASES",
    "FakeClock",
    "Fault",
    "Held",
    "MakeLane",
    "MakeStore",
    "PromiseBroken",
    "ScriptedLane",
    "evidence_of",
    "exercise_lane",
    "exercise_store",
    "run_lane_case",
    "run_store_case",
    "simulate",
    "store_machine",
]

__getattr__, __dir__ = names(
    __name__,
    {
        "beside_a_model": "store_machine",
        "clock": "FakeClock",
        "lane_suite": "LANE_CASES Fault MakeLane exercise_lane run_lane_case",
        "scripted_lane": "Held ScriptedLane evidence_of",
        "simulation": "PromiseBroken simulate",
        "store_suite": "STORE_CASES MakeStore exercise_store run_store_case",
    },
)
