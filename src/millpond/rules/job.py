"""The values of the product: what is asked, what is tried, what is answered.

    Request ── asks ──> Job ── is tried by ──> Attempt ── returns ──> Reply ── is accepted as ──> Artifact

Everything here is a frozen value without behaviour beyond reading itself. Times are integer milliseconds UTC (`…_ms`),
money is Decimal USD, an unknown number is None and never 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from decimal import Decimal
from typing import Any, Literal

from millpond.rules.html import table

MAX_ID = 2**63 - 1
"""The largest id: what a column of whole numbers holds."""

State = Literal["waiting", "ready", "leased", "offloaded", "done", "failed", "cancelled"]
WaitReason = Literal["scheduled", "backoff", "parked", "held", "asked", "undeliverable"]
ServiceClass = Literal["realtime", "batch"]
Disposition = Literal["new", "joined", "reused"]
Outcome = Literal["ok", "retryable", "saturated", "lane_down", "ambiguous", "unfit", "permanent", "unusable"]
Resolution = Literal["pin", "same", "ask", "fail", "late", "recalled", "absent", "nobody"]
"""How an ambiguous attempt was decided: by policy (`pin same ask fail`), by evidence (`late recalled absent`), or
because nobody asks for its key any more (`nobody`)."""


@dataclass(frozen=True, slots=True)
class Image:
    """One picture of a prompt: its bytes, or an address that the lane fetches itself.

    `data` is the content (identity goes by its digest); `url` is used when the content is not ours to read.
    """

    data: bytes = b""
    media_type: str = "image/png"
    url: str = ""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Work for a language model. `system` and `task` become two messages; `messages` (a full chat) replaces both.

    `reasoning` is the effort asked for; `intent` routes; `schema` is a JSON Schema that the answer must satisfy;
    `params` are sampling parameters; `model` names a model on purpose (then only lanes offering it may serve);
    `images` are Image values, file paths or URLs until the queue has read them.
    """

    task: str = ""
    intent: str = ""
    system: str = ""
    reasoning: str = ""
    messages: Sequence[Mapping[str, Any]] | None = None
    schema: Mapping[str, Any] | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    images: Sequence[Any] = ()
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    model: str | None = None
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Command:
    """A typed command as it is stored: the registered type's name, its version, its JSON payload, its own uid."""

    type: str
    payload: Mapping[str, Any]
    uid: str
    version: str = "1"


Work = Prompt | Command


@dataclass(frozen=True, slots=True)
class Request:
    """One thing asked. `work` is a Prompt, a registered pydantic model, or a mapping of Prompt's fields.

    `carried` are columns that come back unchanged with the result; `key` is the caller's own idempotency key.
    """

    work: Any
    custom_id: str | None = None
    carried: Mapping[str, Any] | None = None
    key: str | None = None
    label: str | None = None
    tags: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of a request at the door: `new`, `joined` to a live job, or `reused` from an artifact in force."""

    request_id: int
    job_id: int
    submission_id: int
    position: int
    disposition: Disposition
    answered_by: str | None = None
    """The model (else the lane) that gave the reused answer."""
    answered_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Submission:
    """What one caller handed in at once."""

    id: int
    name: str
    created_ms: int
    source: str
    requests: int
    pending: int
    done: int
    failed: int
    cancelled: int
    states: Mapping[str, int]
    """State -> how many of its requests are in it; `cancelled` are those that it withdrew."""
    dispositions: Mapping[str, int]
    """`new`, `joined`, `reused` -> how many of its requests."""


@dataclass(frozen=True, slots=True)
class Job:
    """The unit of work; at most one alive per idempotency key."""

    id: int
    kind: str
    state: State
    wait_reason: WaitReason | None
    not_before_ms: int | None
    priority: int
    service_class: ServiceClass
    due_ms: int | None
    next_lane: str
    idempotency_key: str
    fingerprint: str
    attempts_made: int
    leases_lost: int
    label: str | None
    origin: str
    tags: tuple[str, ...]
    trace_id: str | None
    created_ms: int
    settled_ms: int | None
    settled_by: str | None
    reason: str | None
    """Why it failed, or cannot be delivered, as `code: words`; None otherwise."""
    cost: Decimal | None
    """USD over all its attempts; None where one of them has no known cost."""

    def _repr_html_(self) -> str:
        return table(f"Job {self.id}", {one.name: getattr(self, one.name) for one in fields(self)})


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call. None is unknown. `raw` is what the provider said, unchanged."""

    tokens_in: int | None = None
    tokens_out: int | None = None
    raw: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """What a call returned. `data` is the parsed answer where a schema was asked; `raw` the provider's own body."""

    text: str = ""
    data: Any = None
    finish_reason: str | None = None
    model: str | None = None
    usage: Usage = Usage()
    request_id: str | None = None
    raw: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One ledger row: one request sent to a lane, or about to be."""

    seq: int
    uid: str
    job_id: int
    attempt_no: int
    lease_no: int
    owner: str
    listener: str | None
    lane: str
    tier: str
    idempotency_key: str
    fingerprint: str
    started_ms: int
    ended_ms: int | None
    outcome: Outcome | None
    resolution: Resolution | None
    code: str | None
    message: str | None
    sent: str | None
    """`no`, `headers` (the body did not leave whole), `yes`; None while open."""
    status: int | None
    retry_after: str | None
    """The raw header, as it came."""
    first_byte_ms: int | None
    request_id: str | None
    model: str | None
    hold_until_ms: int | None
    recall_hold_ms: int | None
    """How long its key is held for its lane to be asked, once its end is unknown; None: the lane cannot be asked."""
    ask_ms: int | None
    """When its lane is asked next what became of the call; None: it is not."""
    unasked: str | None
    """Why its lane could not be asked, or not understood, when that was last tried; None: it answered, or was not."""
    tokens_in: int | None
    tokens_out: int | None
    usage: Mapping[str, Any] | None
    cost: Decimal | None
    cost_is_estimate: bool
    price_version: str | None
    artifact_id: int | None
    posted: bool


@dataclass(frozen=True, slots=True)
class Artifact:
    """The reply accepted for a key. At most one a key is in force (`retired_ms` is None)."""

    id: int
    idempotency_key: str
    fingerprint: str
    attempt_uid: str
    accepted_ms: int
    retired_ms: int | None


@dataclass(frozen=True, slots=True)
class Lease:
    """A job taken for a time. `lease_no` is the fence: only the holder of this number may move the job."""

    job_id: int
    lease_no: int
    work: Any
    """The Prompt, the registered model of a Command, or the Command itself where nobody registered its type."""
    idempotency_key: str
    attempt_no: int
    """The number that the next attempt of this job will bear, from 1."""
    due_ms: int | None
    fingerprint: str
    owner: str
    lane: str
    service_class: ServiceClass
    route: str
    """Its intent or command type: what routing goes by."""
    wished_lane: str
    """The lane that the caller or a person asked for; "" if none."""
    has_history: bool
    """Whether its key has attempts that routing must read, or the job itself has used up some of its lifetime's."""
    stored: Work | None = None
    """The work as it is stored: a Prompt or a Command."""


@dataclass(frozen=True, slots=True)
class OwnerRow:
    """A process that holds or held leases. `uuid` names its lock file; `role` is `drainer` or `worker`."""

    uuid: str
    role: str
    host: str
    pid: int
    boot_id: str
    started_ms: int


@dataclass(frozen=True, slots=True)
class Error:
    """Why a request has no answer: a stable `code` and a sentence."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Result:
    """What a request got. Tokens and cost stand only on the request that paid for the answer."""

    request_id: int
    job_id: int
    custom_id: str | None
    position: int
    carried: Mapping[str, Any] | None
    disposition: Disposition
    state: State
    text: str | None
    data: Any
    finish_reason: str | None
    model: str | None
    lane: str | None
    tokens_in: int | None
    tokens_out: int | None
    cost: Decimal | None
    cost_is_estimate: bool
    """Whether the cost holds the worst case of a call whose bill nobody saw: it is then the most that was paid."""
    error: Error | None


@dataclass(frozen=True, slots=True)
class Event:
    """One change, as stored. `cursor` is opaque: pass it back to read on from here."""

    cursor: str
    at_ms: int
    kind: str
    job_id: int | None
    submission_id: int | None
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BulkReport:
    """What a verb did to many jobs: how many could be moved, how many were, and why the rest were not."""

    eligible: int
    done: int
    skipped: int
    reasons: Mapping[str, int]
    """Reason -> number of jobs skipped for it."""
    goes_on: int = 0
    """Cancel by a submission: jobs that go on, since others ask for them too. Of a dry run, those that would."""
    dry_run: bool = False
    """Nothing was done: it says only what would be."""
