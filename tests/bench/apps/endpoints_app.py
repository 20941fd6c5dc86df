"""A server, and a process with many clients that follow where it is."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

from dljob import RoleGroup, Worker, current_worker, progress, rpc
from dljob.runtime.serving.endpoints import EndpointFeed, Endpoints

WAIT_S = 60.0


class Server(Worker):
    """Serves nothing: it is ready once it runs."""

    @rpc(idempotent=True)
    def pid(self) -> int:
        """The process to kill."""
        progress(int(time.time() * 1000))  # else its ends would look like a crash loop
        return os.getpid()


class Clients(Worker):
    """Each client asks PrimeMaster by itself, as one process each would."""

    def run(self) -> None:
        """Write seconds from each kill until all clients know that the server is gone."""
        count, found = self.config["clients"], list[float]()
        clients = [Endpoints("server", EndpointFeed(current_worker().calls)) for _ in range(count)]
        for _ in range(self.config["rounds"]):
            pid = RoleGroup("server")[0].pid()
            until_all(clients, ready=1)
            time.sleep(0.3)  # all of them ask again
            begin = time.perf_counter()
            os.kill(pid, signal.SIGKILL)
            found.append(until_all(clients, ready=0) - begin)
            while RoleGroup("server")[0].pid() == pid:
                time.sleep(0.05)
        where = Path(self.config["out"])
        (where / "endpoints.new").write_text(json.dumps(found))
        (where / "endpoints.new").rename(where / "endpoints.json")


def until_all(clients: list[Endpoints], *, ready: int) -> float:
    """Wait until each client sees this many servers; returns when the last one did."""
    seen: list[float] = []

    def follow(own: Endpoints) -> None:
        for now in own.changes(timeout=WAIT_S):
            if len(now) == ready:
                seen.append(time.perf_counter())
                return

    threads = [threading.Thread(target=follow, args=(own,)) for own in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == len(clients), f"{len(seen)} of {len(clients)} saw it"
    return max(seen)
