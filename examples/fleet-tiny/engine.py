"""An engine: an HTTP server that streams tokens as they are made. It imports nothing of dljob.

`POST /v1/completions` takes the ids of the prompt and of what was made of the answer before, so that a stream which
lost its engine goes on at another one. `POST /load` names a file with newer weights, `POST /drain` lets streams end.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from model import Decoder, Policy, draw
from task import SEPARATOR
from torch import Tensor


def read_weights(path: str) -> dict[str, Tensor]:
    """Read a safetensors file: the length of a header, the header with the place of each tensor, and the tensors."""
    with Path(path).open("rb") as file:
        whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    start = 8 + int.from_bytes(whole[:8], "little")
    found: dict[str, Tensor] = {}
    for name, one in json.loads(bytes(whole[8:start])).items():
        first, last = one["data_offsets"]
        found[name] = torch.frombuffer(whole[start + first : start + last], dtype=torch.float32).view(one["shape"])
    return found


class Engine:
    """The newest weights, and a count of the tokens that were made."""

    def __init__(self, made: Path) -> None:
        self.held: tuple[int, Policy] | None = None
        """Version and policy, replaced together."""
        self.busy = 0
        self.idle = threading.Condition()
        made.parent.mkdir(exist_ok=True)
        self.made = made.open("ab", buffering=0)

    def load(self, order: dict[str, Any]) -> None:
        """Use a newer version from the next request on; those under way keep theirs."""
        policy = Policy(seed=0)
        policy.load_state_dict(read_weights(order["channels"]["policy"]))
        self.held = order["version"], policy

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
        """Answer the probe. Whether the weights are new enough is not asked here: dljob loads them, and knows."""
        self._plain(200)

    def do_POST(self) -> None:
        """Stream tokens, load weights, or let streams under way end."""
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
        engine = self.engine
        if self.path == "/drain":
            with engine.idle:
                engine.idle.wait_for(lambda: not engine.busy)
            self._plain(200)
            return
        if self.path == "/load":
            engine.load(body)
            self._plain(200)
            return
        if engine.held is None:
            self._plain(503)
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


class Server(ThreadingHTTPServer):
    """A thread for each connection."""

    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Tell of errors, but not that a client has left."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def main() -> None:
    """Serve until SIGTERM."""
    torch.set_num_threads(1)
    name = f"{os.environ['DLJOB_RANK']}-{os.environ['DLJOB_INCARNATION']}"
    Requests.engine = Engine(Path(os.environ["DLJOB_DIR"], "made", name))
    server = Server((os.environ["DLJOB_HOST"], int(os.environ["DLJOB_PORT_HTTP"])), Requests)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    server.serve_forever()


if __name__ == "__main__":
    main()
