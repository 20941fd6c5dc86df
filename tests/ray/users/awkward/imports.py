"""User code whose import does what a fork does not stand, or what few classes do: AWKWARD says what."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import prime_user
import ray

from dljob import RoleGroup, Worker, rpc

WHAT = os.environ.get("AWKWARD", "")
"""Empty in Ray's workers of tasks and actors, which import this as well."""
KEPT: Any = None
"""What the import leaves behind."""

if WHAT == "threads":
    KEPT = ThreadPoolExecutor(2)
    KEPT.submit(threading.current_thread).result()
elif WHAT == "signals":
    # Handlers are for the main thread alone, and a class runs in another one.
    try:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except ValueError as error:
        KEPT = error
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD, signal.SIGINT})
elif WHAT == "fork":
    if (KEPT := os.fork()) == 0:
        os._exit(7)
    os.waitpid(KEPT, 0)
elif WHAT == "objects":
    KEPT = ray.put({"from": os.getpid()})
elif WHAT == "exit" and prime_user.current_worker().incarnation == 1:
    os._exit(4)


@ray.remote(num_cpus=0)
def doubled(number: int) -> int:
    """A task of a rank's own."""
    return 2 * number


@ray.remote(num_cpus=0)
class Sum:
    """An actor of a rank's own."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, number: int) -> tuple[int, int]:
        """Return the total, and the process that keeps it."""
        self.total += number
        return self.total, os.getpid()


def uses_ray() -> bool:
    """Use all that a program of Ray's can: objects, a task that takes and gives one, and an actor with a state."""
    kept = ray.put(3)
    six = doubled.remote(kept)
    total = Sum.remote()
    (first, pid), (second, same) = ray.get([total.add.remote(six), total.add.remote(doubled.remote(six))])
    return (ray.get(kept), ray.get(six), first, second) == (3, 6, 6, 18) and os.getpid() != pid == same


class Awkward(Worker):
    """A rank that works, and answers, with what its import has left, until it is told to stop."""

    def run(self) -> None:
        """Say that it runs; say once more when it has ended in order."""
        mine = Path(self.context.job_dir, f"{self.context.role}-{self.context.rank}")
        mine.with_name(f"{mine.name}-{self.context.incarnation}").write_text(str(os.getpid()))
        self.context.stopping.wait()
        mine.with_name(f"{mine.name}-stopped").write_text(self.context.stopping.reason)

    @rpc
    def works(self) -> bool:
        """Use what the import has made, in this life."""
        if WHAT == "threads":
            return KEPT.submit(os.getpid).result() == os.getpid()
        if WHAT == "signals":
            return "only works in main thread" in str(KEPT)
        if WHAT == "objects":
            return ray.get(KEPT) == {"from": os.getpid()}
        return WHAT != "tasks" or uses_ray()


def made() -> type[Awkward]:
    """Make a class that nothing can pickle: in a function, so it goes by value, with a lock."""

    class Locked(Awkward):
        LOCK = threading.Lock()

        @rpc
        def works(self) -> bool:
            """Take the lock, and see that Ray takes no such class."""
            with self.LOCK:
                try:
                    ray.put(type(self))
                except TypeError as error:
                    return "lock" in str(error)
            return False

    return Locked


Locked = made()


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
