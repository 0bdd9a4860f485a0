"""How the queue stands now: counts, lanes, what is late, what needs a person. Costs the same at any backlog."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from millpond.db.sqlite import SqliteDatabase
from millpond.engine.drain_lock import Holder
from millpond.report.spending import Spending, today
from millpond.report.spooled import spooled
from millpond.report.standing import Stalled, abandoned, elsewhere, elsewhere_words, hidden, stalled, unheard
from millpond.report.words import columns, counted
from millpond.rules.effects import UNROUTED
from millpond.rules.job import OwnerRow
from millpond.rules.lifecycle import pending
from millpond.rules.policy import LanePolicy, Policy
from millpond.rules.stops import Stop, stop_of
from millpond.rules.times import age_words, show_ms
from millpond.spend.book import SpendBook
from millpond.store.lanes import LaneRow
from millpond.store.reader import COUNT_LIMIT
from millpond.store.store import Store

LaneState = Literal["open", "saturated", "down", "paused", "stopped", "off", "unknown"]
"""`paused` and `stopped` by a person, `off` by the settings, `unknown`: work waits for a lane that the settings do not
name."""

UNATTENDED_MS = 60_000
"""Ready work without a drainer is an alert from this age on: a queue may be filled first and drained after."""


@dataclass(frozen=True, slots=True)
class LaneStatus:
    """One lane. `ready` is counted up to 10,000."""

    name: str
    state: LaneState
    reason: str | None
    closed_until_ms: int | None
    """None while it is closed: until a person opens it."""
    since_ms: int | None
    in_flight: int
    max_in_flight: int
    ready: int
    tier: str


@dataclass(frozen=True, slots=True)
class Alert:
    """A measure beyond its limit, since when."""

    name: str
    value: float
    limit: float
    since_ms: int


@dataclass(frozen=True, slots=True)
class Need:
    """Something that a person must look at, in words, and the command that does it."""

    name: str
    words: str
    next: str


@dataclass(frozen=True, slots=True)
class Status:
    """CONTRACT's `--json status`."""

    counts: Mapping[str, int]
    oldest_ready_ms: int | None
    """When the oldest ready job was made."""
    next_due_ms: int | None
    """When the clock next wakes a waiting job."""
    joined: int
    reused: int
    lanes: tuple[LaneStatus, ...]
    drainer: Mapping[str, Any] | None
    """pid, host, since_ms of who drains now; None if nobody does."""
    alerts: tuple[Alert, ...]
    needs_you: tuple[Need, ...]
    now_ms: int
    spend: Spending
    stopped: tuple[Stop, ...] = ()
    """What persons have stopped, and nobody has resumed."""

    @property
    def pending(self) -> int:
        """Jobs that are not settled."""
        return pending(self.counts)

    def in_words(self) -> str:
        """One screen."""
        lines = [self._drainer_line(), self._counts_line()]
        late = [f"oldest ready {age_words(self.now_ms - self.oldest_ready_ms)}"] if self.oldest_ready_ms else []
        late += [f"next due {show_ms(self.next_due_ms)}"] if self.next_due_ms else []
        late.append(f"joined {self.joined:,}  reused {self.reused:,}")
        lines.append("  ".join(late))
        lines += [money, ""] if (money := self.spend.in_words()) else [""]
        lines += _table(self.lanes, self.now_ms) if self.lanes else ["no lanes; `millpond init` writes a millpond.yaml"]
        if self.needs_you:
            lines += ["", "needs you"]
            lines += [f"! {need.words}; next: {need.next}" for need in self.needs_you]
        return "\n".join(lines)

    def _drainer_line(self) -> str:
        if self.drainer is None:
            return "nobody drains this queue"
        since = age_words(self.now_ms - self.drainer["since_ms"])
        return f"draining: pid {self.drainer['pid']} on {self.drainer['host']} for {since}"

    def _counts_line(self) -> str:
        shown = {name: n for name, n in self.counts.items() if name != "held"}
        held = f" ({self.counts['held']:,} held)" if self.counts["held"] else ""
        return "  ".join(f"{name} {n:,}{held if name == 'waiting' else ''}" for name, n in shown.items())


def build(store: Store, book: SpendBook, policy: Policy, drainer: Holder | None) -> Status:
    """Look at the queue once. Several short reads: the figures may be a few ms apart from each other."""
    now_ms = store.now_ms()
    counts, tally, closed = store.counts(), store.tally(), store.closed_lanes()
    calls, stops = store.calls_in_flight(), store.stops()
    stopped = {name: stop for name in policy.lanes if (stop := stop_of(stops, name, policy.free_lanes)) is not None}
    lanes = [
        _stopped(lane, stopped[name], calls, store)
        if name in stopped and lane.enabled
        else _lane(lane, closed.get(name), calls, store)
        for name, lane in policy.lanes.items()
    ]
    left_over = [row for name, row in closed.items() if name not in policy.lanes]
    lanes += [_stranger(row, calls, store) for row in left_over]
    is_all_stopped = any(stop.scope == "all" for stop in stops)
    can_go_on = not is_all_stopped and (
        store.any_ready(UNROUTED) or any(lane.ready and lane.state in ("open", "unknown") for lane in lanes)
    )
    oldest_ms = store.oldest_ready_ms(["", *(lane.name for lane in lanes)])
    awaited = [] if is_all_stopped else ["", *(lane.name for lane in lanes if lane.state != "stopped")]
    unattended_ms = store.oldest_ready_ms(awaited) if drainer is None else None
    still = stalled(store)
    return Status(
        counts=counts,
        oldest_ready_ms=oldest_ms,
        next_due_ms=store.next_due_ms(),
        joined=tally.get("joined", 0),
        reused=tally.get("reused", 0),
        lanes=tuple(lanes),
        drainer=_holder(drainer),
        alerts=(*_alerts(lanes, unattended_ms, now_ms), *_alerts_of_stalled(still, now_ms)),
        needs_you=(
            *_needs_resume(stops, now_ms),
            *_needs_spooled(store),
            *(Need("stands_still", one.in_words(), one.next) for one in still),
            *(
                Need("hidden", f"nobody knows whether {one} lives: {one.why}", "millpond doctor")
                for one in hidden(store)
            ),
            *_needs_watching(elsewhere(store), drainer),
            *_needs(lanes, counts, store.waiting_for_person()),
            *(
                (
                    *_needs_questions(counts, store, policy),
                    *needs_decision(store.ready_after_unknown(), policy),
                    *_needs_reconcile(store.unwaited()),
                    *_needs_taking_back(len(abandoned(store)), len(unheard(store))),
                    *_needs_drain(lanes, unattended_ms, now_ms, can_go_on=can_go_on),
                )
                if drainer is None
                else ()
            ),
        ),
        now_ms=now_ms,
        spend=today(book, now_ms),
        stopped=stops,
    )


def _lane(lane: LanePolicy, closed: LaneRow | None, calls: Mapping[str, int], store: Store) -> LaneStatus:
    words: dict[str, LaneState] = {"saturated": "saturated", "down": "down", "person": "paused"}
    state: LaneState = "off" if not lane.enabled else words[closed.closed_by] if closed else "open"
    return LaneStatus(
        name=lane.name,
        state=state,
        reason=one_line(closed.reason) if closed else None,
        closed_until_ms=closed.closed_until_ms if closed else None,
        since_ms=closed.since_ms if closed else None,
        in_flight=calls.get(lane.name, 0),
        max_in_flight=lane.width,
        ready=store.ready_of_lane(lane.name),
        tier=lane.tier,
    )


def _stopped(lane: LanePolicy, stop: Stop, calls: Mapping[str, int], store: Store) -> LaneStatus:
    """A person's word that nothing is sent stands above what the lane itself said."""
    return LaneStatus(
        name=lane.name,
        state="stopped",
        reason=stopped_words(stop),
        closed_until_ms=None,
        since_ms=stop.since_ms,
        in_flight=calls.get(lane.name, 0),
        max_in_flight=lane.width,
        ready=store.ready_of_lane(lane.name),
        tier=lane.tier,
    )


def stopped_words(stop: Stop) -> str:
    """What is stopped, since when, and by whom it was said."""
    return f"{stop.words} stopped by a person since {show_ms(stop.since_ms)} ({stop.origin})"


def _stranger(row: LaneRow, calls: Mapping[str, int], store: Store) -> LaneStatus:
    ready, in_flight = store.ready_of_lane(row.lane), calls.get(row.lane, 0)
    return LaneStatus(
        row.lane, "unknown", one_line(row.reason), row.closed_until_ms, row.since_ms, in_flight, 0, ready, ""
    )


def _holder(drainer: Holder | None) -> Mapping[str, Any] | None:
    return {"pid": drainer.pid, "host": drainer.host, "since_ms": drainer.since_ms} if drainer else None


def _alerts(lanes: Sequence[LaneStatus], unattended_ms: int | None, now_ms: int) -> Iterator[Alert]:
    """`unattended_ms`: when the oldest ready job was made that nobody drains, though nobody has stopped its lane."""
    for lane in lanes:
        if lane.state == "down":
            yield Alert(f"lane_down:{lane.name}", 1, 0, lane.since_ms or now_ms)
    if unattended_ms is not None and now_ms - unattended_ms > UNATTENDED_MS:
        age_s = (now_ms - unattended_ms) / 1000
        yield Alert("no_drainer_s", age_s, UNATTENDED_MS / 1000, unattended_ms + UNATTENDED_MS)


def _alerts_of_stalled(stalled: Sequence[Stalled], now_ms: int) -> Iterator[Alert]:
    for one in stalled:
        lease_ms = one.standing.lease_ms
        yield Alert(f"stands_still_s:{one.pid}", one.age_ms / 1000, lease_ms / 1000, now_ms - one.age_ms + lease_ms)


def _needs_watching(away: Mapping[int, OwnerRow], drainer: Holder | None) -> Iterator[Need]:
    """What may be left of a machine that is gone; whoever drains watches for that."""
    if away and drainer is None:
        yield Need("elsewhere", elsewhere_words(away), "millpond drain --until-empty")


def _needs_spooled(store: Store) -> Iterator[Need]:
    if isinstance(store.db, SqliteDatabase):
        yield from (Need("spooled", one.words, one.next) for one in spooled(store.db.lock_folder))


def _needs_resume(stops: Sequence[Stop], now_ms: int) -> Iterator[Need]:
    for stop in stops:
        words = f"a person has stopped {stop.words} ({stop.origin}, {age_words(now_ms - stop.since_ms)} ago)"
        yield Need("stopped", words, f"millpond resume{stop.argument}")


def _needs(
    lanes: Sequence[LaneStatus],
    counts: Mapping[str, int],
    waiting: Mapping[str, int],
) -> Iterator[Need]:
    for lane in lanes:
        if lane.state == "down":
            until = f", tried again at {show_ms(lane.closed_until_ms)}" if lane.closed_until_ms else ""
            mend = (
                "millpond doctor" if lane.closed_until_ms else f"millpond lanes {lane.name} resume, once it is mended"
            )
            yield Need("lane_down", f"lane {lane.name} is down: {lane.reason}{until}", mend)
    if counts["failed"]:
        yield Need("failed", f"{counted(counts['failed'], 'job')} failed", "millpond jobs state:failed")
    for reason, n in waiting.items():
        what, do = _WAITING_FOR[reason]
        yield Need(reason, f"{counted(n, 'job')} waiting {what}", f"millpond jobs state:{reason}{do}")


_WAITING_FOR = {
    "asked": ("for your word after an unknown outcome", ", then millpond decide ID pin|same|fail"),
    "undeliverable": ("for a program that can load their type", ""),
}
"""Why a job waits for a person -> for what, and what follows a look at these."""


def _needs_questions(counts: Mapping[str, int], store: Store, policy: Policy) -> Iterator[Need]:
    """Calls that their lanes could be asked for, where nobody drains and so nobody asks."""
    can_be_asked = [name for name, lane in policy.lanes.items() if lane.can_recall]
    if can_be_asked and store.next_ask_ms(can_be_asked) is not None:
        held = f"{counted(counts['held'], 'job')} held, since " if counts["held"] else ""
        words = f"{held}the outcome of a call is unknown; its lane can be asked, and nobody does"
        yield Need("unknown", words, "millpond reconcile")


def needs_decision(unknown: Mapping[str, int], policy: Policy) -> Iterator[Need]:
    """What the next drain pays again without another word: a person may want to speak first."""
    for name, n in unknown.items():
        lane = policy.lanes.get(name)
        is_no_loss = lane is not None and (lane.can_recall or lane.price.kind == "free")
        if policy.after_hold(name) in ("pin", "same") and not is_no_loss:
            has = "has" if n == 1 else "have"
            words = f"{counted(n, 'job')} {has} a call of unknown end on lane {name}; the next drain pays again"
            yield Need("pays_again", words, "millpond decide ID pin|same|fail, or let it")


def _needs_reconcile(unwaited: int) -> Iterator[Need]:
    """Calls of jobs that are over: what they cost is reserved until somebody says what became of them."""
    if unwaited:
        words = f"{counted(unwaited, 'call')} of unknown end for which no job waits any more; the cost stays reserved"
        yield Need("undecided", words, "millpond reconcile")


def _needs_taking_back(abandoned: int, unheard: int) -> Iterator[Need]:
    """What the dead still hold: leased jobs, and calls that they listened to."""
    if abandoned:
        whose = "its worker has died; the next drain takes it back"
        if abandoned > 1:
            whose = "their workers have died; the next drain takes them back"
        yield Need("abandoned", f"{counted(abandoned, 'job')} leased, but {whose}", "millpond drain")
    if unheard:
        whose = "its listener has died; the next drain ends its hold"
        if unheard > 1:
            whose = "their listeners have died; the next drain ends their holds"
        yield Need("unheard", f"{counted(unheard, 'call')} of unknown end, but {whose}", "millpond drain")


def _needs_drain(lanes: Sequence[LaneStatus], oldest_ms: int | None, now_ms: int, *, can_go_on: bool) -> Iterator[Need]:
    """What the next drain brings, where nobody drains: named only if that drain has something to do."""
    if oldest_ms is None:
        return
    opening = [lane for lane in lanes if lane.ready and lane.closed_until_ms is not None]
    if can_go_on:
        words = f"work is ready and nobody drains; the oldest was made {age_words(now_ms - oldest_ms)} ago"
        yield Need("no_drainer", words, "millpond drain")
    elif opening:
        first = min(opening, key=lambda lane: lane.closed_until_ms or 0)
        left = age_words((first.closed_until_ms or now_ms) - now_ms)
        words = f"work is ready and nobody drains; all its lanes are closed, {first.name} for {left} more"
        yield Need("no_drainer", words, "millpond drain --until-empty")


def one_line(text: str) -> str:
    """A provider's words as one line, so that they cannot pass for lines of ours."""
    return " ".join(text.split())


def _table(lanes: Sequence[LaneStatus], now_ms: int) -> list[str]:
    rows = [("lane", "state", "calls", "ready", "")]
    for lane in lanes:
        more = "+" if lane.ready == COUNT_LIMIT else ""
        calls = f"{lane.in_flight}/{lane.max_in_flight}"
        rows.append((lane.name, lane.state, calls, f"{lane.ready:,}{more}", _closing(lane, now_ms)))
    return columns(rows)


def _closing(lane: LaneStatus, now_ms: int) -> str:
    if lane.reason is None:
        return ""
    if lane.state == "stopped":
        return lane.reason
    if lane.closed_until_ms is None:
        return f"until a person opens it: {lane.reason}"
    return f"for {age_words(lane.closed_until_ms - now_ms)} more: {lane.reason}"
