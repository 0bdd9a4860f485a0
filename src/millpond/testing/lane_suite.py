"""One behavioural suite that every lane must pass: what the engine relies on of a Lane, case by case."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from millpond.lanes.lane import Lane
from millpond.rules.job import Prompt, Reply
from millpond.testing.cases import cases_of, refuse_without_assertions, run_all
from millpond.testing.lane_cases import answering, failing, living
from millpond.testing.lane_scene import FarSide, Fault, LaneScene, MakeLane, NotGivenError, names_no_other

LaneCase = Callable[[LaneScene], None]

LANE_CASES: tuple[tuple[str, LaneCase], ...] = cases_of(answering, failing, living)
"""Name and function of every case; a function takes a LaneScene and asserts."""


def run_lane_case(
    case: LaneCase,
    make_lane: MakeLane | Lane,
    *,
    faults: Mapping[Fault, MakeLane] | None = None,
    keys_seen: Callable[[Lane], Sequence[str]] | None = None,
    shows: Callable[[Prompt, Reply], bool] = names_no_other,
) -> bool:
    """Run one case on lanes of its own; False if it needs faults or keys that were not given. Raises AssertionError.

    The arguments are those of `exercise_lane`.
    """
    return _run(case, FarSide(_made(make_lane), faults or {}, keys_seen, shows))


def exercise_lane(
    make_lane: MakeLane | Lane,
    *,
    faults: Mapping[Fault, MakeLane] | None = None,
    keys_seen: Callable[[Lane], Sequence[str]] | None = None,
    shows: Callable[[Prompt, Reply], bool] = names_no_other,
) -> None:
    """Run every case on lanes of its own, and raise all that failed together (ExceptionGroup), each with its name.

    `make_lane()` makes a new lane whose far side answers every prompt; a lane itself will do if it can be used again
    after it was closed. `faults` maps an outcome, or `silence`, to what makes a lane whose far side plays that at the
    first call and is well afterwards; for silence the lane's total deadline must be short, and what cannot be cut (a
    function in a thread) must end by itself within SILENCE_S. `keys_seen(lane)` lists the idempotency keys of all
    requests that the far side got, in order. `shows(prompt, reply)` says whether a reply belongs to a prompt; if it is
    left out, an answer may not name another task. Cases that need a fault, or the keys, are left out where these are
    not given.
    """
    far_side = FarSide(_made(make_lane), faults or {}, keys_seen, shows)
    run_all(LANE_CASES, lambda case: _run(case, far_side))


def _made(given: MakeLane | Lane) -> MakeLane:
    is_lane = isinstance(given, Lane) and not isinstance(given, type)  # a lane may be callable, a class have its names
    return given if callable(given) and not is_lane else lambda: cast("Lane", given)


def _run(case: LaneCase, far_side: FarSide) -> bool:
    refuse_without_assertions()
    try:
        case(LaneScene(far_side))
    except NotGivenError:
        return False
    return True
