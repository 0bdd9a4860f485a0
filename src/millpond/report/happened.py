"""An event in words: what a change did, to whom, and why, as far as the event itself knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from millpond.rules.job import Event
from millpond.rules.stops import Stop
from millpond.rules.times import show_ms

Words: TypeAlias = "str | Callable[[Mapping[str, Any]], str]"
"""A template over the event's data, or a function of it."""

UNKNOWN_BEFORE = "the outcome of an earlier call of its key is unknown"


def _asked(data: Mapping[str, Any]) -> str:
    request = f"request {data['request_id']}"
    match data["disposition"]:
        case "joined":
            return f"{request} joined it, and is not billed"
        case "reused":
            return f"{request} was answered by it, and is not billed"
        case _:
            return f"{request} asks for it"


def _ended(data: Mapping[str, Any]) -> str:
    code = f" ({data['code']})" if data["code"] not in (None, data["outcome"]) else ""
    return f"a call ended: {data['outcome']}{code}"


def _answered(data: Mapping[str, Any]) -> str:
    return f"answered by lane {data['lane']}" if "lane" in data else "answered by the artifact of its key"


def _ready_again(data: Mapping[str, Any]) -> str:
    if "stopped" in data:
        return f"ready again, untouched: a person has stopped {data['stopped']}"
    return "ready again; its worker is gone" if "owner" in data else "ready again"


def _stopped(did: str) -> Callable[[Mapping[str, Any]], str]:
    def words(data: Mapping[str, Any]) -> str:
        return f"{Stop(data['scope'], data['lane'], 0, '').words} {did} by a person ({data['origin']})"

    return words


def _closed(data: Mapping[str, Any]) -> str:
    until = "until a person opens it" if data["until_ms"] is None else f"until {show_ms(data['until_ms'])}"
    return f"lane {data['lane']} closed {until}: {data['reason']}"


def _requests(one: str, more: str) -> Callable[[Mapping[str, Any]], str]:
    def words(data: Mapping[str, Any]) -> str:
        n = data["requests"]
        return f"{n:,} request {one}" if n == 1 else f"{n:,} requests {more}"

    return words


def _paused(what: str) -> Callable[[Mapping[str, Any]], str]:
    def words(data: Mapping[str, Any]) -> str:
        until = f" until {show_ms(data['not_before_ms'])}" if "not_before_ms" in data else ""
        reason = f": {data['reason']}" if "reason" in data else ""
        return f"{what}{until}{reason}"

    return words


WORDS: Mapping[str, Words] = {
    "enqueue": _asked,
    "lease": "taken up",
    "record": "attempt {attempt_no} leaves for lane {lane}",
    "end": _ended,
    "ambiguous": "the outcome of a call is unknown ({code})",
    "resolve": "decided: {choice}",
    "reply_kept": "a further reply of lane {lane} is kept, and not in force",
    "accept": "a late reply is in force for its key; the job stays what it is",
    "answer": _answered,
    "fail": _paused("failed"),
    "cancel": "nobody asks for it any more",
    "release": _ready_again,
    "back_off": _paused("a pause"),
    "park": _paused("parked"),
    "hold": _paused(f"held, since {UNKNOWN_BEFORE},"),
    "ask": "waits for your word: the outcome of a call is unknown",
    "shelve": _paused("cannot be loaded by this program"),
    "wake": "ready",
    "offload": "handed to a batch",
    "retry": "asked again by a person",
    "retry_held": _paused(f"asked again; held, since {UNKNOWN_BEFORE},"),
    "retry_answered": "asked again, and answered by the artifact of its key",
    "retry_joined": "asked again; its requests joined job {job_id}",
    "unpin": "routed from its first lane again",
    "withdraw": _requests("was withdrawn", "were withdrawn"),
    "take_back": _requests("asks again", "ask again"),
    "retire": "artifact {artifact_id} is no longer in force; its key is asked afresh",
    "close_lane": _closed,
    "stop": _stopped("stopped"),
    "resume": _stopped("resumed"),
}
"""Kind -> what it says. `schedule`, `enqueue_held` and `enqueue_answered` are moves that are told as `enqueue`."""


def in_words(event: Event) -> str:
    """What happened, on one line. A kind that is not known here, of a newer program, is told by its data."""
    words = WORDS.get(event.kind)
    if words is None:
        told = ", ".join(f"{name} {value}" for name, value in event.data.items())
    else:
        told = words(event.data) if callable(words) else words.format_map(event.data)
    return " ".join(told.split()).rstrip(",")


def whose(event: Event) -> str:
    """What an event is about: `job 5`, or `queue` where it is about no job."""
    return f"job {event.job_id}" if event.job_id is not None else "queue"
