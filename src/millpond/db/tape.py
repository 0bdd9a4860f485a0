"""Things in the order in which they came: more of them than memory should hold, in a file that nobody else sees."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import suppress
from tempfile import SpooledTemporaryFile, gettempdir
from types import TracebackType
from typing import Generic, TypeVar, cast

from millpond.db.failures import naming_the_temporary

T = TypeVar("T")

MEMORY_BYTES = 1 << 20
"""So much is held in memory; what is longer stands in a temporary file, which is deleted as it is opened."""


class Tape(Generic[T]):
    """A list that grows on disk: first all is appended, then it is read, as often as wanted.

    Of one thread at a time; use it as a context manager. Raises QueueUnavailable naming the temporary folder if that
    refuses.
    """

    def __init__(self) -> None:
        self._file = SpooledTemporaryFile(max_size=MEMORY_BYTES)  # noqa: SIM115

    def __enter__(self) -> Tape[T]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with suppress(OSError):  # what could not be written is thrown away
            self._file.close()

    def append(self, one: T) -> None:
        """Put it last."""
        with naming_the_temporary(gettempdir):
            pickle.dump(one, self._file, pickle.HIGHEST_PROTOCOL)

    def __iter__(self) -> Iterator[T]:
        at = 0
        while True:
            with naming_the_temporary(gettempdir):
                self._file.seek(at)  # somebody else may have read since
                try:
                    one = cast(T, pickle.load(self._file))
                except EOFError:
                    return
                at = self._file.tell()
            yield one
