"""The way in: whatever a caller hands in becomes one `Asked`, checked, named, and proven to load again."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast, get_args
from uuid import uuid4

from millpond.rules.errors import UsageError
from millpond.rules.identity import MAX_DEPTH, fingerprint, found, idempotency_key, inline_content, plain
from millpond.rules.job import Command, Image, Prompt, Request, ServiceClass, Work
from millpond.rules.openai_body import is_body, is_line, prompt_of_body, request_of_line
from millpond.rules.prompt import mapping_of, plain_prompt, prompt_of, short_name, tag_names
from millpond.rules.times import instant_ms
from millpond.store.bodies import dump, dump_work, load_work, rehydrate
from millpond.store.enqueue import Asked

if TYPE_CHECKING:
    from pydantic import BaseModel

    Registry = Mapping[str, type[BaseModel]]

FirstLane = Callable[[Work, str, str], str]
"""Work, its route, the lane wished for -> the lane it starts on, or "" where that is to be found later."""

SERVICE_CLASSES: tuple[ServiceClass, ...] = get_args(ServiceClass)

MAX_IMAGE_BYTES = 20 * 1024 * 1024
"""Largest picture taken in. Ours: most providers refuse more than 20 MB a picture."""

MAX_BODY_CHARS = 100_000_000
"""Largest stored body of one job, and of its carried columns. Ours: a tenth of what SQLite can hold in one value."""

_REFUSAL_CHARS = 600
_PRIORITY = 2**31
_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


def new_uid() -> str:
    """A number that nobody else gets: 32 hex digits of chance."""
    return uuid4().hex


@dataclass(frozen=True, slots=True)
class Defaults:
    """What applies to a request that does not say otherwise: the keyword arguments of `enqueue`, checked when made.

    `due` and `not_before` are moments or durations as `rules.times` reads them; they are read when a request is taken.
    Raises UsageError naming the argument.
    """

    priority: int = 0
    service_class: ServiceClass = "batch"
    due: Any = None
    not_before: Any = None
    lane: str | None = None
    key: str | None = None
    sample: int | None = None
    dedup: bool = True
    fresh: bool = False
    custom_id: str | None = None
    carried: Mapping[str, Any] | None = None
    label: str | None = None
    tags: Sequence[str] = ()
    trace_id: str | None = None
    origin: str = "api"

    def __post_init__(self) -> None:
        priority, service_class = cast(Any, self.priority), cast(Any, self.service_class)
        if type(priority) is not int or not -_PRIORITY <= priority < _PRIORITY:
            raise UsageError(f"priority: found {found(priority)}, wanted a whole number of at most 32 bits, signed")
        if service_class not in SERVICE_CLASSES:
            raise UsageError(f"service_class: found {found(service_class)}, wanted {' or '.join(SERVICE_CLASSES)}")
        for name in ("dedup", "fresh"):
            if type(getattr(self, name)) is not bool:
                raise UsageError(f"{name}: found {found(getattr(self, name))}, wanted True or False")
        # Of what makes a key, all but the caller's own: its form is judged beside the work that it names.
        key, unique = None if self.key is None else "own", None if self.dedup else "one"
        idempotency_key(Prompt(), "", key=key, sample=self.sample, unique=unique)
        for name in ("lane", "custom_id", "label", "trace_id", "origin"):
            short_name(getattr(self, name), name)
        object.__setattr__(self, "tags", tag_names(self.tags))
        _carried(self.carried)


def take(
    item: Any,
    *,
    position: int,
    registry: Registry | None = None,
    defaults: Defaults | None = None,
    now_ms: int,
    base: Path | None = None,
    new_uid: Callable[[], str] = new_uid,
    first_lane: FirstLane | None = None,
) -> Asked:
    """One request in the form in which it is stored: checked field by field, named, and proven to load again (O12).

    Takes a Prompt, a task as text, a mapping of Prompt's fields, an OpenAI request (a chat completions body, or the
    line of a batch file that holds one), a model of a registered type, a Command, or a Request with one of these, whose
    own fields win over the defaults. Files of images are read here, relative to `base`.
    `first_lane` says where routing starts the work; without it that is found when it is leased.
    Raises UsageError naming the field, what was found and what was wanted, never repeating a whole prompt.
    """
    try:
        return _take(item, position, registry, defaults or Defaults(), now_ms, base, new_uid, first_lane)
    except RecursionError:  # The caller's own stack was nearly full: still a refusal, never a crash.
        raise UsageError(f"work: found deeper nesting than the stack allows, wanted {MAX_DEPTH} levels") from None
    except UsageError as refusal:
        if len(str(refusal)) <= _REFUSAL_CHARS:
            raise
        raise UsageError(f"{str(refusal)[:_REFUSAL_CHARS]}…") from None


def each_samples(asked: Iterable[Asked]) -> Iterator[Asked]:
    """Give the k-th identical prompt, from 1, the key of `sample=k`, so that each is asked and a rerun asks none again.

    Commands, and prompts that have a key of their own already, stay as they are.
    """
    seen: Counter[str] = Counter()
    for one in asked:
        if one.kind != "prompt" or one.idempotency_key != one.fingerprint:
            yield one
            continue
        seen[one.fingerprint] += 1
        # The form of the key is identity's; a prompt's needs nothing of it beyond the fingerprint.
        yield replace(one, idempotency_key=idempotency_key(Prompt(), one.fingerprint, sample=seen[one.fingerprint]))


def _take(
    item: Any,
    position: int,
    registry: Registry | None,
    defaults: Defaults,
    now_ms: int,
    base: Path | None,
    new_uid: Callable[[], str],
    first_lane: FirstLane | None,
) -> Asked:
    request = _spoken(item if isinstance(item, Request) else Request(item))
    work, body = _proven(request.work, registry, base, new_uid)
    print_ = fingerprint(work)
    is_prompt = isinstance(work, Prompt)
    route = work.intent if is_prompt else work.type
    return Asked(
        position=position,
        kind="prompt" if is_prompt else "command",
        route=route,
        fingerprint=print_,
        idempotency_key=idempotency_key(
            work,
            print_,
            key=request.key if request.key is not None else defaults.key,
            sample=defaults.sample,
            unique=None if defaults.dedup else new_uid(),
        ),
        body=body,
        custom_id=short_name(request.custom_id, "custom_id") or defaults.custom_id,
        carried=_carried(defaults.carried if request.carried is None else request.carried),
        priority=defaults.priority,
        service_class=defaults.service_class,
        due_ms=None if defaults.due is None else instant_ms(defaults.due, now_ms, field="due"),
        not_before_ms=None
        if defaults.not_before is None
        else instant_ms(defaults.not_before, now_ms, field="not_before"),
        lane=defaults.lane or "",
        next_lane=first_lane(work, route, defaults.lane or "") if first_lane else "",
        fresh=defaults.fresh,
        label=short_name(request.label, "label") or defaults.label,
        origin=defaults.origin,
        tags=tag_names(request.tags) or cast("tuple[str, ...]", defaults.tags),
        trace_id=defaults.trace_id,
    )


def _spoken(request: Request) -> Request:
    """The request with work in our words, where it was asked in OpenAI's."""
    if not isinstance(request.work, Mapping):
        return request
    work = cast(Mapping[str, Any], request.work)
    if is_line(work):
        line = request_of_line(work)
        return replace(request, work=line.work, custom_id=request.custom_id or line.custom_id)
    return replace(request, work=prompt_of_body(work)) if is_body(work) else request


# What is asked, and the proof that it loads again


def _proven(item: Any, registry: Registry | None, base: Path | None, new_uid: Callable[[], str]) -> tuple[Work, str]:
    """The work and its stored body, from which exactly this work was loaded once already."""
    if isinstance(item, Command):
        return item, _proven_command(item, item, registry)
    if isinstance(item, Prompt):
        prompt = plain_prompt(item)
    elif isinstance(item, str):
        prompt = plain_prompt(Prompt(item))
    elif isinstance(item, Mapping):
        prompt = prompt_of(cast(Mapping[str, Any], item))
    elif _is_model(item):
        model = cast("BaseModel", item)
        command = Command(_registered_name(type(model), registry), _payload(model), new_uid())
        return command, _proven_command(command, model, registry)
    else:
        raise UsageError(
            f"work: found {found(item)}, wanted a Prompt, a task as text, a mapping of Prompt's fields, "
            "an OpenAI request, or a model of a registered type"
        )
    if prompt.images:
        images = tuple(_image(image, f"images[{at}]", base) for at, image in enumerate(prompt.images))
        prompt = replace(prompt, images=images)
    body = _sized(dump_work(prompt), "work")
    if load_work(body) != prompt:
        _refuse_difference(asdict(prompt), asdict(load_work(body)), "work")
    return prompt, body


def _proven_command(command: Command, given: Any, registry: Registry | None) -> str:
    """The stored body of a command; loading it gives the caller's model, or the Command if that was handed in."""
    for name in ("type", "version", "uid"):
        short_name(getattr(command, name), name)
    mapping_of(command.payload, "payload")
    body = _sized(dump_work(command), "payload")
    loaded = load_work(body)
    if loaded != command:
        _refuse_difference(asdict(command), asdict(loaded), "command")
    if registry is None:
        return body
    _known_type(command.type, registry)
    try:
        model = rehydrate(loaded, registry)
    except Exception as problem:  # the caller's validators run here and may raise anything
        raise UsageError(f"payload: what would be stored does not load again: {_first_line(problem)}") from problem
    if given is not command and model != given:
        _refuse_difference(given.model_dump(warnings=False), model.model_dump(warnings=False), "payload")
    return body


def _is_model(item: object) -> bool:
    from pydantic import BaseModel  # only where nothing simpler fits: its import takes most of a short run

    return isinstance(item, BaseModel)


def _registered_name(model: type[BaseModel], registry: Registry | None) -> str:
    for name, registered in (registry or {}).items():
        if registered is model:
            return name
    raise UsageError(
        f"work: found a {model.__name__}, which is not registered; {_registered(registry)}; "
        f"wanted registry={{{model.__name__!r}: {model.__name__}}} when the queue is opened"
    )


def _known_type(name: str, registry: Registry) -> None:
    if name not in registry:
        raise UsageError(f"type: found {name[:40]!r}, which is not registered; {_registered(registry)}")


def _registered(registry: Registry | None) -> str:
    return f"registered types: {', '.join(sorted(registry or {})) or 'none'}"


def _payload(model: BaseModel) -> dict[str, Any]:
    """A model's fields as plain JSON. Computed fields are left out: a model that forbids extras could not load them."""
    try:
        payload = model.model_dump(mode="json", round_trip=True, by_alias=True, warnings=False)
    except Exception as problem:  # the caller's serializers run here and may raise anything
        _locate(model, "payload", 0)
        raise UsageError(f"payload: found what JSON cannot carry: {_first_line(problem)}") from problem
    if not isinstance(cast(Any, payload), dict):
        raise UsageError(f"payload: found {found(payload)}, wanted a model with fields of its own")
    return payload


def _locate(value: Any, path: str, depth: int) -> None:
    """Raise UsageError at the first part of a model that JSON cannot carry; return if every part alone can be."""
    from pydantic_core import to_jsonable_python

    if depth > MAX_DEPTH:
        raise UsageError(f"{path[:60]}…: found more than {MAX_DEPTH} levels of nesting, wanted at most {MAX_DEPTH}")
    if _is_model(value):
        parts = {f"{path}.{name}": part for name, part in value}
    elif isinstance(value, Mapping):
        entries = cast(Mapping[Any, Any], value)
        for key in entries:
            plain(str(key), f"{path} (a key)")
        parts = {f"{path}.{key}": part for key, part in entries.items()}
    elif isinstance(value, (list, tuple, set, frozenset)):
        parts = {f"{path}[{at}]": part for at, part in enumerate(cast(Iterable[Any], value))}
    else:
        try:
            to_jsonable_python(value)
        except ValueError as problem:
            raise UsageError(f"{path}: found {found(value)}, which JSON cannot carry") from problem
        return
    for where, part in parts.items():
        _locate(part, where, depth + 1)


def _refuse_difference(given: Any, loaded: Any, path: str) -> NoReturn:
    """Raise UsageError at the first place where what loads differs from what was given."""
    for where, value, other in _pairs(given, loaded):
        if value != other:
            _refuse_difference(value, other, f"{path}{where}")
    if isinstance(given, float):
        plain(given, path)  # NaN and the infinities have words of their own
    if given == loaded:
        raise UsageError(
            f"{path}: found private or excluded values, or a model in an untyped field; wanted what its JSON gives back"
        )
    raise UsageError(
        f"{path}: found {found(given)}, which would load as {found(loaded)}; "
        "wanted a value that its JSON gives back, or a field typed for it"
    )


def _pairs(given: Any, loaded: Any) -> Iterator[tuple[str, Any, Any]]:
    """Where, and the two values there, for each entry of two mappings or two lists; nothing for anything else."""
    if isinstance(given, Mapping) and isinstance(loaded, Mapping):
        others = cast(Mapping[Any, Any], loaded)
        for key, value in cast(Mapping[Any, Any], given).items():
            yield f".{key}", value, others.get(key)
    elif isinstance(given, list) and isinstance(loaded, list):
        pairs = zip(cast("list[Any]", given), cast("list[Any]", loaded), strict=False)
        for at, (value, other) in enumerate(pairs):
            yield f"[{at}]", value, other


def _sized(body: str, what: str) -> str:
    if len(body) > MAX_BODY_CHARS:
        raise UsageError(f"{what}: found {len(body):,} characters to store, wanted at most {MAX_BODY_CHARS:,}")
    return body


def _first_line(problem: Exception) -> str:
    return (str(problem).splitlines() or [type(problem).__name__])[0]


def _carried(value: object) -> str | None:
    """The columns that come back with the result, as JSON text."""
    columns = mapping_of(value, "carried")
    return None if columns is None else _sized(dump(columns), "carried")


# Pictures


def _image(source: Any, field: str, base: Path | None) -> Image:
    """A picture with its content read, or with the address that the lane fetches itself."""
    if isinstance(source, Image):
        if source.data and source.url:
            raise UsageError(f"{field}: found content both in data and in url, wanted one of them")
        source = cast(Any, source.data or source.url)
    if isinstance(source, (bytes, bytearray)):
        return _pictured(bytes(source), field, "content")
    if isinstance(source, str):
        scheme = source[:64].partition(":")[0].lower() if ":" in source[:64] else ""
        if scheme in ("http", "https"):
            return Image(url=source)
        if scheme == "data":
            inline = inline_content(source)
            if inline is None:
                raise UsageError(f"{field}: found a data URL that does not decode, wanted data:image/png;base64,…")
            return _pictured(inline[1], field, "a data URL")
        if "://" in source[:64]:
            raise UsageError(f"{field}: found {source[:80]!r}, wanted an http(s) or data URL, a path or bytes")
    if source != "" and isinstance(source, (str, os.PathLike)):
        path = Path(cast("str | os.PathLike[str]", source))
        return _pictured(_read(base / path if base else path, field), field, repr(str(path)[-80:]))
    raise UsageError(f"{field}: found {found(source)}, wanted an Image, bytes, a path, or an http(s) or data URL")


def _read(path: Path, field: str) -> bytes:
    try:
        # Looked at first, since opening a pipe would wait for its writer.
        if not stat.S_ISREG(path.stat().st_mode):
            raise UsageError(f"{field}: {str(path)[-80:]!r} is not a file, wanted a picture")
        with path.open("rb") as file:
            return file.read(MAX_IMAGE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise UsageError(f"{field}: cannot read {str(path)[-80:]!r}: {reason}; wanted a readable picture") from error


def _pictured(data: bytes, field: str, source: str) -> Image:
    """An Image whose media type is told by its content, whatever its name or sender says."""
    if len(data) > MAX_IMAGE_BYTES:
        raise UsageError(f"{field}: {source} is larger than {MAX_IMAGE_BYTES:,} bytes; wanted a smaller picture")
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return Image(data, "image/webp")
    for magic, media_type in _MAGIC:
        if data.startswith(magic):
            return Image(data, media_type)
    what = f"{source} with no bytes" if not data else f"{source} starting with {data[:8].hex(' ')}"
    raise UsageError(f"{field}: found {what}, wanted the content of a PNG, JPEG, GIF or WebP")
