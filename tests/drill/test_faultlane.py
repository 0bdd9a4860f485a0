"""The fault lane on the wire, and what it remembers. What clients see of each fault: test_what_clients_see."""

from __future__ import annotations

import contextlib
import errno
import json
import random
import signal
import socket
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from millpond.drill.faultlane import FaultLane, Post
from millpond.drill.script import FAULTS, replay
from millpond.rules.errors import UsageError


def body_of(text: str = "How many ducks?", **more: Any) -> dict[str, Any]:
    return {"model": "fault-1", "messages": [{"role": "user", "content": text}], **more}


def post(lane: FaultLane, text: str = "How many ducks?", **more: Any) -> httpx2.Response:
    return httpx2.post(f"{lane.base_url}/chat/completions", json=body_of(text, **more), timeout=30)


def port_of(lane: FaultLane) -> int:
    return int(lane.base_url.split(":")[2].split("/")[0])


def raw_request(**more: Any) -> bytes:
    body = json.dumps(body_of(**more)).encode()
    return b"POST /v1/chat/completions HTTP/1.1\r\nHost: pond\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def connect(lane: FaultLane) -> socket.socket:
    wire = socket.create_connection(("127.0.0.1", port_of(lane)))
    wire.settimeout(30)
    return wire


def ask_raw(lane: FaultLane, **more: Any) -> socket.socket:
    """A plain connection on which a request was sent whole."""
    wire = connect(lane)
    wire.sendall(raw_request(**more))
    return wire


def all_of(wire: socket.socket) -> bytes:
    """Everything until an orderly end; a reset raises."""
    return b"".join(iter(lambda: wire.recv(65536), b""))


def events_of(text: str) -> list[str]:
    return [line.removeprefix("data: ") for line in text.split("\n\n") if line.startswith("data: ")]


def text_of(events: list[str]) -> str:
    """The content of a stream, up to where it stops being chunks."""
    choices = [choice for event in events if event.startswith('{"id"') for choice in json.loads(event)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


# ---------------------------------------------------------------- statuses and bodies


@pytest.mark.parametrize("raw", ["", "soon", "1.5", "-5", "Fri, 31 Dec 9999 23:59:59 GMT", "9" * 5_000])
def test_retry_after_is_sent_as_it_was_given(raw: str) -> None:
    with FaultLane(script=["429"], retry_after=raw, headers=[("retry-after-ms", "1500")]) as lane:
        reply = post(lane)
        assert (reply.headers["retry-after"], reply.headers["retry-after-ms"]) == (raw, "1500")


# ---------------------------------------------------------------- the transport breaks


def test_reset_is_a_real_rst_after_the_work_was_done() -> None:
    with FaultLane(script=["reset"]) as lane, ask_raw(lane) as wire:
        with pytest.raises(ConnectionResetError) as broken:
            wire.recv(1)
        assert broken.value.errno == errno.ECONNRESET
        (late,) = lane.late_results()
        assert (late.completed, late.delivered, late.result) == (True, False, f"answer to {late.prompt_digest[:8]}")


def test_reset_idle_answers_and_resets_the_next_request_unread() -> None:
    with FaultLane(script=["reset_idle", "ok"]) as lane, ask_raw(lane) as wire:
        assert wire.recv(65536).startswith(b"HTTP/1.1 200 ")
        wire.sendall(raw_request())
        with pytest.raises(ConnectionResetError):
            all_of(wire)
        assert [seen.fault for seen in lane.posts()] == ["reset_idle"]
        assert lane.late_results() == []


@pytest.mark.parametrize("stream", [False, True])
def test_cut_promises_more_than_it_sends_and_ends_in_an_orderly_way(stream: bool) -> None:
    with FaultLane(script=["cut"]) as lane, ask_raw(lane, stream=stream) as wire:
        head, _, body = all_of(wire).partition(b"\r\n\r\n")
        (promised,) = [int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        assert 0 < len(body) < promised
        assert [seen.completed for seen in lane.late_results()] == [True]


def test_a_stream_that_is_cut_has_content_and_no_end() -> None:
    with FaultLane(script=["stream_cut"], answer=lambda _: "a b c d e f g h") as lane:
        with ask_raw(lane, stream=True) as wire:
            said = all_of(wire)
        assert b"a " in said
        assert not said.endswith(b"0\r\n\r\n"), "the last chunk of HTTP is missing"
        assert b"[DONE]" not in said
        assert b'"finish_reason":"stop"' not in said
        with pytest.raises(httpx2.RemoteProtocolError):
            post(lane, stream=True)


@pytest.mark.parametrize("fault", sorted(name for name, fault in FAULTS.items() if fault.plain))
def test_a_fault_of_streams_meets_a_plain_client_as_its_stand_in(fault: str) -> None:
    def seen_by_client(name: str) -> str:
        with FaultLane(script=[name], hang_s=0.05) as lane:
            try:
                return post(lane).text
            except httpx2.TransportError as error:
                return repr(error)

    assert seen_by_client(fault) == seen_by_client(FAULTS[fault].plain)


def test_comments_go_on_while_the_client_listens() -> None:
    with FaultLane(script=["comments"]) as lane, ask_raw(lane, stream=True) as wire:
        said = b""
        while said.count(b": keep-alive") < 3:
            said += wire.recv(65536)
        assert b"data:" not in said


# ---------------------------------------------------------------- what is remembered


def test_slow_work_completes_though_the_client_has_left() -> None:
    with FaultLane(script=["slow"], slow_s=0.5, answer=lambda _: "seven ducks") as lane:
        ask_raw(lane).close()
        assert lane.wait_for_late(1, 30)
        (late,) = lane.late_results()
        assert (late.result, late.delivered, late.tokens_out) == ("seven ducks", False, 3)


def test_a_half_sent_request_is_not_accepted() -> None:
    with FaultLane() as lane:
        with connect(lane) as wire:
            wire.sendall(raw_request()[:-1])
            wire.shutdown(socket.SHUT_WR)
            assert all_of(wire) == b""
        assert lane.accepted() == 0
        assert not lane.wait_for(1, 0)


def test_a_post_that_is_no_chat_request_is_refused_and_remembered() -> None:
    with FaultLane(script=["reset"]) as lane:
        url = f"{lane.base_url}/chat/completions"
        for wrong in (b"{", b"[]", b"\xff", b'{"model": "m", "messages": []}'):
            reply = httpx2.post(url, content=wrong)
            assert (reply.status_code, reply.json()["error"]["type"]) == (400, "invalid_request_error")
        assert [seen.fault for seen in lane.posts()] == ["invalid"] * 4
        assert httpx2.get(f"{lane.base_url}/elsewhere").status_code == 404


def test_the_key_is_remembered_and_the_secret_is_not() -> None:
    with FaultLane() as lane:
        headers = {"Idempotency-Key": "duck-1", "Authorization": "Bearer sk-very-secret"}
        url = f"{lane.base_url}/chat/completions"
        httpx2.post(url, json=body_of(), headers=headers).raise_for_status()
        assert [seen.idempotency_key for seen in lane.posts()] == ["duck-1"]
        assert "very-secret" not in httpx2.get(f"http://127.0.0.1:{port_of(lane)}/__faultlane__/posts").text


def test_other_processes_read_posts_late_results_and_the_truth_in_numbers() -> None:
    with FaultLane(script=["reset", "ok", "429"]) as lane:
        for _ in range(3):
            with ask_raw(lane) as wire, contextlib.suppress(ConnectionResetError):
                wire.recv(65536)
        told = {
            what: httpx2.get(f"http://127.0.0.1:{port_of(lane)}/__faultlane__/{what}").json()
            for what in ("posts", "results", "summary")
        }
        assert [Post(**one) for one in told["posts"]] == lane.posts()
        assert [Post(**one) for one in told["results"]] == lane.late_results()
        assert told["summary"] == lane.summary()
        assert told["summary"] == {
            "posts": 3,
            "prompts": 1,
            "completed": 2,
            "late": 1,
            "completed_again": 1,
            "tokens_in": 8,
            "tokens_out": 10,
            "by_fault": {"429": 1, "ok": 1, "reset": 1},
        }


def test_a_recording_plays_the_same_again(tmp_path: Path) -> None:
    def run(lane: FaultLane) -> list[tuple[str, int, str]]:
        for n in range(30):
            ask_raw(lane, text=f"question {n % 10}").close()
            assert lane.wait_for(n + 1, 30)
        return sorted((seen.prompt_digest, seen.ordinal, seen.fault) for seen in lane.posts())

    with FaultLane(mix={"429": 0.3, "500": 0.3}, seed=5) as lane:
        first = run(lane)
        (tmp_path / "jobs.jsonl").write_text(lane.recording())
    assert {fault for _, _, fault in first} == {"429", "500", "ok"}
    with FaultLane(script=replay(tmp_path / "jobs.jsonl")) as lane:
        assert run(lane) == first


# ---------------------------------------------------------------- many at once, and the end


def test_thirty_two_clients_are_served_at_once() -> None:
    with FaultLane(script=["hang"]) as lane:
        wires = [ask_raw(lane, text=f"question {n}") for n in range(32)]
        assert lane.wait_for(32, 30), "all are accepted while none is answered"
        for wire in wires:
            wire.close()


def test_thirty_two_clients_each_get_their_own_answer_and_the_same_faults_in_any_order() -> None:
    asked = [f"question {n % 64}" for n in range(256)]

    def run(seed: int) -> Counter[tuple[str, int, str]]:
        order = list(asked)
        random.Random(seed).shuffle(order)
        with FaultLane(mix={"503_proof": 0.2, "500": 0.1}, seed=11, answer=said) as lane, httpx2.Client() as client:

            def one(text: str) -> None:
                reply = client.post(f"{lane.base_url}/chat/completions", json=body_of(text), timeout=60)
                if reply.status_code == 200:
                    assert reply.json()["choices"][0]["message"]["content"] == f"you asked {text}"

            with ThreadPoolExecutor(32) as pool:
                list(pool.map(one, order))
            assert lane.accepted() == len(asked)
            return Counter((seen.prompt_digest, seen.ordinal, seen.fault) for seen in lane.posts())

    def said(body: dict[str, Any]) -> str:
        return f"you asked {body['messages'][0]['content']}"

    first = run(1)
    assert first == run(2)
    assert {fault for _, _, fault in first} == {"ok", "503_proof", "500"}


def test_stop_ends_hanging_connections_at_once() -> None:
    lane = FaultLane(script=["hang", "slow", "comments", "partial_stream_then_hang"], slow_s=3600)
    lane.start()
    wires = [ask_raw(lane, stream=True) for _ in range(8)] + [connect(lane)]
    assert lane.wait_for(8, 30)
    lane.stop()
    for wire in wires:
        with wire, contextlib.suppress(ConnectionResetError):
            all_of(wire)
    assert not any(seen.completed for seen in lane.posts()), "work under way is not completed"
    with pytest.raises(ConnectionRefusedError):
        connect(lane)


def test_stop_ends_a_connection_that_it_takes_at_that_moment() -> None:
    for _ in range(30):
        lane = FaultLane()
        lane.start()
        wires = [connect(lane) for _ in range(3)]
        lane.stop()
        for wire in wires:
            with wire, contextlib.suppress(ConnectionResetError):
                assert all_of(wire) == b""


def test_a_server_that_was_stopped_comes_back_at_the_same_address_with_its_memory() -> None:
    lane = FaultLane()
    with pytest.raises(UsageError, match="no address yet"):
        _ = lane.base_url
    with lane:
        first = lane.base_url
        post(lane)
        with pytest.raises(UsageError, match="runs already"):
            lane.start()
    lane.stop()
    with lane:
        assert lane.base_url == first
        post(lane)
    assert [seen.ordinal for seen in lane.posts()] == [1, 2]


def test_a_taken_port_is_refused_in_one_line() -> None:
    with FaultLane() as lane:
        other = FaultLane(port=port_of(lane))
        with pytest.raises(UsageError, match=rf"cannot listen on 127\.0\.0\.1:{port_of(lane)} .*; give another port"):
            other.start()
        post(lane)
    with other:
        post(other)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"port": 70_000}, "port: found 70000, wanted 0"),
        ({"retry_after": "1\r\nX-Smuggled: 1"}, "headers: HTTP cannot carry"),
        ({"headers": [("x-note", "duck – goose")]}, "headers: HTTP cannot carry"),
        ({"mix": {"ok": 2}}, "the shares add up to 2"),
    ],
)
def test_what_cannot_be_served_is_refused_at_construction(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        FaultLane(**options)


def test_a_large_streamed_answer_is_delivered_whole() -> None:
    text = f"{'quack' * 2_000} " * 500
    with FaultLane(answer=lambda _: text) as lane:
        assert text_of(events_of(post(lane, stream=True).text)) == text
        assert lane.late_results() == []


def test_a_client_that_leaves_amid_a_large_stream_did_not_get_it() -> None:
    with FaultLane(answer=lambda _: f"{'quack' * 2_000} " * 2_000) as lane:
        with ask_raw(lane, stream=True) as wire:
            assert wire.recv(15) == b"HTTP/1.1 200 \r\n"
        assert lane.wait_for_late(1, 30)


def test_run_serves_until_it_is_interrupted() -> None:
    program = (
        "from millpond.drill.faultlane import run\n"
        "try:\n"
        "    run(on_ready=lambda url: print(url, flush=True), mix={'500': 1.0})\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert httpx2.post(f"{url}/chat/completions", json=body_of()).status_code == 500
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == "interrupted\n"
    assert process.returncode == 0


def test_one_connection_serves_many_requests() -> None:
    with FaultLane() as lane, connect(lane) as wire:
        reader = wire.makefile("rb")
        for n in range(3):
            wire.sendall(raw_request(text=f"question {n}"))
            head = b"".join(iter(reader.readline, b"\r\n"))
            (length,) = [int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
            assert json.loads(reader.read(length))["object"] == "chat.completion"
        assert lane.accepted() == 3
