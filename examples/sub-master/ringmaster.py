"""A third-party package: a SubMaster for ranks that form a ring of sockets, and the ring itself. No torch.

RingMaster knows who has come in this generation, tells everybody where everybody listens once all have, and hears from
those who miss a neighbour which rank is to be started again. Lines of JSON over TCP.
"""

from __future__ import annotations

import json
import os
import socket
import socketserver
import threading
from typing import Any

from ray.util import get_node_ip_address

from dljob import SubMaster

PATIENCE_S = 60
"""Seconds for which a rank waits for the others."""


class RingMaster(SubMaster):
    """The rendezvous of a role's ranks: the first line that each sends has its generation, its rank and its address."""

    def setup(self) -> None:
        """Start the server."""
        self._came: dict[int, str] = {}
        self._wanted, self._generation = 0, -1
        self._changed = threading.Condition()
        here = get_node_ip_address()
        self._server = _Server((here, 0), self.meet)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def address(self) -> str:
        """Return the server's address."""
        host, port = self._server.server_address[:2]
        return f"{host}:{port}"

    def begin(self, generation: int, world_size: int) -> None:
        """Forget the ranks of earlier generations."""
        with self._changed:
            self._came, self._wanted, self._generation = {}, world_size, generation
            self._changed.notify_all()
        print(f"ring of {world_size} for {self.role}, generation {generation}", flush=True)

    def meet(self, said: dict[str, Any]) -> dict[str, Any]:
        """Register a rank; once all are registered, return their addresses in the order of ranks."""
        with self._changed:
            generation, came = self._generation, self._came
            came[said["rank"]] = said["at"]
            self._changed.notify_all()
            self._changed.wait_for(lambda: len(came) == self._wanted or self._generation != generation, PATIENCE_S)
            whole = len(came) == self._wanted and self._generation == generation
        return {"generation": generation, "ring": [came[rank] for rank in sorted(came)] if whole else []}


class _Server(socketserver.ThreadingTCPServer):
    """Reads one line and answers with one line."""

    daemon_threads = True

    def __init__(self, at: tuple[str, int], answer: Any) -> None:
        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                line = self.rfile.readline()
                if line:
                    self.wfile.write(json.dumps(answer(json.loads(line))).encode() + b"\n")

        super().__init__(at, Handler)


class Ring:
    """A rank's connections in the ring: it sends to the next rank, and receives from the one before."""

    def __init__(self, rank: int) -> None:
        self._listener = socket.create_server((get_node_ip_address(), 0))
        self.generation, ring = self._meet(rank)
        self.size = len(ring)
        host, _, port = ring[(rank + 1) % self.size].rpartition(":")
        self._next = socket.create_connection((host, int(port)), PATIENCE_S)
        self._listener.settimeout(PATIENCE_S)
        before, _ = self._listener.accept()
        before.settimeout(PATIENCE_S)
        self._before = before.makefile("r", encoding="utf-8")

    def _meet(self, rank: int) -> tuple[int, list[str]]:
        """Register at the RingMaster, whose address is in MASTER_ADDR and MASTER_PORT as for any role."""
        host, port = self._listener.getsockname()[:2]
        at = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        with socket.create_connection(at, PATIENCE_S) as line, line.makefile("rw", encoding="utf-8") as words:
            words.write(json.dumps({"rank": rank, "at": f"{host}:{port}"}) + "\n")
            words.flush()
            found = json.loads(words.readline())
        if not found["ring"]:
            raise ConnectionError(f"rank {rank}: the others did not come to the ring")
        return found["generation"], found["ring"]

    def sum(self, number: int) -> int:
        """Return the sum of all ranks' numbers; each number goes around the whole ring."""
        total = number
        for _ in range(self.size - 1):
            self._next.sendall(f"{number}\n".encode())
            heard = self._before.readline()
            if not heard:
                raise ConnectionError("the rank before this one left the ring")
            number = int(heard)
            total += number
        return total
