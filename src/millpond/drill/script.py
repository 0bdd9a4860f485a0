"""The faults a fault lane can play, and which of them a prompt meets: drawn by seed, scripted, or replayed."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Final, cast

from millpond.rules.errors import UsageError


@dataclass(frozen=True, slots=True)
class Fault:
    """One habit of a server, with the truth that a client cannot always see.

    `works`: the work is done, and a provider would bill it. `arrives`: the client gets all that the work produced.
    `plain` names what is played instead if a fault of streams meets a client that did not ask for a stream.
    """

    works: bool
    arrives: bool
    seen: str
    plain: str = ""


FAULTS: Final[Mapping[str, Fault]] = {
    # name            works, arrives; what the client sees
    "ok": Fault(True, True, "a complete answer; as a stream with finish reason and [DONE] if one was asked"),
    "stream_ok": Fault(True, True, "the same as ok", plain="ok"),
    "slow": Fault(True, True, "nothing for slow_s, then the answer; the work is done even if the client has left"),
    "tool_calls": Fault(True, True, "a call of the first tool offered, with the least arguments its schema allows"),
    "error_null": Fault(True, True, 'a good answer that also bears "error": null'),
    # Refusals with a status.
    "429": Fault(False, False, "429 rate_limit_exceeded with Retry-After"),
    "429_bare": Fault(False, False, "429 rate_limit_exceeded without Retry-After"),
    "429_quota": Fault(False, False, "429 insufficient_quota: no money left"),
    "503_proof": Fault(False, False, "503 overloaded with Retry-After: provably refused"),
    "503_bare": Fault(False, False, "503 without a code or a header"),
    "loading": Fault(False, False, "503 while a local server loads its model"),
    "500": Fault(False, False, "500 server_error"),
    "400": Fault(False, False, "400 invalid_request_error"),
    "400_context": Fault(False, False, "400 context_length_exceeded"),
    "400_credit": Fault(False, False, "400 whose text says that the credit balance is too low"),
    "401": Fault(False, False, "401 invalid_api_key"),
    "402": Fault(False, False, "402 billing"),
    "404_model": Fault(False, False, "404 model_not_found"),
    "408": Fault(False, False, "408 request timeout"),
    "409": Fault(False, False, "409 conflict"),
    "413": Fault(False, False, "413 too large"),
    "422": Fault(False, False, "422 validation"),
    "redirect": Fault(False, False, "307 to this server again; a POST that follows it is remembered as well"),
    # The transport breaks.
    "reset": Fault(True, False, "RST after the body was read"),
    "reset_idle": Fault(True, True, "the answer; then RST as soon as another request begins on the same connection"),
    "cut": Fault(True, False, "Content-Length promises more than is sent, then the connection closes"),
    "hang": Fault(False, False, "nothing, for hang_s; then the connection closes"),
    "html": Fault(False, False, "200 with a page of HTML"),
    "bad_json": Fault(True, False, "200 application/json that is no JSON; in a stream an event that is none"),
    # Streams break.
    "stream_cut": Fault(True, False, "the stream breaks off amid the content", plain="cut"),
    "stream_unfinished": Fault(True, False, "the stream ends cleanly, no finish reason, no [DONE]", plain="cut"),
    "stream_error_before": Fault(False, False, "an error event before any content", plain="error_200"),
    "stream_error_after": Fault(True, False, "half of the content, then an error event", plain="error_200"),
    "comments": Fault(False, False, "keep-alive comments for hang_s, never an event", plain="hang"),
    "partial_stream_then_hang": Fault(False, False, "half of the content, then nothing for hang_s", plain="hang"),
    # A 200 that is no good answer.
    "error_200": Fault(False, False, 'a 200 whose body is {"error": …}'),
    "finish_error": Fault(False, False, "a 200 whose choice has finish_reason error"),
    "no_choices": Fault(True, False, "a 200 with an empty list of choices"),
    "empty": Fault(True, True, "empty content with finish_reason stop"),
    "truncated": Fault(True, True, "half of the content with finish_reason length"),
    "content_filter": Fault(True, True, "no content with finish_reason content_filter"),
    "unknown_finish": Fault(True, True, "a complete answer with finish_reason eos"),
    "bad_schema": Fault(True, True, "JSON that is not of the schema asked; without a schema, half a JSON text"),
}
"""Every fault by its name in a mix or a script: the one table of what the server can play."""

INVALID: Final = "invalid"
"""What `Post.fault` says of a POST that is no chat completion request at all; it cannot be asked for."""


def prompt_digest(body: Mapping[str, Any]) -> str:
    """Name what a request asks, as 64 hex digits of SHA-256 over the canonical JSON of its body.

    How the answer travels and who asks is left out (`stream`, `stream_options`, `store`, `metadata`, `user` and their
    like), so that the same prompt meets the same faults whether it is streamed or not.
    """
    asked = {name: value for name, value in body.items() if name not in _TRANSPORT_FIELDS}
    return hashlib.sha256(json.dumps(asked, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


_TRANSPORT_FIELDS = frozenset(
    {"stream", "stream_options", "store", "metadata", "user", "safety_identifier", "prompt_cache_key", "service_tier"}
)


def draw(seed: int, prompt_digest: str, ordinal: int, mix: Mapping[str, float]) -> str:
    """The fault that the `ordinal`-th POST of a prompt meets: a pure function, so the order of arrivals is no matter.

    `mix` maps names of faults to shares of 1; what is left of 1 is `ok`. The order of its entries does not matter.
    """
    token = f"{seed}\n{prompt_digest}\n{ordinal}".encode()
    point = int.from_bytes(hashlib.sha256(token).digest()[:8]) / 2**64
    for name in sorted(mix):
        point -= mix[name]
        if point < 0:
            return name
    return "ok"


@dataclass(frozen=True, slots=True)
class PromptFaults:
    """The faults of one prompt in the order of its POSTs; the last one repeats.

    `prompt` is compared with the text of the prompt: equal to it if `whole`, else contained in it.
    """

    prompt: str
    faults: tuple[str, ...]
    whole: bool = False

    def at(self, ordinal: int) -> str:
        """The fault of the `ordinal`-th POST, from 1."""
        return self.faults[min(ordinal, len(self.faults)) - 1]


class Script:
    """Decides the fault of each POST. What is fixed for a prompt wins over what goes by arrival, and that over the mix.

    Faults named without a prompt are taken in turn by arrival and begin again at the end: they depend on the order in
    which requests come, all else does not.
    """

    def __init__(
        self,
        *,
        mix: Mapping[str, float] | None = None,
        script: Sequence[str | Mapping[str, Any]] | None = None,
        per_prompt: Mapping[str, Sequence[str]] | None = None,
        seed: int = 0,
    ) -> None:
        """Raises UsageError for an unknown fault, a share below 0, shares above 1, or an entry of the wrong shape."""
        self._seed = seed
        self._mix = _checked_mix(mix or {})
        self._by_arrival: list[str] = []
        self._whole: dict[str, PromptFaults] = {}
        self._contained: list[PromptFaults] = []
        for text, faults in (per_prompt or {}).items():
            self._contained.append(PromptFaults(text, _checked_faults(faults, f"per_prompt[{text!r}]")))
        for position, entry in enumerate(script or ()):
            where = f"script[{position}]"
            if isinstance(entry, str):
                self._by_arrival.append(_checked_fault(entry, where))
                continue
            fixed = _prompt_faults(entry, where)
            if fixed.whole:
                self._whole.setdefault(fixed.prompt, fixed)
            else:
                self._contained.append(fixed)

    def fault(self, *, texts: Sequence[str], digest: str, ordinal: int, arrival: int) -> str:
        """The fault of one POST. `texts` are its messages' texts, `arrival` counts all POSTs from 1."""
        fixed = next((self._whole[text] for text in reversed(texts) if text in self._whole), None)
        fixed = fixed or next((one for one in self._contained if any(one.prompt in text for text in texts)), None)
        if fixed:
            return fixed.at(ordinal)
        if self._by_arrival:
            return self._by_arrival[(arrival - 1) % len(self._by_arrival)]
        return draw(self._seed, digest, ordinal, self._mix)


def replay(path: str | Path) -> list[Mapping[str, Any]]:
    """Read a recorded list of jobs, for `script=`: JSON lines of `{"prompt": whole text, "faults": [names in order]}`.

    `FaultLane.recording()` writes such a list. Raises UsageError for a file or a line that cannot be read.
    """
    entries: list[Mapping[str, Any]] = []
    for number, line in enumerate(_text_of(path).splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        entry = _parsed(line, where)
        if not isinstance(entry, Mapping):
            raise UsageError(f'{where}: found {_shape(entry)}, wanted {{"prompt": …, "faults": […]}}')
        job = {"whole": True, **cast(Mapping[str, Any], entry)}
        _prompt_faults(job, where)
        entries.append(job)
    return entries


def read_script(path: str | Path) -> list[str | Mapping[str, Any]]:
    """Read a script file: a JSON list of fault names and `{"prompt", "faults"}`, or a recorded list (`*.jsonl`).

    Raises UsageError for a file that cannot be read or an entry that is neither.
    """
    if str(path).endswith(".jsonl"):
        return list(replay(path))
    entries = _parsed(_text_of(path), str(path))
    if not isinstance(entries, list):
        raise UsageError(f"{path}: found {_shape(entries)}, wanted a JSON list of faults")
    Script(script=cast(list[str | Mapping[str, Any]], entries))
    return cast(list[str | Mapping[str, Any]], entries)


def read_mix(text: str) -> dict[str, float]:
    """Read a mix as the command line gives it: `503_proof=0.1,reset=0.05`; shares of 1, or percent with `%`.

    Raises UsageError for what is no share, an unknown fault, or shares above 1.
    """
    mix: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, share = (piece.strip() for piece in part.partition("="))
        try:
            mix[name] = float(share[:-1]) / 100 if share.endswith("%") else float(share)
        except ValueError:
            raise UsageError(f"mix: found {part!r}, wanted name=share, as in 503_proof=0.1,reset=5%") from None
    return dict(_checked_mix(mix))


def _checked_mix(mix: Mapping[str, float]) -> Mapping[str, float]:
    for name, share in mix.items():
        _checked_fault(name, "mix")
        if not isfinite(share) or share < 0:
            raise UsageError(f"mix[{name!r}]: found {share}, wanted a share between 0 and 1")
    if (total := sum(mix.values())) > 1 + 1e-9:
        raise UsageError(f"mix: the shares add up to {total:g}, wanted at most 1; what is left of 1 is ok")
    return mix


def _checked_fault(name: Any, where: str) -> str:
    if isinstance(name, str) and name in FAULTS:
        return name
    close = difflib.get_close_matches(str(name), FAULTS, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise UsageError(f"{where}: unknown fault {name!r}; {hint}known: {', '.join(FAULTS)}")


def _checked_faults(names: Any, where: str) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise UsageError(f"{where}: found {_shape(names)}, wanted a list of faults")
    checked = tuple(_checked_fault(name, where) for name in cast(Iterable[Any], names))
    if not checked:
        raise UsageError(f"{where}: found no fault, wanted at least one")
    return checked


def _prompt_faults(entry: Any, where: str) -> PromptFaults:
    wanted = 'wanted a fault\'s name or {"prompt": …, "faults": […]}'
    if not isinstance(entry, Mapping):
        raise UsageError(f"{where}: found {_shape(entry)}, {wanted}")
    fields = cast(Mapping[str, Any], entry)
    prompt, whole = fields.get("prompt"), fields.get("whole", False)
    if not isinstance(prompt, str) or not isinstance(whole, bool) or fields.keys() - {"prompt", "faults", "whole"}:
        raise UsageError(f"{where}: found the keys {', '.join(map(str, fields))}; {wanted}")
    return PromptFaults(prompt, _checked_faults(fields.get("faults"), where), whole)


def _text_of(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read ({error}); wanted a script of faults") from error


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(f"{where}: no JSON ({error})") from error


def _shape(value: Any) -> str:
    match value:
        case list():
            return "a list"
        case dict():
            return "an object"
        case _:
            return repr(value)
