"""Requests of which none is taken in: what `enqueue` would answer each, and what the new jobs would cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from types import TracebackType

from millpond.db.scratch import Scratch
from millpond.report.estimate import Estimate
from millpond.rules.errors import KeyConflict
from millpond.rules.job import Disposition
from millpond.rules.policy import Policy
from millpond.rules.total import Means, Total
from millpond.store.bodies import load_work
from millpond.store.enqueue import CHUNK_REQUESTS, Asked
from millpond.store.store import Store

MEASURED_ATTEMPTS = 2_000
"""The newest attempts of the ledger from which the length of answers is measured, whatever their lane."""


class DryRun:
    """Says of streams of requests what `enqueue` would answer, and adds up what it would cost. Writes nothing.

    What is new in one stream is known in the next. Memory is bounded: keys stand on disk, and figures are sums.
    Use it as a context manager.
    """

    def __init__(self, store: Store, policy: Policy) -> None:
        self._store = store
        self._policy = policy
        self._new = Scratch()
        """Keys of what is new, with their fingerprints."""
        self._dispositions: Counter[Disposition] = Counter()
        self._total = Total(policy, Means(store.measured_answers(MEASURED_ATTEMPTS)), store.now_ms())

    def __enter__(self) -> DryRun:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._new.__exit__(kind, error, at)

    def answers(self, asked: Iterable[Asked]) -> Iterator[Disposition | KeyConflict]:
        """An answer for each request, in their order; what is new is counted into the estimate."""
        for new, answers in self._chunks(asked, [self._new]):
            for one in new:
                self._total.add(load_work(one.body), one.route, one.label, one.lane)
            self._dispositions.update(answer for answer in answers if not isinstance(answer, KeyConflict))
            yield from answers

    def trial(self, asked: Iterable[Asked]) -> Iterator[Disposition | KeyConflict]:
        """The answers that `answers` would give, of which nothing is counted, nor known afterwards."""
        with Scratch() as new:
            for _, answers in self._chunks(asked, [self._new, new]):
                yield from answers

    def _chunks(
        self, asked: Iterable[Asked], known: Sequence[Scratch]
    ) -> Iterator[tuple[list[Asked], list[Disposition | KeyConflict]]]:
        """By chunks, the requests that are new and the answers of all. What is new is kept in the last of `known`."""
        requests = iter(asked)
        while chunk := list(islice(requests, CHUNK_REQUESTS)):
            names = [one.idempotency_key for one in chunk]
            before = {name: print_ for scratch in known for name, print_ in scratch.of(names).items()}
            answers = self._store.would_enqueue(chunk, before, max_age_ms=self._policy.artifact_max_age_ms)
            new = [one for one, answer in zip(chunk, answers, strict=True) if answer == "new"]
            known[-1].keep({one.idempotency_key: one.fingerprint for one in new})
            yield new, answers

    def estimate(self, refused: int = 0) -> Estimate:
        """The figures of what was streamed so far; `refused` were refused, by the caller's count."""
        return Estimate.of(self._total, self._policy, self._dispositions, refused)
