"""A package of somebody else's: a SubMaster for ranks that form a ring of sockets, and the ring itself. No torch.

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
"""How long a rank waits for the others."""


class RingMaster(SubMaster):
    """Where the ranks of a role meet: the first line of each says its generation, its rank and where it listens."""

    def setup(self) -> None:
        """Open the meeting place."""
        self._came: dict[int, str] = {}
        self._wanted, self._generation = 0, -1
        self._changed = threading.Condition()
        here = get_node_ip_address()
        self._server = _Server((here, 0), self.meet)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def address(self) -> str:
        """Where it is."""
        host, port = self._server.server_address[:2]
        return f"{host}:{port}"

    def begin(self, generation: int, world_size: int) -> None:
        """Forget who came before."""
        with self._changed:
            self._came, self._wanted, self._generation = {}, world_size, generation
            self._changed.notify_all()
        print(f"ring of {world_size} for {self.role}, generation {generation}", flush=True)

    def meet(self, said: dict[str, Any]) -> dict[str, Any]:
        """One rank came: where all of them listen, in the order of ranks, once all are here."""
        with self._changed:
            generation, came = self._generation, self._came
            came[said["rank"]] = said["at"]
            self._changed.notify_all()
            self._changed.wait_for(lambda: len(came) == self._wanted or self._generation != generation, PATIENCE_S)
            whole = len(came) == self._wanted and self._generation == generation
        return {"generation": generation, "ring": [came[rank] for rank in sorted(came)] if whole else []}


class _Server(socketserver.ThreadingTCPServer):
    """A line in, a line out."""

    daemon_threads = True

    def __init__(self, at: tuple[str, int], answer: Any) -> None:
        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                line = self.rfile.readline()
                if line:
                    self.wfile.write(json.dumps(answer(json.loads(line))).encode() + b"\n")

        super().__init__(at, Handler)


class Ring:
    """A rank's place in the ring: what it says goes to the next one, what it hears comes from the one before."""

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
        """Ask the RingMaster, which is where a rank of any role finds what it meets by."""
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
        """The sum of all ranks' numbers: each goes all the way round."""
        total = number
        for _ in range(self.size - 1):
            self._next.sendall(f"{number}\n".encode())
            heard = self._before.readline()
            if not heard:
                raise ConnectionError("the rank before this one left the ring")
            number = int(heard)
            total += number
        return total
