"""O22: the value of a lane's key stands nowhere but in the header that carries it."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from mill import Home

KEY = "sk-test-0123456789abcdefSECRET"
BODIES = {
    "a": f'{{"error": {{"message": "Incorrect API key provided: {KEY}", "code": "invalid_request"}}}}',
    "b": f'{{"error": {{"message": "Authorization: Bearer {KEY[:12]}\\n{KEY[12:]} was refused"}}}}',
    "c": f'{{"error": {{"message": "https://host/v1?key={KEY}&x=1", "type": "{KEY}"}}}}',
    "d": f"<html>{KEY}</html>",
}


class Leaky(BaseHTTPRequestHandler):
    """Answers every request by quoting the key back at its caller."""

    seen: list[str] = []  # noqa: RUF012

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers["content-length"])).decode()
        self.seen.append(self.headers["authorization"])
        body = next(body for name, body in BODIES.items() if f"ask {name}" in asked).encode()
        self.send_response(400)
        self.send_header("content-type", "application/json")
        self.send_header("x-request-id", KEY)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def leaky() -> object:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Leaky)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


def test_o22_the_key_is_in_no_table_file_or_output(tmp_path: Path, leaky: str) -> None:
    env = {"LEAKY_KEY": KEY}
    chat = {"kind": "chat", "base_url": leaky, "model": "m", "key_env": "LEAKY_KEY", "price": 0, "max_attempts": 1}
    home = Home(tmp_path, lanes={"free": chat})
    (tmp_path / "asked.txt").write_text("\n".join(f"ask {name} about sk-learn and ?key=value" for name in BODIES))
    said = home.run("enqueue", "asked.txt", env=env)
    said += home.run("drain", env=env)
    for words in (["jobs"], ["explain", "1"], ["show", "1"], ["explain", "3"], ["status"], ["doctor"],
                  ["results", "--failed"], ["config", "show", "--origin"], ["--json", "show", "2"], ["ledger"],
                  ["ledger", "--json"], ["events"], ["events", "--json"], ["submissions", "1"]):  # fmt: skip
        process = home.start(*words, env=env)
        said += process.communicate(timeout=60)

    assert set(Leaky.seen) == {f"Bearer {KEY}"}, "the key did reach the lane"
    halves = [KEY, KEY[12:]]
    for path in home.home.rglob("*"):
        if path.is_file():
            stored = path.read_bytes()
            assert not [half for half in halves if half.encode() in stored], f"the key stands in {path.name}"
            if path.name == "queue.db":
                assert b"sk-learn and ?key=value" in stored, "a prompt about keys is no key"
    assert not [half for half in halves if half in "".join(said)]
