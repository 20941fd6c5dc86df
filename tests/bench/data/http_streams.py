"""CPU of a streamed token over HTTP: CompletionStream beside httpx and JSON alone, on tokens made beforehand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from statistics import median
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import Row, in_turn, runs

from dljob.runtime.serving import completion_stream
from dljob.runtime.serving.endpoints import Endpoints

TOKENS = int(os.environ.get("BENCH_TOKENS", "100000"))
SHARE = 1.1
BODY = {"model": "m", "prompt": [1, 2, 3], "max_tokens": TOKENS, "stream": True, "return_token_ids": True}


def made() -> bytes:
    """The whole answer, with the fields of vLLM; each event is an HTTP chunk, as its server sends it."""
    parts: list[bytes] = []
    for number in range(TOKENS):
        choice: dict[str, Any] = {"index": 0, "text": f" word{number % 997}", "logprobs": None, "finish_reason": None}
        choice |= {"stop_reason": None, "prompt_token_ids": None, "token_ids": [number % 50_000]}
        chunk = {"id": "cmpl-7", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}
        event = b"data: " + json.dumps({**chunk, "usage": None}).encode() + b"\n\n"
        parts.append(b"%x\r\n%s\r\n" % (len(event), event))
    end = b"data: [DONE]\n\n"
    return b"".join([*parts, b"%x\r\n%s\r\n" % (len(end), end), b"0\r\n\r\n"])


class Premade(BaseHTTPRequestHandler):
    """Sends what was made beforehand."""

    protocol_version = "HTTP/1.1"
    whole = b""

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def do_POST(self) -> None:
        """Answer at once."""
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.wfile.write(self.whole)


class OneServer:
    """Endpoints of one server."""

    def __init__(self, address: str) -> None:
        self._rows = {"rollout": [{"rank": 0, "incarnation": 1, "addresses": {"http": address}}]}

    def table(self) -> Any:
        """The present table."""
        return self._rows


def serve() -> None:
    """The server's process."""
    Premade.whole = made()
    server = HTTPServer(("127.0.0.1", 0), Premade)
    print(server.server_port, flush=True)
    server.serve_forever()


def alone(address: str) -> float:
    """CPU seconds of the HTTP library and the parsing of JSON."""
    begin, got = time.process_time(), list[int]()
    with httpx.Client(timeout=600) as client, client.stream("POST", f"http://{address}/", json=BODY) as response:
        for line in response.iter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                got += json.loads(line[6:])["choices"][0]["token_ids"]
    assert len(got) == TOKENS
    return time.process_time() - begin


def helper() -> float:
    """CPU seconds of the helper, on the same bytes."""
    begin, got = time.process_time(), list[int]()
    for chunk in completion_stream.CompletionStream("rollout", BODY):
        got += chunk.token_ids
    assert len(got) == TOKENS
    return time.process_time() - begin


def main() -> None:
    """One row."""
    server = subprocess.Popen([sys.executable, __file__, "serve"], stdout=subprocess.PIPE, text=True)
    assert server.stdout
    try:
        address = f"127.0.0.1:{server.stdout.readline().strip()}"
        completion_stream.endpoints = lambda role: Endpoints(role, OneServer(address))  # type: ignore[arg-type]
        ours, plain = in_turn(helper, lambda: alone(address), runs(7))
    finally:
        server.kill()
        server.wait()
    share = median(a / b for a, b in zip(ours, plain, strict=True))
    note = f"{1e6 * median(ours) / TOKENS:.1f} us of {1e6 * median(plain) / TOKENS:.1f} us a token; "
    Row(
        "http-stream",
        f"CPU of a token streamed by CompletionStream, of {TOKENS:,} made beforehand",
        "<= 1.1 x httpx and JSON alone",
        share,
        SHARE,
        unit="x",
        samples={"helper": ours, "alone": plain},
        note=f"{note}load {os.getloadavg()[0]:.0f}",
    ).emit()


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else main()
