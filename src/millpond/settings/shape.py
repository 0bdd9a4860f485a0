"""The shape of millpond.yaml: every key, its type, its default, and one sentence for editors.

Durations are seconds here (`…_s`) and milliseconds in the Policy. A default that stands in the Policy is taken from
there. None means that the key was not said; `fill` then puts in what follows from other keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from millpond.rules.job import Outcome
from millpond.rules.policy import AfterHold, Backoff, Deadlines, LanePolicy, Policy, Recall
from millpond.rules.view import Idempotency

POLICY, LANE, DEADLINES, BACKOFF = Policy(), LanePolicy(""), Deadlines(), Backoff()

KINDS = ("chat", "responses", "messages", "openai-batch", "anthropic-batch", "command", "python")
"""Kinds of lanes that need no plugin. Others come from the entry points of the group `millpond.lanes`."""

# --- types -----------------------------------------------------------------------------------------------------------


def wanted(what: str) -> PydanticCustomError:
    """A fault in the words of the user: what would have been accepted."""
    return PydanticCustomError("wanted", "{wanted}", {"wanted": what})


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise wanted("a number")
    return value


def _matching(pattern: str, what: str) -> AfterValidator:
    compiled = re.compile(pattern)

    def check(value: str) -> str:
        if not compiled.fullmatch(value):
            raise wanted(what)
        return value

    return AfterValidator(check)


def _headers(value: Mapping[str, str]) -> Mapping[str, str]:
    for name, text in value.items():
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) or re.search(r"[\r\n\0]", text):
            raise wanted("names and values of HTTP headers, each on one line")
    return value


def _zone(value: str) -> str:
    from zoneinfo import ZoneInfo

    try:
        if value != "UTC":
            ZoneInfo(value)
    except (OSError, ValueError) as fault:  # a zone that is not found is a KeyError of its own kind, caught below
        raise wanted("a time zone by its IANA name, such as Europe/Berlin") from fault
    except KeyError as fault:
        raise wanted("a time zone by its IANA name, such as Europe/Berlin") from fault
    return value


def _choose(*choices: tuple[Callable[[Any], bool], str], otherwise: str) -> Discriminator:
    """Which member of a union is meant; what fits none is told `otherwise`, in one line instead of one a member."""

    def tag(value: Any) -> str | None:
        return next((name for fits, name in choices if fits(value)), None)

    return Discriminator(tag, custom_error_type="wanted", custom_error_message=otherwise)


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float, str, Decimal)):
        return False
    try:
        return Decimal(str(value)).is_finite()
    except InvalidOperation:
        return False


def _is_mapping(value: Any) -> bool:
    return isinstance(value, (Mapping, BaseModel))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


Number = BeforeValidator(_no_bool)
MOST = 1_000_000_000
"""No count and no duration (32 years) is larger; in ms it still fits every integer of a database."""
Count = Annotated[int, Number, Field(ge=1, le=MOST)]
Seconds = Annotated[float, Number, Field(ge=0, le=MOST, allow_inf_nan=False)]
MoreSeconds = Annotated[float, Number, Field(gt=0, le=MOST, allow_inf_nan=False)]
Share = Annotated[float, Number, Field(ge=0, allow_inf_nan=False)]
Usd = Annotated[Decimal, Number, Field(ge=0, allow_inf_nan=False)]
Zone = Annotated[str, AfterValidator(_zone)]
KeyName = Annotated[
    str,
    _matching(r"[A-Za-z_][A-Za-z0-9_]*", "the name of the environment variable that holds the key, not the key itself"),
]
Address = Annotated[str, _matching(r"https?://[^\s/]+\S*", "an address that starts with http:// or https://")]
Dotted = Annotated[str, _matching(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", "module:name")]
LaneName = Annotated[str, _matching(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", "a lane's name of letters, digits, _ and -")]
Token = Annotated[str, _matching(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", "the name of an HTTP header")]


class Section(BaseModel):
    """A part of the file. Keys that it does not know are faults."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, hide_input_in_errors=True)


# --- lanes -----------------------------------------------------------------------------------------------------------


class Figures(Section):
    """What a lane's calls cost, in USD. Either both token prices, or `call_usd`, or all three."""

    input_usd_per_mtok: Usd | None = None
    """USD for a million tokens of input."""
    output_usd_per_mtok: Usd | None = None
    """USD for a million tokens of output."""
    call_usd: Usd | None = None
    """USD for each call."""


PRICE_WORDS = "0, auto, USD for each call, or input_usd_per_mtok and output_usd_per_mtok"
Price = Annotated[
    Annotated[Literal["auto"], Tag("<auto>")] | Annotated[Usd, Tag("<call>")] | Annotated[Figures, Tag("<figures>")],
    _choose(
        (_is_mapping, "<figures>"),
        (_is_number, "<call>"),
        (lambda value: value == "auto", "<auto>"),
        otherwise=PRICE_WORDS,
    ),
]


class Hold(Section):
    """How long an ambiguous attempt is held, by service class."""

    realtime: Seconds = LANE.hold_ms["realtime"] / 1000
    """Seconds for work that somebody waits for."""
    batch: Seconds = LANE.hold_ms["batch"] / 1000
    """Seconds for everything else."""


HoldSeconds = Annotated[
    Annotated[Seconds, Tag("<seconds>")] | Annotated[Hold, Tag("<by class>")],
    _choose(
        (_is_mapping, "<by class>"), (_is_number, "<seconds>"), otherwise="seconds, or realtime and batch with seconds"
    ),
]


class LaneDeadlines(Section):
    """Our own deadlines for one call, in seconds."""

    connect_s: MoreSeconds = DEADLINES.connect_ms / 1000
    """Until the connection stands."""
    first_byte_s: MoreSeconds | None = None
    """Until the first byte of the reply. Default 120; 300 on a lane priced 0, whose model may have to load first."""
    idle_s: MoreSeconds = DEADLINES.idle_ms / 1000
    """Longest silence within a reply."""
    total_s: MoreSeconds | None = None
    """The whole call. Default 600, or twice first_byte_s if that is longer."""


class Lane(Section):
    """One lane: an executor with its own price, limits and failure habits."""

    kind: str = ""
    """chat, responses, messages, openai-batch, anthropic-batch, command, python, or a plugin's. Without one a lane
    serves drill, report and router only."""
    tier: Literal["free", "paid"] | None = None
    """Default: the lane's name if that is free or paid; else free if priced 0, and paid if not."""
    price: Price | None = None
    """0 is free; auto asks the price table; a number is USD for each call; absent is unknown, which is not free."""
    base_url: Address | None = None
    """Where the provider's API begins, such as http://127.0.0.1:11434/v1."""
    model: str = LANE.model
    """The model that this lane uses when the caller names none."""
    models: (
        Annotated[
            Annotated[list[str], Tag("<list>")] | Annotated[dict[str, str], Tag("<aliases>")],
            _choose((_is_list, "<list>"), (_is_mapping, "<aliases>"), otherwise="a list of models, or name: model"),
        ]
        | None
    ) = None
    """Models that callers may name here: a list, or a mapping from the name they use to the provider's."""
    key_env: KeyName | None = None
    """The environment variable that holds the key. The key itself never stands in a file."""
    command: (
        Annotated[
            Annotated[str, Tag("<text>")] | Annotated[list[str], Tag("<list>")],
            _choose(
                (_is_text, "<text>"), (_is_list, "<list>"), otherwise="a program with its arguments, as text or a list"
            ),
        ]
        | None
    ) = None
    """kind command: the program and its arguments. The prompt goes to its standard input."""
    target: Dotted | None = None
    """kind python: module:callable."""
    max_attempts: Count = LANE.max_attempts
    """Counted attempts on this lane before the next one is tried."""
    max_in_flight: Count = LANE.max_in_flight
    """Calls at the same time."""
    serial: bool = LANE.serial
    """One job at a time, across processes."""
    soft_timeout_s: MoreSeconds | None = None
    """After this the job no longer waits for the call; a late reply still counts."""
    deadlines: LaneDeadlines = LaneDeadlines()
    """connect_s, first_byte_s, idle_s, total_s."""
    hold_s: HoldSeconds | None = None
    """This lane's own hold, instead of reconcile.hold_s."""
    after_hold: AfterHold | None = None
    """When an ambiguous attempt was held in vain: pin to the next lane, the same again, ask a person, or fail."""
    pin_on: list[Outcome] | None = None
    """Outcomes after which the next lane is tried at once. Default: ambiguous."""
    recall: Recall = LANE.recall
    """How the lane can be asked what became of a call whose end nobody heard. store (kind chat): each call asks the
    provider to keep its answer, and bears the attempt in its metadata. background is not read yet."""
    settling_s: Seconds = LANE.settling_ms / 1000
    """How long after its end a call may not be listed yet: only then does its absence prove that no work was done."""
    can_detach: bool = LANE.can_detach
    """Whether a call may be left running after its soft timeout."""
    idempotency: Idempotency = LANE.idempotency
    """What the provider does with an idempotency key that it has seen: nothing, reject, replay."""
    retry_500: bool = LANE.retry_500
    """The provider documents that a 500 did no work and costs nothing."""
    effects: bool = LANE.effects
    """kind python: an unforeseen exception may have had effects, so it is ambiguous rather than retryable."""
    streams: bool = LANE.streams
    """Ask for streamed replies."""
    supports_schema: bool = LANE.supports_schema
    """The lane's models can answer by a JSON Schema."""
    supports_tools: bool = LANE.supports_tools
    """The lane's models can call tools."""
    supports_images: bool = LANE.supports_images
    """The lane's models can read images."""
    context_tokens: Count | None = None
    """The context window; longer jobs are unfit for this lane."""
    max_output_tokens: Count | None = None
    """Longest answer; sent with each call."""
    headers: Annotated[dict[str, str], AfterValidator(_headers)] = Field(default_factory=dict[str, str])
    """Further HTTP headers."""
    params: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Sampling parameters that every call of this lane gets."""
    proxy: str = LANE.proxy
    """Address of a proxy."""
    ca_file: str = LANE.ca_file
    """File with the certificates to trust."""
    rpm: Count | None = None
    """Requests a minute that the provider grants. Read once admission paces lanes."""
    tpm: Count | None = None
    """Tokens a minute that the provider grants. Read once admission paces lanes."""
    daily_requests: Count | None = None
    """Requests a day that the provider grants. Read once admission paces lanes."""
    daily_tokens: Count | None = None
    """Tokens a day that the provider grants. Read once admission paces lanes."""
    reset_tz: Zone = LANE.reset_tz
    """Time zone in which the provider's day turns. Read once admission paces lanes."""
    enabled: bool = LANE.enabled
    """false: the lane takes no work."""


# --- the rest --------------------------------------------------------------------------------------------------------


class Reconcile(Section):
    """What becomes of attempts whose end is unknown."""

    late_completion_window_s: Seconds = POLICY.late_completion_window_ms / 1000
    """An attempt is held for hold_s, but never longer than this."""
    dedup_key: Token = LANE.dedup_header
    """The HTTP header that carries the idempotency key."""
    hold_s: HoldSeconds | None = None
    """How long an ambiguous attempt is held: seconds, or seconds by class. Default: realtime 60, batch 900; 0 in a file
    with pin_on and no hold_s."""
    after_hold: AfterHold | None = None
    """For lanes that do not say their own. Default: same on lanes priced 0, else pin."""


class SpillAfter(Section):
    """Cross to a dearer lane after waiting for room."""

    after_s: Seconds
    """Seconds of waiting."""


class Cap(Section):
    """A limit of spending."""

    day_usd: Usd
    """USD a day; days are those of `tz`."""


class Alerts(Section):
    """Values above which a measure alerts. Read once the report evaluates alerts."""

    cross_lane_retries_per_job: Share | None = None
    """Share of jobs that crossed lanes."""
    duplicate_artifacts_per_100_jobs: Share | None = None
    """Artifacts too many, per hundred jobs."""


class BackoffSection(Section):
    """The pause before a retryable attempt is repeated."""

    first_s: Seconds = BACKOFF.first_ms / 1000
    """Seconds before the second try; doubled each time."""
    cap_s: Seconds = BACKOFF.cap_ms / 1000
    """Longest pause."""
    jitter: Share = BACKOFF.jitter
    """Up to this share of the pause is added by chance."""


class PathSection(Section):
    """Where a database stands."""

    path: str | None = None
    """A file, relative to the file that says so; for the queue also postgresql://…"""


class File(Section):
    """millpond.yaml."""

    model_config = ConfigDict(title="millpond.yaml")

    lanes: dict[LaneName, Lane] = Field(default_factory=dict[str, Lane])
    """The lanes, in the order of preference."""
    routing: dict[str, Annotated[list[str], Field(min_length=1)]] = Field(default_factory=dict[str, list[str]])
    """Intent or command type: its lanes, in order. What is not named may use all lanes."""
    reconcile: Reconcile = Reconcile()
    """What becomes of attempts whose end is unknown."""
    free_lane_enabled: bool = True
    """false: lanes of tier free take no work."""
    spill: (
        Annotated[
            Annotated[Literal["never", "when_late"], Tag("<word>")] | Annotated[SpillAfter, Tag("<after>")],
            _choose(
                (_is_mapping, "<after>"), (_is_text, "<word>"), otherwise="never, when_late, or after_s with seconds"
            ),
        ]
        | None
    ) = None
    """Crossing to a dearer lane for want of room. Default: when_late if a due was given, else never. Read once crossing
    for want of room exists."""
    caps: dict[str, Cap] = Field(default_factory=dict[str, Cap])
    """all, a lane or a tier: its limit of spending. Read by the spend book."""
    alerts: Alerts = Alerts()
    """Values above which a measure alerts."""
    tz: Zone = POLICY.tz
    """Time zone of a cap's day. Read by the spend book."""
    home: str | None = None
    """The folder that holds the queue. Default: the nearest .millpond upwards, else ./.millpond."""
    queue: PathSection = PathSection()
    """The queue's database. Default: queue.db in the home."""
    spend: PathSection = PathSection()
    """The spend book. Default: spend.db in the user's data folder; in the home if --home or MILLPOND_HOME names one."""
    commands: Dotted | None = None
    """module:REGISTRY of typed commands."""
    durability: Literal["normal", "full"] = "full"
    """normal: what was acknowledged may be lost at power loss."""
    fair_every: Count = POLICY.fair_every
    """One in this many leases goes by age alone."""
    max_attempts_per_job: Count = POLICY.max_attempts_per_job
    """Counted attempts of a job over all lanes."""
    max_unusable_per_job: Count = POLICY.max_unusable_per_job
    """Replies of the wrong shape before a job fails."""
    max_leases_lost: Count = POLICY.max_leases_lost
    """How often a job may lose its worker."""
    backoff: BackoffSection = BackoffSection()
    """The pause before a retryable attempt is repeated."""
    saturated_default_s: Seconds = POLICY.saturated_default_ms / 1000
    """How long a saturated lane stays closed when it does not say."""
    saturated_cap_s: Seconds = POLICY.saturated_cap_ms / 1000
    """No Retry-After closes a lane for longer."""
    lane_down_after: Count = POLICY.lane_down_after
    """Refused connections in a row that close a lane."""
    lane_down_probe_s: Seconds = POLICY.lane_down_probe_ms / 1000
    """How long a lane that refuses connections stays closed before it is tried again."""
    artifact_max_age_s: MoreSeconds | None = None
    """Older answers are asked for anew. Default: an answer stays good."""
    lease_s: MoreSeconds = POLICY.lease_ms / 1000
    """How long a worker may be silent before its jobs are taken back."""
    idle_exit_s: Seconds = POLICY.idle_exit_ms / 1000
    """A foreground drain ends when nothing is due within this."""
    grace_s: Seconds = POLICY.grace_ms / 1000
    """How long the first signal waits for calls in flight."""


def schema() -> dict[str, Any]:
    """The JSON Schema of millpond.yaml, for editors."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **File.model_json_schema()}
