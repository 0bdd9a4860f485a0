"""Evidence as the rows of the table read it, beside what the lane declares about itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from millpond.rules.evidence import Evidence
from millpond.rules.provider_words import FAILED, NO_MONEY_TEXTS, NO_MONEY_WORDS, status_of

Idempotency = Literal["none", "reject", "replay"]
"""What a provider does with a key that it has seen: nothing, refuse it, or give the first reply again."""


@dataclass(frozen=True, slots=True)
class Declared:
    """What a lane declares about itself, as far as the meaning of an ending depends on it."""

    retry_500: bool = False
    """The provider documents that a 500 did no work and costs nothing."""
    partial_bodies_harmless: bool = False
    """Half a body cannot be worked on there. Nothing sets it yet."""
    exceptions_harmless: bool = False
    """Its handler has no effects: a callable or a program without `effects`."""
    idempotency: Idempotency = "none"
    larger_lane_exists: bool = False
    """Another lane takes larger requests. Nothing sets it yet."""
    local: bool = False
    """It is a server on this machine."""


UNDECLARED = Declared()
"""A lane that declares nothing."""


@dataclass(frozen=True, slots=True)
class View:
    """The evidence as the rows read it: words in lower case, and the status that an inner error amounts to."""

    seen: Evidence
    declared: Declared
    status: int | None
    """Of an error: the HTTP status, or the one that the inner code stands for; None if there is no error or the code is
    not known."""
    is_error: bool
    """Whether the provider named an error, by status, body or stream event."""
    is_final: bool
    """Whether a complete reply without an error is there to be judged by its finish reason."""
    words: frozenset[str]
    """The provider's code and type."""
    text: str
    """The provider's message."""
    finish: str
    has_stated_delay: bool

    @classmethod
    def of(cls, evidence: Evidence, declared: Declared, *, has_stated_delay: bool) -> View:
        """Read the evidence of a call to a lane that declares this. `has_stated_delay`: the server said how long."""
        words = frozenset(word.strip().lower() for word in (evidence.code, evidence.type) if word.strip())
        text = evidence.message.lower()
        finish = (evidence.finish_reason or "").strip().lower()
        is_http_error = evidence.status is not None and evidence.status >= 400
        if evidence.failure in ("html", "body_cut"):  # Not the provider's words, or not all of them.
            words, text = frozenset[str](), ""
        # Words that come with a failure of the way, or of a handler, describe that failure and are no provider's error.
        can_be_inner = evidence.failure in (None, "stream_error")
        is_inner_error = can_be_inner and bool(words or text or finish in FAILED or evidence.failure == "stream_error")
        is_error = is_http_error or is_inner_error
        return cls(
            seen=evidence,
            declared=declared,
            status=evidence.status
            if is_http_error
            else status_of(evidence.code, evidence.type)
            if is_inner_error
            else None,
            is_error=is_error,
            is_final=evidence.terminal
            and not is_error
            and evidence.failure is None
            and (evidence.status or 200) // 100 == 2,
            words=words,
            text=text,
            finish=finish,
            has_stated_delay=has_stated_delay,
        )

    @property
    def is_readable(self) -> bool:
        """Whether the provider gave any words for its refusal."""
        return bool(self.words or self.text)

    @property
    def sent_half(self) -> bool:
        """Whether the head left and the body did not, and nothing came back."""
        return self.seen.sent == "headers" and self.seen.status is None and self.seen.failure is not None

    @property
    def came_after_content(self) -> bool:
        """Whether the error came after part of an answer."""
        return self.is_error and (self.seen.content_before_error or self.seen.has_content)

    @property
    def has_no_money(self) -> bool:
        """Whether the error says that the account is empty or its limit used up."""
        return self.is_error and (self.named(*NO_MONEY_WORDS) or any(text in self.text for text in NO_MONEY_TEXTS))

    def named(self, *parts: str) -> bool:
        """Whether the code or type contains one of these."""
        return any(part in word for word in self.words for part in parts)

    def says(self, *parts: str) -> bool:
        """Whether code, type or message contains one of these."""
        return self.named(*parts) or any(part in self.text for part in parts)
