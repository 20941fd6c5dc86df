"""User code whose import does what a fork does not stand: AWKWARD says what."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import prime_user
import ray

from dljob import RoleGroup, Worker, rpc

WHAT = os.environ["AWKWARD"]
KEPT: Any = None
"""What the import leaves behind."""

if WHAT == "threads":
    KEPT = ThreadPoolExecutor(2)
    KEPT.submit(threading.current_thread).result()
elif WHAT == "signals":
    # Handlers are for the main thread alone, and a class runs in another one.
    KEPT = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD, signal.SIGINT})
elif WHAT == "fork":
    if (KEPT := os.fork()) == 0:
        os._exit(7)
    os.waitpid(KEPT, 0)
elif WHAT == "objects":
    KEPT = ray.put({"from": os.getpid()})


class Awkward(Worker):
    """A rank that works, and answers, with what its import has left."""

    def run(self) -> dict[str, int]:
        """Run until told."""
        return prime_user.until_told()

    @rpc
    def works(self) -> bool:
        """Use what the import has made, in this life."""
        if WHAT == "threads":
            return KEPT.submit(os.getpid).result() == os.getpid()
        if WHAT == "objects":
            return ray.get(KEPT) == {"from": os.getpid()}
        return True


class Asks(Worker):
    """Asks all of them."""

    def run(self) -> dict[str, int]:
        """Run until told, once all of them work."""
        failed = [role for role in self.config["asked"] if not RoleGroup(role)[0].works()]
        assert not failed, failed
        return prime_user.until_told()


def leaves() -> None:
    """End the process without a word, in the first life."""
    if prime_user.current_worker().incarnation == 1:
        os._exit(3)
    prime_user.until_told()
