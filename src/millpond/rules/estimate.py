"""What a call will use and cost, before it is made: three figures for each (low, expected, worst), or unknown.

Nothing here counts tokens: a count holds for one model's tokenizer alone. The length of a text is the same for every
lane: its bytes bound its tokens from above, and its characters say how few they are in ordinary text.
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

MOST_CHARS_PER_TOKEN = 16
"""Characters of ordinary text in a token, on average at most. No bound: blanks or `====` come a hundred to a token."""

LEAST_TOKENS_OUT = 1
"""An answer that is not empty has one; an empty one is no answer."""


@dataclass(frozen=True, slots=True)
class Range(Generic[Number]):
    """Three views of one number that is not known yet: low <= expected <= worst. None is unknown, and stays so."""

    low: Number | None = None
    expected: Number | None = None
    worst: Number | None = None

    def and_also(self, other: Range[Number]) -> Range[Number]:
        """Both together; a part that is unknown in one is unknown in the sum."""
        return Range(_both(self.low, other.low), _both(self.expected, other.expected), _both(self.worst, other.worst))


def _both(one: Number | None, other: Number | None) -> Number | None:
    return None if one is None or other is None else one + other


NO_TOKENS = Range(0, 0, 0)
NO_MONEY = Range(Decimal(0), Decimal(0), Decimal(0))


def tokens_in(work: object) -> Range[int]:
    """Tokens that a prompt takes in: its characters over 16, its bytes over 4, and its bytes.

    The worst alone is a bound: no token is shorter than a byte, and the canonical form has more bytes around each
    message than any chat format has tokens. The low holds for ordinary text. Pictures and files are counted as nothing
    at the low end and are unknown beyond it. Of a command nothing is known.
    """
    if not isinstance(work, Prompt):
        return Range()
    texts = _texts(work)
    low = sum(map(len, texts)) // MOST_CHARS_PER_TOKEN
    if shows_more_than_text(work):
        return Range(low)
    text_bytes = sum(len(text.encode()) for text in texts)
    return Range(low, -(-text_bytes // BYTES_PER_TOKEN), len(canonical(work)))


def shows_more_than_text(prompt: Prompt) -> bool:
    """Whether pictures or files come with a prompt, beside it or in its chat: what they take in no byte bounds."""
    return bool(prompt.images) or any(
        not isinstance(part, str) and part.get("type", "text") != "text"
        for message in prompt.messages or ()
        for part in _parts(message.get("content"))
    )


def _texts(prompt: Prompt) -> list[str]:
    """What a model reads of a prompt: its texts, or those of its chat, and schema and tools as JSON."""
    texts = [prompt.system, prompt.task] if prompt.messages is None else []
    for message in prompt.messages or ():
        texts += [text for part in _parts(message.get("content")) if isinstance(text := _text(part), str)]
        texts += [_json(message[name]) for name in ("tool_calls", "function_call") if message.get(name)]
    texts += [_json(part) for part in (prompt.schema, prompt.tools) if part]
    texts += [_json(value) for name, value in prompt.params.items() if name in PARAMS_WITH_SCHEMA and value]
    return texts


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


def tokens_out(limit: int | None, mean: float | None) -> Range[int]:
    """Tokens of one answer: one at least, the measured mean as expected, the limit at worst. None is unknown."""
    if mean is None:
        return Range(LEAST_TOKENS_OUT, None, limit)
    expected = max(round(mean), LEAST_TOKENS_OUT)
    return Range(LEAST_TOKENS_OUT, expected if limit is None else min(expected, limit), limit)


def most_calls(lane: LanePolicy, policy: Policy) -> int:
    """How many calls of one job a lane can bill at most, unless a person asks again.

    Its counted attempts, and the replies of the wrong shape, which have a budget of their own: the last of them is the
    end. Calls that were refused cost nothing and are not among them.
    """
    return min(lane.max_attempts + policy.max_unusable_per_job - 1, policy.max_attempts_per_job)


def money(
    tokens_in: Range[int], tokens_out: Range[int], calls: int, price: Callable[[Usage], Decimal | None]
) -> Range[Decimal]:
    """What one job costs on a lane, in USD: one call of few tokens, one as expected, `calls` of the most tokens."""
    worst = price(Usage(tokens_in.worst, tokens_out.worst))
    return Range(
        price(Usage(tokens_in.low, tokens_out.low)),
        price(Usage(tokens_in.expected, tokens_out.expected)),
        None if worst is None else worst * calls,
    )
