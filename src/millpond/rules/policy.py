"""The policy: what lanes there are, which may serve what, how long to wait, how often to try. Frozen; every number says
its unit and where it comes from. `settings` builds it from files, environment and flags; code may build it directly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Literal

from millpond.rules.errors import SettingsError, UnknownLane
from millpond.rules.job import Outcome, Prompt, ServiceClass
from millpond.rules.price import UNKNOWN_PRICE, PriceRule
from millpond.rules.view import Declared, Idempotency

AfterHold = Literal["pin", "same", "ask", "fail"]
Recall = Literal["none", "store", "background"]
Spill = Literal["never", "when_late"] | int
"""Crossing to a dearer lane for want of room: never, when its due time would be missed, or after so many ms."""

OUTPUT_LIMITS = ("max_completion_tokens", "max_tokens")
"""The two names of a limit of output in params: OpenAI's reasoning models refuse the second, most local servers know
only it."""

FREE_FIRST_BYTE_MS = 300_000
"""First byte deadline of lanes priced 0: local models load and queue (DESIGN §6, O20)."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Our own deadlines for one call, in ms. A provider's client library has its own; ours are the ones that count."""

    connect_ms: int = 10_000
    first_byte_ms: int = 120_000
    idle_ms: int = 60_000
    """Longest silence between two bytes of the body; keep-alive comments do not count as bytes."""
    total_ms: int = 600_000


@dataclass(frozen=True, slots=True)
class LanePolicy:
    """One lane: an executor with its own price, limits and failure habits. `name` is its key in the file."""

    name: str
    kind: str = "chat"
    """`chat`, `command` (subprocess), `python` (module:callable), `callable` (given in code); "" if not said."""
    tier: str = "free"
    price: PriceRule = UNKNOWN_PRICE
    base_url: str = ""
    model: str = ""
    """The model the lane chooses when the caller names none."""
    models: Mapping[str, str] = field(default_factory=dict[str, str])
    """Name a caller may use -> name the provider knows (aliases)."""
    key_env: str = ""
    """Environment variable that holds the key; the key itself is never stored."""
    command: tuple[str, ...] = ()
    """kind `command`: the program and its arguments; the prompt goes to its standard input."""
    target: str = ""
    """kind `python`: `module:callable`."""
    max_attempts: int = 2
    """Counted attempts on this lane before the next lane is tried (third seed: two on the free lane)."""
    max_in_flight: int = 8
    serial: bool = False
    """One job at a time through this lane, across processes."""
    soft_timeout_ms: int | None = None
    """After this the job no longer waits for the call: the attempt is ambiguous, the call is still listened to."""
    deadlines: Deadlines = Deadlines()
    after_hold: AfterHold = "pin"
    hold_ms: Mapping[ServiceClass, int] = field(default_factory=lambda: {"realtime": 60_000, "batch": 900_000})
    pin_on: frozenset[Outcome] = frozenset({"ambiguous"})
    """Outcomes after which the next lane is tried at once. The third seed's list adds `permanent`."""
    recall: Recall = "none"
    """`store`: the lane keeps its answers, and is asked for those whose call ended in the dark."""
    settling_ms: int = 0
    """How long after its end a call may not be listed yet: only then does its absence prove that no work was done."""
    can_detach: bool = True
    idempotency: Idempotency = "none"
    retry_500: bool = False
    """The provider documents that a 500 did no work and costs nothing."""
    effects: bool = False
    """kind `callable`: an unforeseen exception may have had effects, so it is ambiguous rather than retryable."""
    streams: bool = True
    """Ask for a streamed reply where the kind can."""
    supports_schema: bool = True
    supports_tools: bool = True
    supports_images: bool = True
    context_tokens: int | None = None
    max_output_tokens: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    params: Mapping[str, object] = field(default_factory=dict[str, object])
    dedup_header: str = "Idempotency-Key"
    proxy: str = ""
    ca_file: str = ""
    rpm: int | None = None
    """Requests a minute that the provider grants. Read once admission paces lanes; until then a 429 closes the lane."""
    tpm: int | None = None
    """Tokens a minute that the provider grants. Read together with `rpm`."""
    daily_requests: int | None = None
    """Requests a day that the provider grants; the day turns in `reset_tz`. Read together with `rpm`."""
    daily_tokens: int | None = None
    """Tokens a day that the provider grants. Read together with `rpm`."""
    reset_tz: str = "UTC"
    """Time zone in which the provider's day turns, by its IANA name. Read together with `rpm`."""
    enabled: bool = True

    @property
    def can_recall(self) -> bool:
        """Whether the lane is asked what became of a call. `background` is not read yet."""
        return self.recall == "store"

    @property
    def runs_code(self) -> bool:
        """Whether it runs code of the user's rather than asking a model."""
        return self.kind in ("callable", "python", "command")

    @property
    def width(self) -> int:
        """Calls at the same time."""
        return 1 if self.serial else self.max_in_flight

    @property
    def is_local(self) -> bool:
        """Whether it is a server on this machine: one that refuses connections is not running, not busy."""
        host = self.base_url.partition("://")[2].partition("/")[0].rpartition("@")[2]
        return host.startswith(("127.", "localhost", "[::1]"))

    @property
    def declared(self) -> Declared:
        """What it declares about itself, for the table that judges an ending."""
        return Declared(
            retry_500=self.retry_500,
            exceptions_harmless=self.runs_code and not self.effects,
            idempotency=self.idempotency,
            local=self.is_local,
        )

    def offers(self, model: str) -> bool:
        """Whether a model that the caller named is served here, by its own name or by an alias.

        A callable that declares no model at all chooses for itself, so it serves any; a program must declare its own.
        """
        if self.kind in ("callable", "python") and not self.model and not self.models:
            return True
        return model == self.model or model in self.models or model in self.models.values()

    def model_for(self, work: object) -> str:
        """The model as the provider knows it: the one the caller named, through the aliases, else the lane's own."""
        model = work.model if isinstance(work, Prompt) and work.model is not None else self.model
        return self.models.get(model, model)

    def output_limit(self, work: object) -> int | None:
        """The most tokens that one answer may have: the prompt's own limit, held under the lane's; None without one.

        A lane that runs code is bound by its own limit alone: nobody makes a function heed a parameter.
        """
        asked = {**self.params, **work.params} if isinstance(work, Prompt) and not self.runs_code else {}
        limits = [limit for name in OUTPUT_LIMITS if type(limit := asked.get(name)) is int and limit > 0]
        own = max(limits, default=None)  # of two names a server may read either
        if own is None or self.max_output_tokens is None:
            return own or self.max_output_tokens
        return min(own, self.max_output_tokens)


@dataclass(frozen=True, slots=True)
class Backoff:
    """The pause before a retryable attempt is repeated: first_ms doubled each time up to cap_ms, plus jitter."""

    first_ms: int = 500
    cap_ms: int = 60_000
    jitter: float = 0.5
    """Up to this share of the pause is added, by a chance that is drawn outside."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Everything that decides. `lanes` stand in the user's order of preference."""

    lanes: Mapping[str, LanePolicy] = field(default_factory=dict[str, LanePolicy])
    routing: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """intent or command type -> names of lanes, in order; what is not named uses all lanes."""
    backoff: Backoff = Backoff()
    saturated_default_ms: int = 5_000
    """How long a saturated lane stays closed when it does not say."""
    saturated_floor_ms: int = 100
    """The least that a saturated lane stays closed, doubled for each further closing in a row up to the default above:
    a `Retry-After: 0` must not become a loop of calls."""
    saturated_cap_ms: int = 3_600_000
    """No Retry-After closes a lane for longer than this (O32)."""
    max_attempts_per_job: int = 12
    """Lifetime cap of counted attempts over all lanes; a person's retry grants as many again (O13)."""
    max_unusable_per_job: int = 2
    """Paid-for replies of the wrong shape before the job fails."""
    max_leases_lost: int = 10
    lane_down_after: int = 5
    """Consecutive refused connections that close a lane (a local server that is not running)."""
    lane_down_probe_ms: int = 30_000
    """How long a lane that refuses connections stays closed before it is tried again."""
    fair_every: int = 16
    """One in this many leases goes by age alone (O02)."""
    late_completion_window_ms: int = 900_000
    """An attempt is held for min(hold, this). Third seed: 900 s."""
    recall_first_ms: int = 1_000
    """The least between two questions to a lane about one call; each further one waits as long again as it is that its
    end became unknown, so a reply is found within twice the time it took to be there. Ours."""
    artifact_max_age_ms: int | None = None
    """Older artifacts are stale and retired when asked for; None: an answer stays good."""
    lease_ms: int = 60_000
    wake_chunk_rows: int = 256
    """Due waiting rows woken per lease."""
    durable: bool = True
    """False only by `durability: normal`: acknowledged writes may be lost at power loss."""
    idle_exit_ms: int = 2_000
    """A foreground drain ends when nothing is ready, in flight or due within this."""
    grace_ms: int = 30_000
    """How long the first signal waits for calls in flight."""
    spill: Spill | None = None
    """None: `when_late` for a job with a due time, else never. Read once crossing for want of room exists."""
    caps: Mapping[str, Decimal] = field(default_factory=dict[str, Decimal])
    """Name (`all`, or a lane) -> USD a day, days in `tz`. Read by the spend book."""
    alerts: Mapping[str, float] = field(default_factory=dict[str, float])
    """Name of a measure -> the value above which it alerts. Read by the report."""
    tz: str = "UTC"
    """Time zone of a cap's day, by its IANA name."""
    absent: frozenset[str] = frozenset()
    """Lanes that this drain does not have, though they are on: work whose turn on them has come waits for them."""

    def lane(self, name: str) -> LanePolicy:
        """The lane of that name; raises UnknownLane naming those that exist."""
        try:
            return self.lanes[name]
        except KeyError:
            known = ", ".join(self.lanes) or "none"
            raise UnknownLane(f"unknown lane {name!r}; configured lanes: {known}") from None

    @property
    def free_lanes(self) -> frozenset[str]:
        """The lanes that surely cost nothing. One whose price is not known is not among them."""
        return frozenset(name for name, lane in self.lanes.items() if lane.price.kind == "free")

    def after_hold(self, lane: str) -> AfterHold:
        """What follows when the hold of an attempt on that lane is over; `pin` for a lane that has left the policy."""
        return self.lanes[lane].after_hold if lane in self.lanes else "pin"

    def order_for(self, route: str) -> tuple[str, ...]:
        """The names of the lanes that may serve an intent or command type, in order of preference, enabled or not."""
        return self.routing.get(route, tuple(self.lanes))

    def check(self) -> None:
        """Refuse a policy that cannot be carried out: routes to unknown lanes, widths and attempts below 1."""
        for route, names in self.routing.items():
            if len(set(names)) < len(names):
                raise SettingsError(f"routing.{route}: found {', '.join(names)}, wanted each lane once")
            for name in names:
                if name not in self.lanes:
                    known = ", ".join(self.lanes) or "none"
                    raise UnknownLane(f"routing.{route}: unknown lane {name!r}; configured lanes: {known}")
        for lane in self.lanes.values():
            for what in ("max_attempts", "max_in_flight"):
                if getattr(lane, what) < 1:
                    raise SettingsError(f"lanes.{lane.name}.{what}: found {getattr(lane, what)}, wanted 1 or more")
