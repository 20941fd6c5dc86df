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
        """Write the times of each kill, and of when the last client knew that the server was gone."""
        count, found = self.config["clients"], list[tuple[float, float]]()
        clients = [Endpoints("server", EndpointFeed(current_worker().calls)) for _ in range(count)]
        for _ in range(self.config["rounds"]):
            pid = RoleGroup("server")[0].pid()
            Followers(clients, ready=1).last()
            followers = Followers(clients, ready=0)
            time.sleep(0.5)  # all of them ask again
            begin = time.time()
            os.kill(pid, signal.SIGKILL)
            found.append((begin, followers.last()))
            while RoleGroup("server")[0].pid() == pid:
                time.sleep(0.05)
        where = Path(self.config["out"])
        (where / "endpoints.new").write_text(json.dumps(found))
        (where / "endpoints.new").rename(where / "endpoints.json")


class Followers:
    """Clients that wait until they see a number of servers, each in a thread of its own."""

    def __init__(self, clients: list[Endpoints], *, ready: int) -> None:
        self._ready = ready
        self._seen: list[float] = []
        self._threads = [threading.Thread(target=self._follow, args=(own,)) for own in clients]
        for thread in self._threads:
            thread.start()

    def _follow(self, own: Endpoints) -> None:
        for now in own.changes(timeout=WAIT_S):
            if len(now) == self._ready:
                self._seen.append(time.time())
                return

    def last(self) -> float:
        """Wait for all; returns when the last one saw it."""
        for thread in self._threads:
            thread.join()
        assert len(self._seen) == len(self._threads), f"{len(self._seen)} of {len(self._threads)} saw it"
        return max(self._seen)
