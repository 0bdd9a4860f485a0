"""Redaction: no known value and nothing in a credential's place survives; ordinary words do."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.rules.redaction import MIN_SECRET_CHARS, REDACTED, redact

KEY = "sk-test-000SECRETsecret42"
ODD = 'pa"ss\\wörd/+=&7'


@pytest.mark.parametrize(
    "text",
    [
        f"401: Bearer {KEY} is not valid",
        f"Authorization: Bearer {KEY}",
        f'{{"authorization": "Bearer {KEY}"}}',
        f"x-api-key: {KEY}",
        f"'X-Api-Key': '{KEY}'",
        f"https://host/v1?key={KEY}",
        f"https://host/v1?a=b&api_key={KEY}&c=d",
        f"Incorrect API key provided: {KEY}. You can find it at https://example.org",
        f"https://user:{KEY}@host/v1",
        json.dumps({"headers": json.dumps({"api-key": KEY})}),
    ],
)
def test_o22_credentials_are_found_by_their_place(text: str) -> None:
    for found in (redact(text), redact(text, [KEY])):
        assert KEY not in found
        assert "SECRET" not in found
        assert REDACTED in found


@pytest.mark.parametrize("secret", [KEY, ODD, "plainvalue", "🦆🦆🦆🦆🦆🦆"])
def test_o22_known_values_are_found_in_every_form(secret: str) -> None:
    forms = [
        f"before {secret} after",
        f"before{secret}after",
        json.dumps({"error": {"message": f"got {secret}!"}}),
        json.dumps({"error": f"got {secret}!"}, ensure_ascii=False),
        json.dumps({"log": json.dumps({"key": secret})}),
        f"https://host/{quote(secret, safe='')}/x",
    ]
    for text in forms:
        found = redact(text, [secret])
        assert secret not in found
        assert json.dumps(secret)[1:-1] not in found
        assert quote(secret, safe="") not in found
        assert REDACTED in found


@pytest.mark.parametrize("at", range(1, len(KEY)))
def test_o22_known_values_are_found_when_split_over_lines(at: int) -> None:
    head, tail = KEY[:at], KEY[at:]
    for between in ("\n", "\r\n", "\\n", "\n    ", "\\\n"):
        found = redact(f'dump: "{head}{between}{tail}", more', [KEY])
        assert found == f'dump: "{REDACTED}", more'
    found = redact(f'12:00:01 dump: "{head}\n12:00:02 rest: {tail}", more', [KEY])
    for piece in (head, tail):
        assert len(piece) < 6 or piece not in found
    assert "more" in found


def test_o22_a_secret_inside_another_leaves_no_ends() -> None:
    assert redact("the longsecret-extended", ["longsecret", "longsecret-extended"]) == f"the {REDACTED}"


@pytest.mark.parametrize(
    "text",
    [
        "Write a poem about sk- prefixes.",
        'Explain what "sk-" means in an OpenAI key, and why sk-learn is not one.',
        "The key is in the door; the token of my love is a secret.",
        "Use scikit-learn: sk-learn-contrib is its sister.",
        "bearer of good news, bearers of bad ones",
        "Basic arithmetic: what is 2+2?",
        "max_tokens: 16 is more than the model allows; tokens: 4000",
        "lane 'free': 503 overloaded, key=value pairs are fine; /v1?keyword=duck",
        "EMPTY is not a key",
        "",
    ],
)
def test_o22_ordinary_words_survive(text: str) -> None:
    assert redact(text) == text
    assert redact(text, [KEY, "EMPTY", ""]) == text


@pytest.mark.parametrize(
    "value",
    [
        "sk-proj-a1B2c3D4e5F6g7H8i9J0k1",
        "AIzaSyA1234567890abcdefghijklmnopqrstuvw",
        "gsk_abcdefghijklmnopqrstuvwx",
        "hf_abcdefghijklmnopqrstuvwx",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcDEF_-123",
    ],
)
def test_values_that_can_be_nothing_else_are_blanked_anywhere(value: str) -> None:
    assert redact(f"saw {value} there") == f"saw {REDACTED} there"


@given(st.text(), st.lists(st.text(min_size=MIN_SECRET_CHARS, max_size=12), max_size=3))
def test_no_known_value_survives_and_redacting_twice_changes_nothing(text: str, secrets: list[str]) -> None:
    secrets = [secret for secret in secrets if secret not in REDACTED]
    found = redact(text + "".join(secrets) + text, secrets)
    assert not any(secret in found for secret in secrets if REDACTED not in secret)
    assert redact(found, secrets) == found


@given(st.text(alphabet="sk-abc \n\\n0:=\"'", max_size=400))
def test_redaction_never_raises(text: str) -> None:
    assert isinstance(redact(text, ["sk-abc\\n\n0", " \n \n \n \n"]), str)
