"""A server of OpenAI-style completions whose engine is a function of the tokens before: in a thread or a process."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KIND = "text/event-stream"


def next_token(before: Sequence[int]) -> int:
    """Depends on all tokens before, whoever made them: greedy decoding."""
    return (sum(before) * 31 + len(before) * 7) % 997


def undisturbed(prompt: Sequence[int], count: int) -> list[int]:
    """The tokens of a run without a loss."""
    made: list[int] = []
    while len(made) < count:
        made.append(next_token([*prompt, *made]))
    return made


class Script:
    """What a server does: each request takes the next of `answers`, the last one again and again.

    An answer is a number of tokens after which the server drops the connection (None: all), a status, or raw bytes.
    """

    def __init__(self, *answers: Any, **options: Any) -> None:
        self.answers = list(answers) or [None]
        self.options = options
        self.requests: list[dict[str, Any]] = []
        self.closed = threading.Event()
        """A client left in mid-stream."""

    def next(self) -> Any:
        """The next answer."""
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


class Handler(BaseHTTPRequestHandler):
    """Answers POST by streams, and GET by the name of the server."""

    protocol_version = "HTTP/1.1"
    server: CompletionServer

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        self._plain(200, self.server.name.encode())

    def do_PUT(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        script = self.server.script
        raw = self._body()
        body = json.loads(raw or b"{}")
        script.requests.append({"path": self.path, "headers": dict(self.headers), "body": body})
        answer = script.next()
        if callable(answer):
            answer = answer(self)
        if isinstance(answer, tuple):
            status, headers, text = answer
            self._plain(status, text, headers)
        elif answer != "hang up":
            self._stream(body, answer)
        if isinstance(answer, int | str):
            self.close_connection = True

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        parts: list[bytes] = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _plain(self, status: int, text: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"content-length": str(len(text)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)

    def _stream(self, body: dict[str, Any], answer: Any) -> None:
        options = self.server.script.options
        self.send_response(200)
        for name, value in {"content-type": KIND, "transfer-encoding": "chunked", **options.get("headers", {})}.items():
            self.send_header(name, value)
        self.end_headers()
        try:
            if isinstance(answer, bytes):
                self._write(answer)
            else:
                for number, event in enumerate(events(body, options)):
                    if number == answer:
                        return
                    self._write(event)
                    if pace := options.get("pace"):
                        time.sleep(pace)
            self._write(b"")
        except (BrokenPipeError, ConnectionResetError):
            self.server.script.closed.set()
            self.close_connection = True

    def _write(self, part: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))


def events(body: dict[str, Any], options: dict[str, Any]) -> Iterator[bytes]:
    """The events of one answer."""
    chat = "messages" in body
    prompt = body.get("prompt", "")
    ids = [ord(each) for each in prompt] if isinstance(prompt, str) else list(prompt)
    count = body.get("max_tokens") or 8
    made: list[int] = []
    for number in range(count):
        made.append(next_token([*ids, *made]))
        text = f"{made[-1]} "
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length" if number == count - 1 else None}
        choice |= {"delta": {"content": text}} if chat else {"text": text}
        if body.get("return_token_ids") and not options.get("without_ids"):
            choice["token_ids"] = [made[-1]]
            if not number:
                choice["prompt_token_ids"] = ids
        yield event({"choices": [choice], **options.get("fields", {})})
    yield event({"choices": [], "usage": {"completion_tokens": count}})
    yield b"data: [DONE]\n\n"


def event(data: Any) -> bytes:
    """One event."""
    return b"data: " + json.dumps(data).encode() + b"\n\n"


class CompletionServer(ThreadingHTTPServer):
    """One server of a role."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, script: Script, name: str = "", port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.script = script
        self.name = name

    @property
    def address(self) -> str:
        """host:port."""
        return f"127.0.0.1:{self.server_port}"

    def handle_error(self, *_: Any) -> None:
        """A client that went away is no error."""


@contextmanager
def serving(*scripts: Script) -> Iterator[list[CompletionServer]]:
    """Servers in threads, by rank."""
    servers = [CompletionServer(script, f"server {rank}") for rank, script in enumerate(scripts)]
    for server in servers:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield servers
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


def main() -> None:
    """Serve in a process of its own: prints its port; `--die-at N` kills the process in the N-th token of a stream."""
    die_at = int(sys.argv[1])

    def answer(_: Any) -> None:
        return None

    server = CompletionServer(Script(answer))
    if die_at:
        whole = events

        def deadly(body: dict[str, Any], options: dict[str, Any]) -> Iterator[bytes]:
            for number, each in enumerate(whole(body, options)):
                if number == die_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                yield each

        globals()["events"] = deadly
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
