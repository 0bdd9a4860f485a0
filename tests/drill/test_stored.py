"""What the fault lane keeps of `store: true`, and how the official client lists it."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from millpond.drill.faultlane import FaultLane

ASKED: Any = [{"role": "user", "content": "Is a duck a bird?"}]


def client_of(lane: FaultLane) -> openai.OpenAI:
    return openai.OpenAI(base_url=lane.base_url, api_key="placeholder", max_retries=0)


def create(client: openai.OpenAI, name: str, *, n: int = 0, **more: Any) -> Any:
    asked: Any = [{"role": "user", "content": f"question {n}"}]
    return client.chat.completions.create(model="m", messages=asked, store=True, metadata={"name": name}, **more)


def test_a_stored_answer_is_listed_by_its_metadata_as_it_was_given() -> None:
    with FaultLane() as lane, client_of(lane) as client:
        reply = create(client, "a")
        create(client, "b", n=1)
        [found] = list(client.chat.completions.list(metadata={"name": "a"}))
        assert (found.id, found.choices[0].message.content) == (reply.id, reply.choices[0].message.content)
        assert (found.usage, found.choices[0].finish_reason) == (reply.usage, "stop")
        assert found.metadata == {"name": "a"}  # type: ignore[attr-defined]
        assert list(client.chat.completions.list(metadata={"name": "c"})) == []


def test_a_streamed_answer_that_was_lost_is_listed_whole() -> None:
    with FaultLane(script=["stream_cut"]) as lane, client_of(lane) as client:
        with pytest.raises(Exception, match=r"."):
            list(create(client, "a", stream=True))
        [found] = list(client.chat.completions.list(metadata={"name": "a"}))
        assert found.choices[0].message.content == lane.posts()[0].result


@pytest.mark.parametrize("fault", ["503_bare", "429", "hang"])
def test_work_that_was_not_done_is_not_listed(fault: str) -> None:
    with FaultLane(script=[fault], hang_s=0.01) as lane, client_of(lane) as client:
        with pytest.raises(openai.APIError):
            create(client, "a")
        assert list(client.chat.completions.list()) == []


def test_what_nobody_asked_to_store_is_not_listed() -> None:
    with FaultLane() as lane, client_of(lane) as client:
        client.chat.completions.create(model="m", messages=ASKED)
        assert list(client.chat.completions.list()) == []


def test_an_answer_is_listed_only_once_it_has_settled() -> None:
    now = [100.0]
    with FaultLane(settling_s=5, clock=lambda: now[0]) as lane, client_of(lane) as client:
        create(client, "a")
        assert list(client.chat.completions.list()) == []
        now[0] += 5
        assert len(list(client.chat.completions.list())) == 1


def test_pages_follow_each_other_in_either_order() -> None:
    with FaultLane() as lane, client_of(lane) as client:
        ids = [create(client, "a", n=n).id for n in range(5)]
        page = client.chat.completions.list(limit=2)
        assert ([one.id for one in page.data], page.has_more) == (ids[:2], True)
        assert [one.id for one in page] == ids, "the client walks on by `after`"
        assert [one.id for one in client.chat.completions.list(limit=3, order="desc")] == ids[::-1]
        with pytest.raises(openai.BadRequestError, match="limit"):
            client.chat.completions.list(limit=101)
        with pytest.raises(openai.BadRequestError, match="No completion found"):
            client.chat.completions.list(after="nobody")


def test_metadata_without_store_is_refused() -> None:
    with FaultLane() as lane, client_of(lane) as client:
        with pytest.raises(openai.BadRequestError, match="only allowed when 'store' is enabled"):
            client.chat.completions.create(model="m", messages=ASKED, metadata={"name": "a"})
        with pytest.raises(openai.BadRequestError, match="at most 512"):
            create(client, "x" * 513)
