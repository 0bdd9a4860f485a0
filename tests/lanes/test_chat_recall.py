"""A chat lane that is asked what became of a call: the label that it sends, and what it makes of a listing."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from byteserver import Connection, byte_server

from millpond.drill.faultlane import FaultLane
from millpond.lanes import Absent, Call, CanRecall, ChatLane, Question, Recalled, Unknown
from millpond.rules.job import Prompt
from millpond.rules.policy import Deadlines, LanePolicy


def lane_of(base_url: str, **more: Any) -> ChatLane:
    return ChatLane(LanePolicy("paid", base_url=base_url, model="m", recall="store", **more), "sk-secret-key")


async def called(lane: ChatLane, uid: str, prompt: Prompt) -> None:
    await lane.call(Call(uid, prompt, "key", 1, 0))


async def asked(lane: ChatLane, uid: str, prompt: Prompt = Prompt("q")) -> Any:  # noqa: B008  # frozen
    try:
        return await lane.recall(Question(uid, prompt))
    finally:
        await lane.close()


def test_a_chat_lane_can_be_asked() -> None:
    assert isinstance(lane_of("http://127.0.0.1:1"), CanRecall)


def test_each_call_is_stored_under_its_attempt_and_keeps_what_the_params_say() -> None:
    with FaultLane() as server:
        lane = lane_of(server.base_url, params={"metadata": {"team": "ducks"}, "store": False})
        asyncio.run(called(lane, "u1", Prompt("q")))
        [post] = server.posts()
        assert post.body["store"] is True
        assert post.body["metadata"] == {"team": "ducks", "millpond_attempt": "u1"}


def test_a_lane_that_is_not_asked_stores_nothing() -> None:
    with FaultLane() as server:
        lane = ChatLane(LanePolicy("paid", base_url=server.base_url, model="m"))
        asyncio.run(called(lane, "u1", Prompt("q")))
        assert not {"store", "metadata"} & server.posts()[0].body.keys()


def test_a_recalled_reply_is_read_as_one_that_came() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

    async def both() -> tuple[Any, Any]:
        lane, prompt = lane_of(server.base_url), Prompt("q", schema=schema)
        first = await lane.call(Call("u1", prompt, "key", 1, 0))
        return first, await asked(lane, "u1", prompt)

    with FaultLane() as server:
        came, said = asyncio.run(both())
    assert isinstance(said, Recalled)
    seen = said.evidence
    assert (seen.reply.text, seen.reply.data) == (came.reply.text, came.reply.data) != ("", None)
    assert (seen.usage.tokens_in, seen.usage.tokens_out) == (came.usage.tokens_in, came.usage.tokens_out)
    assert (seen.terminal, seen.finish_reason, seen.model, seen.status) == (True, "stop", "m", 200)


async def asked_of_a_server_that_sends(data: bytes, **more: Any) -> Any:
    async def play(connection: Connection) -> None:
        await connection.head()
        await connection.send(data)
        if not data:
            await connection.client_left()

    async with byte_server(play) as server:
        return await asked(lane_of(server.url, **more), "u1")


def test_a_server_that_does_not_heed_the_filter_gives_nobody_anothers_reply() -> None:
    other = {"id": "c1", "object": "chat.completion", "model": "m", "metadata": {"millpond_attempt": "other"}}
    body = json.dumps({"object": "list", "data": [other], "has_more": False, "first_id": "c1", "last_id": "c1"})
    assert asyncio.run(asked_of_a_server_that_sends(reply(200, body))) == Absent()


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (200, "{}", "no list of completions"),
        (200, '{"data": [], "has_more": true, "last_id": null}', "no list of completions"),
        (200, "<html>hello", "html"),
        (401, '{"error": {"message": "bad key sk-secret-key"}}', "status 401"),
        (404, '{"error": {"message": "no such path"}}', "status 404: no such path"),
        (307, "", "redirect"),
    ],
)
def test_what_is_no_listing_says_nothing(status: int, body: str, why: str) -> None:
    said = asyncio.run(asked_of_a_server_that_sends(reply(status, body)))
    assert isinstance(said, Unknown)
    assert why in said.why
    assert "sk-secret-key" not in said.why


def test_a_listing_that_does_not_come_is_waited_for_no_longer_than_its_deadline() -> None:
    said = asyncio.run(asked_of_a_server_that_sends(b"", deadlines=Deadlines(first_byte_ms=150)))
    assert isinstance(said, Unknown)
    assert "first_byte_timeout" in said.why


def test_a_listing_that_never_ends_is_given_up() -> None:
    page = json.dumps({"object": "list", "data": [], "has_more": True, "first_id": "c1", "last_id": "c1"})
    said = asyncio.run(asked_of_a_server_that_sends(reply(200, page)))
    assert isinstance(said, Unknown)
    assert "goes on" in said.why


def reply(status: int, body: str) -> bytes:
    location = "location: http://127.0.0.1:1/\r\n" if status == 307 else ""
    head = f"HTTP/1.1 {status} x\r\ncontent-type: application/json\r\n{location}content-length: {len(body)}\r\n"
    return f"{head}connection: close\r\n\r\n{body}".encode()
