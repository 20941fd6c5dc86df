"""An engine: an HTTP server that streams tokens as they are made. It knows the job by its environment and its weights.

`POST /v1/completions` takes the ids of the prompt and of what was made of the answer before, so that a stream which
lost its engine goes on at another one.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from model import Decoder, Policy, draw
from task import SEPARATOR

from dljob import WeightChannel, current_worker


class Engine:
    """The newest weights, and a count of the tokens that were made."""

    def __init__(self, seed: int, made: Path) -> None:
        self.seed = seed
        self.held: tuple[int, Policy] | None = None
        """Version and policy, replaced together."""
        self.busy = 0
        self.idle = threading.Condition()
        made.parent.mkdir(exist_ok=True)
        self.made = made.open("ab", buffering=0)

    def follow(self) -> None:
        """Load each version of the weights, for ever."""
        channel = WeightChannel("policy")
        while True:
            version, state = channel.receive()
            policy = Policy(self.seed)
            policy.load_state_dict(state)
            self.held = version, policy

    def stream(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield a chunk for each token: all of one version, since the numbers of tokens before are of that one."""
        assert self.held is not None
        version, policy = self.held
        decoder, tokens = Decoder(policy), body["prompt"]
        for token in tokens:
            logprobs = decoder.read(token)
        first = len(tokens) - tokens.index(SEPARATOR) - 1
        for position in range(first, first + body["max_tokens"]):
            token, logprob = draw(logprobs, body["seed"], position)
            self.made.write(b".")  # a byte for each token, which a kill leaves behind
            choice = {"index": 0, "text": str(token), "token_ids": [token], "logprob": logprob, "finish_reason": None}
            yield {"object": "text_completion", "choices": [choice], "weights_version": version}
            logprobs = decoder.read(token) if position + 1 < first + body["max_tokens"] else logprobs


class Requests(BaseHTTPRequestHandler):
    """The requests of one connection."""

    protocol_version = "HTTP/1.1"
    engine: Engine

    def log_message(self, *_: object) -> None:
        """Say nothing of each request."""

    def do_GET(self) -> None:
        """Answer the probe: an engine without weights is not ready."""
        self._plain(503 if self.engine.held is None else 200)

    def do_POST(self) -> None:
        """Stream tokens, or let those under way end."""
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
        engine = self.engine
        if self.path == "/drain":
            with engine.idle:
                engine.idle.wait_for(lambda: not engine.busy)
            self._plain(200)
            return
        with engine.idle:
            engine.busy += 1
        try:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for chunk in engine.stream(body):
                self._part(b"data: %s\n\n" % json.dumps(chunk).encode())
            self._part(b"data: [DONE]\n\n")
            self._part(b"")
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            with engine.idle:
                engine.busy -= 1
                engine.idle.notify_all()

    def _plain(self, status: int) -> None:
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def _part(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))


def main() -> None:
    """Serve until SIGTERM."""
    torch.set_num_threads(1)
    worker = current_worker()
    file = Path(worker.job_dir, "made", f"{worker.rank}-{worker.incarnation}-{os.getpid()}")
    Requests.engine = Engine(worker.config["seed"], file)
    threading.Thread(target=Requests.engine.follow, daemon=True).start()
    server = ThreadingHTTPServer((os.environ["DLJOB_HOST"], int(os.environ["DLJOB_PORT_HTTP"])), Requests)
    server.daemon_threads = True
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    server.serve_forever()


if __name__ == "__main__":
    main()
