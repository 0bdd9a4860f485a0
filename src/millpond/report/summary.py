"""What a drain did, and what it left: the figures, and the same in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from decimal import Decimal
from typing import Literal

from millpond.report.words import counted, usd
from millpond.rules.html import table

Reason = Literal["empty", "idle", "max_jobs", "max_iters", "budget", "stopped", "signal", "lock_held"]


@dataclass(frozen=True, slots=True)
class LaneSummary:
    """One lane's part of a drain. `spent_usd` counts calls with a known cost, `unpriced` those without.

    `untold` counts calls that did the work, or may have, and whose tokens nobody told: then the tokens are too few.
    """

    attempts: int = 0
    ok: int = 0
    ambiguous: int = 0
    saturated: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    untold: int = 0
    spent_usd: Decimal = Decimal(0)
    unpriced: int = 0


@dataclass(frozen=True, slots=True)
class Summary:
    """What a drain did (jobs, attempts, money) and what it left (`waiting` to `next_due_ms`, as the queue stands now).

    `reason` says why it ended; `stopped`: work is left for lanes that a person has stopped (`Queue.stop`). `leased` are
    in the hands of others, since its own calls have ended.

    `cancelled` counts how often a job was cancelled while it ran, by whomever; some may have been asked again since.
    `spent_usd` is the known part of what its calls cost, and `unpriced` how many it leaves out; of these, `unknown`
    are calls of unknown end, which cost at most `unknown_usd` (None: unknown); `untold` how many the tokens leave
    out. `saved_by_dedup` counts requests that it answered without a call of their own (what was reused at the door
    cost no drain anything: see Report). `paid_twice` counts calls beyond the one that answered which may have been
    billed: late losers, and ambiguous attempts after which the same work was called for again, whoever asked for
    that; calls on lanes priced 0 are never among them. `recalled` counts answers that nobody had heard and that
    their lanes were asked for, `given_up` calls of unknown end that were decided since nobody waited for them.
    `paid_twice_usd` is None where one of them has no known price; `saved_usd` likewise.
    """

    done: int = 0
    failed: int = 0
    cancelled: int = 0
    waiting: int = 0
    held: int = 0
    ready: int = 0
    leased: int = 0
    offloaded: int = 0
    skipped: int = 0
    next_due_ms: int | None = None
    attempts: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    untold: int = 0
    spent_usd: Decimal = Decimal(0)
    unpriced: int = 0
    unknown: int = 0
    unknown_usd: Decimal | None = Decimal(0)
    saved_by_dedup: int = 0
    saved_usd: Decimal | None = Decimal(0)
    paid_twice: int = 0
    paid_twice_usd: Decimal | None = Decimal(0)
    recalled: int = 0
    given_up: int = 0
    by_lane: Mapping[str, LaneSummary] = field(default_factory=dict[str, LaneSummary])
    reason: Reason = "empty"
    holder: str | None = None

    def _repr_html_(self) -> str:
        figures = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "by_lane"}
        lanes = {f"lane {name}": f"{lane.ok:,} ok of {lane.attempts:,}" for name, lane in self.by_lane.items()}
        return table("Summary of a drain", figures | lanes)

    def _spent(self) -> str:
        spent = f"spent {usd(self.spent_usd)}"
        if unpriced := self.unpriced - self.unknown:
            spent += f" + {counted(unpriced, 'call')} unpriced"
        if self.unknown:
            at_most = f"at most {usd(self.unknown_usd)}" if self.unknown_usd is not None else "at an unknown cost"
            spent += f" + {counted(self.unknown, 'call')} of unknown end, {at_most}"
        return spent

    def in_words(self) -> str:
        """One line: `done 298 · failed 2 · spent $0.49 · saved $0.37 by 21 joined · 0 paid twice · …`."""
        if self.reason == "lock_held":
            return f"nothing drained: {self.holder} drains this queue"
        parts = [f"done {self.done:,}", f"failed {self.failed:,}"]
        parts += [f"cancelled {self.cancelled:,}"] if self.cancelled else []
        parts.append(self._spent())
        parts.append(f"saved by dedup {self.saved_by_dedup:,} ({usd(self.saved_usd)})")
        parts.append(f"paid twice {self.paid_twice:,}" + (f" ({usd(self.paid_twice_usd)})" if self.paid_twice else ""))
        parts += [f"recalled {self.recalled:,}"] if self.recalled else []
        parts += [f"given up {self.given_up:,}"] if self.given_up else []
        tokens = self.tokens_in + self.tokens_out
        if self.done and (tokens or not self.untold):
            parts.append(f"{'at least ' if self.untold else ''}{tokens // self.done:,} tokens/artifact")
        left = [f"{name} {n:,}" for name in ("ready", "leased", "waiting", "offloaded") if (n := getattr(self, name))]
        if left:
            parts.append("left: " + ", ".join(left) + (f" ({self.held:,} held)" if self.held else ""))
        parts += ["stopped by a person"] if self.reason == "stopped" else []
        return " · ".join(parts)
