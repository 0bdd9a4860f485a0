"""What a call will use and cost, before it is made: three figures for each (low, expected, worst), or unknown.

Nothing here counts tokens: a count holds for one model's tokenizer alone. Bytes bound it from both sides, and are the
same for every lane.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Generic, TypeVar, cast

from millpond.rules.identity import PARAMS_WITH_SCHEMA, canonical
from millpond.rules.job import Prompt, Usage
from millpond.rules.policy import LanePolicy, Policy

Number = TypeVar("Number", int, Decimal)

BYTES_PER_TOKEN = 4
"""UTF-8 bytes of text in a token, as expected. OpenAI's rule of thumb for English is 4 characters; code and numbers are
nearer to 3, Cyrillic and Chinese, with 2 and 3 bytes a character, near 4 again."""

MOST_BYTES_PER_TOKEN = 16
"""No text has longer tokens than this on average (as `lanes.completion` holds of characters)."""

LEAST_TOKENS_OUT = 1
"""An answer that is not empty has one; an empty one is no answer."""

OUTPUT_LIMITS = ("max_completion_tokens", "max_tokens")
"""Names of a prompt's own limit of output, in params."""


@dataclass(frozen=True, slots=True)
class Span(Generic[Number]):
    """Three views of one number that is not known yet: low <= expected <= worst. None is unknown, and stays so."""

    low: Number | None = None
    expected: Number | None = None
    worst: Number | None = None

    def and_also(self, other: Span[Number]) -> Span[Number]:
        """Both together; a part that is unknown in one is unknown in the sum."""
        return Span(_both(self.low, other.low), _both(self.expected, other.expected), _both(self.worst, other.worst))


def _both(one: Number | None, other: Number | None) -> Number | None:
    return None if one is None or other is None else one + other


NO_TOKENS = Span(0, 0, 0)
NO_MONEY = Span(Decimal(0), Decimal(0), Decimal(0))


def tokens_in(work: Any) -> Span[int]:
    """Tokens that a prompt takes in: its bytes over 16, over 4, and its bytes.

    The worst is a bound: no token is shorter than a byte, and the canonical form has more bytes around each message
    than any chat format has tokens. Pictures and files are counted as nothing at the low end and are unknown beyond it.
    Of a command nothing is known.
    """
    if not isinstance(work, Prompt):
        return Span()
    text = sum(map(len, _texts(work)))
    low = text // MOST_BYTES_PER_TOKEN
    if shows_more_than_text(work):
        return Span(low)
    return Span(low, -(-text // BYTES_PER_TOKEN), len(canonical(work)))


def shows_more_than_text(prompt: Prompt) -> bool:
    """Whether pictures or files come with a prompt, beside it or in its chat: what they take in no byte bounds."""
    return bool(prompt.images) or any(
        not isinstance(part, str) and part.get("type", "text") != "text"
        for message in prompt.messages or ()
        for part in _parts(message.get("content"))
    )


def _texts(prompt: Prompt) -> list[bytes]:
    """What a model reads of a prompt: its texts, or those of its chat, and schema and tools as JSON."""
    texts = [prompt.system, prompt.task] if prompt.messages is None else []
    for message in prompt.messages or ():
        texts += [text for part in _parts(message.get("content")) if isinstance(text := _text(part), str)]
        texts += [_json(message[name]) for name in ("tool_calls", "function_call") if message.get(name)]
    texts += [_json(part) for part in (prompt.schema, prompt.tools) if part]
    texts += [_json(value) for name, value in prompt.params.items() if name in PARAMS_WITH_SCHEMA and value]
    return [text.encode() for text in texts]


def _parts(content: Any) -> list[str | Mapping[str, Any]]:
    """The parts of a message's content; a plain text is its own one part."""
    if isinstance(content, str):
        return [content]
    parts = cast("Sequence[Any]", content if isinstance(content, Sequence) else ())
    return [part for part in parts if isinstance(part, (str, Mapping))]


def _text(part: str | Mapping[str, Any]) -> Any:
    return part if isinstance(part, str) else part.get("text")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def output_limit(work: Any, lane: LanePolicy) -> int | None:
    """The most tokens that one answer may have: the prompt's own limit, held under the lane's; None if there is none.

    A lane that runs code is bound by its own limit alone: nobody makes a function heed a parameter.
    """
    asked = {**lane.params, **work.params} if isinstance(work, Prompt) and not lane.runs_code else {}
    limits = [limit for name in OUTPUT_LIMITS if type(limit := asked.get(name)) is int and limit > 0]
    own = max(limits, default=None)  # of two names a server may read either
    if own is None or lane.max_output_tokens is None:
        return own or lane.max_output_tokens
    return min(own, lane.max_output_tokens)


def tokens_out(limit: int | None, mean: float | None) -> Span[int]:
    """Tokens of one answer: one at least, the measured mean as expected, the limit at worst. None is unknown."""
    if mean is None:
        return Span(LEAST_TOKENS_OUT, None, limit)
    expected = max(round(mean), LEAST_TOKENS_OUT)
    return Span(LEAST_TOKENS_OUT, expected if limit is None else min(expected, limit), limit)


def most_calls(lane: LanePolicy, policy: Policy) -> int:
    """How many calls of one job a lane can bill at most, unless a person asks again.

    Its counted attempts, and the replies of the wrong shape, which have a budget of their own: the last of them is the
    end. Calls that were refused cost nothing and are not among them.
    """
    return min(lane.max_attempts + policy.max_unusable_per_job - 1, policy.max_attempts_per_job)


def model_of(work: Any, lane: LanePolicy) -> str:
    """The model as the provider knows it: the one the caller named, through the lane's aliases, else the lane's own."""
    model = work.model if isinstance(work, Prompt) and work.model is not None else lane.model
    return lane.models.get(model, model)


def money(taken: Span[int], given: Span[int], calls: int, price: Callable[[Usage], Decimal | None]) -> Span[Decimal]:
    """What one job costs on a lane, in USD: one call of few tokens, one as expected, `calls` of the most tokens."""
    worst = price(Usage(taken.worst, given.worst))
    return Span(
        price(Usage(taken.low, given.low)),
        price(Usage(taken.expected, given.expected)),
        None if worst is None else worst * calls,
    )
