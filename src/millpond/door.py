"""The door of one queue: what is handed in is taken whole, by chunks, or not at all, or tried dry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

from millpond.db.tape import Tape
from millpond.intake import Defaults, each_samples, take
from millpond.report.dry_run import DryRun
from millpond.report.estimate import Estimate
from millpond.rules.errors import KeyConflict, UsageError
from millpond.rules.job import Command, Prompt, Receipt, Request, Work
from millpond.rules.policy import Policy
from millpond.rules.prompt import short_name
from millpond.rules.router import Past, Step, route_work
from millpond.store.enqueue import CHUNK_REQUESTS, Asked
from millpond.store.store import Store

if TYPE_CHECKING:
    from pydantic import BaseModel

Askable: TypeAlias = "Prompt | str | Mapping[str, Any] | Request | Command | BaseModel"
"""What can be handed in: see `Queue.enqueue`."""
Registry: TypeAlias = "Mapping[str, type[BaseModel]]"
"""Name of a command's type -> its model."""


class Door:
    """Takes in what is handed to a queue. What `enqueue`, `enqueue_many` and `estimate` promise stands at `Queue`."""

    def __init__(self, store: Store, policy: Callable[[], Policy], registry: Callable[[], Registry | None]) -> None:
        """`policy` says which one is in force now; `registry` is asked when a command may have been met."""
        self._store = store
        self._find_policy = policy
        self._find_registry = registry

    @property
    def _policy(self) -> Policy:
        return self._find_policy()

    def enqueue(self, work: Askable, defaults: Defaults) -> Receipt:
        """Accept one piece of work, as a submission of its own."""
        return self._store.enqueue_one(self._take(work, 0, defaults), max_age_ms=self._policy.artifact_max_age_ms)

    def enqueue_many(
        self,
        works: Iterable[Askable],
        defaults: Mapping[str, Any],
        *,
        submission: str | None,
        each: bool,
        strict: bool,
        source: str,
    ) -> list[Receipt]:
        """Accept many as one submission: whole or not at all if `strict`, else by chunks up to the first refusal."""
        submission = short_name(submission, "submission")
        asked = self._take_all(works, defaults, each=each)
        max_age = self._policy.artifact_max_age_ms
        if strict:
            with Tape[Asked]() as whole:
                for one in asked:
                    whole.append(one)
                return self._store.enqueue_all(whole, name=submission, source=source, max_age_ms=max_age)
        receipts: list[Receipt] = []
        for answer in chain.from_iterable(self.enqueue_stream(asked, submission=submission, source=source)):
            if isinstance(answer, KeyConflict):
                raise answer
            receipts.append(answer)
        return receipts

    def enqueue_stream(
        self, asked: Iterable[Asked], *, submission: str | None = None, source: str = "api"
    ) -> Iterator[list[Receipt | KeyConflict]]:
        """Accept a stream in bounded chunks, and give the answers of each as it is durable. For files of any size."""
        submission_id = 0
        chunk: list[Asked] = []

        def flush() -> list[Receipt | KeyConflict]:
            nonlocal submission_id
            submission_id = submission_id or self._store.open_submission(submission, source)
            answers = self._store.enqueue(chunk, submission_id, max_age_ms=self._policy.artifact_max_age_ms)
            chunk.clear()
            return answers

        for one in asked:
            chunk.append(one)
            if len(chunk) == CHUNK_REQUESTS:
                yield flush()
        if chunk:
            yield flush()

    def estimate(self, works: Iterable[Askable], defaults: Mapping[str, Any], *, each: bool) -> Estimate:
        """What `enqueue_many` would do with these works now, and what the new jobs would cost."""
        with self.dry_run() as dry_run:
            for answer in dry_run.answers(self._take_all(works, defaults, each=each)):
                if isinstance(answer, KeyConflict):
                    raise answer
            return dry_run.estimate()

    def dry_run(self) -> DryRun:
        """What `estimate` goes by, for streams of requests; to be closed. For files of any size."""
        return DryRun(self._store, self._policy)

    def first_lane(self, work: Work, route: str, wish: str) -> str:
        """Where routing starts work that has no past; "" where that is to be found when it is leased."""
        step = route_work(work, route, wish, Past(), self._policy)
        return step.lane if isinstance(step, Step) else ""  # what fits no lane today may fit one by then

    def _take_all(self, works: Iterable[Askable], defaults: Mapping[str, Any], *, each: bool) -> Iterator[Asked]:
        common = _defaults(defaults)
        asked = (self._take(work, at, common) for at, work in enumerate(works))
        return each_samples(asked) if each else asked

    def _take(self, work: Any, position: int, defaults: Defaults) -> Asked:
        if defaults.lane:
            self._policy.lane(defaults.lane)
        return take(
            work,
            position=position,
            registry=None if _is_plain(work) else self._find_registry(),
            defaults=defaults,
            now_ms=self._store.now_ms(),
            first_lane=self.first_lane,
        )


def _defaults(given: Mapping[str, Any]) -> Defaults:
    try:
        return Defaults(**given)
    except TypeError as problem:
        known = ", ".join(Defaults.__dataclass_fields__)
        raise UsageError(f"enqueue: {str(problem).rpartition('() ')[2]}; known keywords: {known}") from None


def _is_plain(work: Any) -> bool:
    """Whether work is surely no command, so that nobody needs to know the types."""
    inner = work.work if isinstance(work, Request) else work
    return isinstance(inner, Prompt | str | Mapping)
