"""Why a drain left work behind, and the command that goes on with it: a line for each reason."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from millpond.report.standing import at_work, elsewhere, elsewhere_words, whose
from millpond.report.status import needs_decision, one_line, stopped_words
from millpond.report.words import counted
from millpond.rules.effects import UNROUTED
from millpond.rules.policy import Policy
from millpond.rules.stops import stop_of
from millpond.rules.times import age_words
from millpond.store.lanes import LaneRow
from millpond.store.store import Store

COUNTED_CALLS = 10_000


def why_left(
    store: Store, policy: Policy, drained: Collection[str], command: Callable[[str], str], *, is_cut_short: bool = False
) -> Iterator[str]:
    """What is left now, and why. Counts up to 10,000 jobs a lane, and reads no other job.

    `drained` are the lanes that the drain had; `command` writes out a verb as it must be typed; `is_cut_short` says
    that it ended before it had to (a signal, --max-jobs).
    """
    wait, now_ms = command("drain --until-empty"), store.now_ms()
    closed, stops = store.closed_lanes(), store.stops()
    for lane in dict.fromkeys([*policy.lanes, *closed]):
        if n := store.ready_of_lane(lane):
            if (stop := stop_of(stops, lane, policy.free_lanes)) is not None:
                resume = command(f"resume{stop.argument}")
                yield f"lane {lane}: {stopped_words(stop)}; {counted(n, 'job')} ready for it; `{resume}` ends that"
            elif lane in closed:
                yield f"{_closing(closed[lane], now_ms, command)}; {counted(n, 'job')} ready for it"
            elif lane not in drained and not is_cut_short:
                why = "the settings turn it off" if not policy.lanes[lane].enabled else "this drain did not have it"
                yield f"lane {lane} was not drained, since {why}; {counted(n, 'job')} ready for it"
    if store.any_ready(UNROUTED) and not is_cut_short:
        yield "some jobs have no lane yet; the next drain looks for one"
    if others := at_work(store):
        words = f"{counted(len(others), 'job')} in the hands of others ({whose(others)})"
        yield f"{words}; `{command('wait')}` waits for all that is asked"
    if away := elsewhere(store):
        yield f"{elsewhere_words(away)}; `{wait}` does"
    for lane, (n, why) in store.unasked(COUNTED_CALLS).items():
        words = f"lane {lane} could not be asked what became of {counted(n, 'call')}: {one_line(why)}"
        yield f"{words}; a drain asks again until the hold ends, and then the policy decides without it"
    for need in needs_decision(store.ready_after_unknown(COUNTED_CALLS), policy):
        yield f"{need.words}, unless you speak first: `{command('decide ID pin|same|fail')}`"
    if n := store.unwaited(COUNTED_CALLS):
        words = f"{counted(n, 'call')} of unknown end, for which no job waits any more, may still be heard of"
        yield f"{words}; `{command('reconcile')}` decides them when that is over"
    due_ms = store.next_due_ms()
    if due_ms is not None:
        yield f"the next waiting job is due in {age_words(max(due_ms - now_ms, 0))}; `{wait}` waits for it"
    for reason, n in store.waiting_for_person().items():
        if reason == "asked":
            which = f"`{command('jobs state:asked')}` lists them, `{command('explain ID')}` says what you can do"
            yield f"{counted(n, 'job')} waiting for your word after an unknown outcome; {which}"
        else:
            again = command(f"retry --filter state:{reason}")
            yield f"{counted(n, 'job')} waiting for a program that can load their type; `{again}` once it can"


def _closing(row: LaneRow, now_ms: int, command: Callable[[str], str]) -> str:
    reason = one_line(row.reason)
    if row.closed_until_ms is None:
        resume = command(f"lanes {row.lane} resume")
        return f"lane {row.lane} is closed until you open it ({reason}); mend that, then `{resume}`"
    state = "has no room" if row.closed_by == "saturated" else f"is {row.closed_by}"
    left = age_words(row.closed_until_ms - now_ms)
    return f"lane {row.lane} {state} for {left} more ({reason}); `{command('drain --until-empty')}` waits for it"
