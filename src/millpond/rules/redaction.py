"""Secrets out of errors, headers and addresses before they are stored or shown. Prompts and replies never pass here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

REDACTED = "[redacted]"

MIN_SECRET_CHARS = 6
"""Shorter known values are placeholders of local servers (`EMPTY`, `none`); blanking them would eat ordinary words."""

KEPT_CHARS = 2000
"""As much of an error's words is kept as evidence."""

_BREAK = r"(?:\\[nrt]|\\?\s)*"
"""What a log may put between two characters of a value that it wraps: line ends, blanks, their escaped forms."""

_QUOTE = r"(?:\\?[\"'])?"
_VALUE = r"(?:(?:bearer|basic|token)\s+)?[^\s\"'\\,;&<>(){}]+"
_HEADERS = (
    r"(?:proxy-)?authorization|(?:x-)?(?:goog-)?api[-_ ]?key|x-auth-token|(?:access|auth|refresh|secret)[-_]token"
    r"|(?:access|secret)[-_]key|client[-_]secret|subscription-key|password|set-cookie|cookie"
)
_TOKEN = r"sk-[A-Za-z0-9_*.\-]+"

_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    # A header or field that names a credential, as text, JSON or escaped JSON: x-api-key: …, "api_key": "…"
    (re.compile(rf"(\b(?:{_HEADERS}){_QUOTE}\s*[:=]\s*{_QUOTE}){_VALUE}", re.IGNORECASE), rf"\g<1>{REDACTED}"),
    (
        re.compile(r"(\b(?:bearer|basic)\s+)(?=[^\s\"'\\,;]*[0-9_\-=.*])[^\s\"'\\,;]{6,}", re.IGNORECASE),
        rf"\g<1>{REDACTED}",
    ),
    # A query parameter that carries a credential: ?key=…, &api_key=…
    (
        re.compile(
            r"([?&](?:api[-_]?key|key|(?:access_|auth_)?token|sig(?:nature)?|secret)=)[^\s&#\"'<>]+", re.IGNORECASE
        ),
        rf"\g<1>{REDACTED}",
    ),
    # user:password@ in an address
    (re.compile(r"(\b[a-z][a-z0-9+.\-]*://)[^\s/@:\"']*:[^\s/@\"']+@", re.IGNORECASE), rf"\g<1>{REDACTED}@"),
    # sk-… where the words before it say that it is a key; a sentence about "sk-" stays as it is.
    (
        re.compile(
            rf"(\b(?:keys?|tokens?|secrets?|credentials?)\b[\s\"':=(]*(?:(?:is|was|provided)\b)?[\s\"':=(]*){_TOKEN}",
            re.IGNORECASE,
        ),
        rf"\g<1>{REDACTED}",
    ),
    # Values that are long and mixed enough to be nothing else.
    (re.compile(r"\bsk-(?=[\w-]*[0-9])(?=[\w-]*[A-Za-z])[\w-]{20,}"), REDACTED),
    (re.compile(r"\b(?:AIza[\w-]{30,}|(?:gsk|hf|gh[pousr])_\w{20,}|xai-\w{20,}|AKIA[0-9A-Z]{16})"), REDACTED),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]+"), REDACTED),
)


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """The text with credentials replaced: first the known values, then whatever stands where credentials stand.

    Known values are found verbatim, JSON-escaped, percent-encoded, wrapped over lines, and split over two log lines
    with other words before the second piece (O22). Values under MIN_SECRET_CHARS are not taken for secrets.
    """
    # Longest first: a secret that contains another must not leave its ends behind.
    for secret in sorted({value for value in secrets if len(value) >= MIN_SECRET_CHARS}, key=len, reverse=True):
        text = _without(text, secret)
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    return text


def clean(text: str, secrets: Iterable[str] = (), *, limit: int = KEPT_CHARS) -> str:
    """The beginning of the text, `limit` characters, with credentials replaced.

    A cut must not leave half a credential standing, so four times the limit is redacted and then cut.
    """
    return redact(text[: 4 * limit], secrets)[:limit]


def _without(text: str, secret: str) -> str:
    forms = {
        secret,
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        quote(secret, safe="", errors="replace"),
        quote_plus(secret, errors="replace"),
    }
    forms |= {json.dumps(form)[1:-1] for form in forms}  # JSON inside a JSON string
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, REDACTED)
        if form[0] in text:
            text = re.sub(_BREAK.join(map(re.escape, form)), REDACTED, text)
        text = _without_split(text, form)
    return text


def _without_split(text: str, secret: str) -> str:
    """Blank both pieces where one line ends in the beginning of the secret and the next holds the rest."""
    lines = text.split("\n")
    for at in range(len(lines) - 1):
        first = lines[at].rstrip()
        for size in range(min(len(secret) - 1, len(first)), 0, -1):
            rest = secret[size:]
            if first.endswith(secret[:size]) and rest in lines[at + 1]:
                lines[at] = first[:-size] + REDACTED
                if len(rest) >= MIN_SECRET_CHARS:  # A few last characters tell nothing and stand in any word.
                    lines[at + 1] = lines[at + 1].replace(rest, REDACTED)
                break
    return "\n".join(lines)
