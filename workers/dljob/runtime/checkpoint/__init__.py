"""`checkpoint.save(step, state)` and `checkpoint.load()`: what a rank can lose is the work since its last save.

Saving copies the state into shared memory and returns; the node's saver, a process of its own, brings the copy to disk.
A rank that is killed leaves its copy behind: it is persisted all the same, and handed to the rank's next process. What
is not on disk has a copy on another node as well, if there is one with room.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol

from dljob.runtime.checkpoint.client import Client
from dljob.runtime.context import current_worker

WAIT_S = 600.0


class Feed(Protocol):
    """A data set that this process reads (`dljob.runtime.shards`)."""

    def told(self) -> dict[str, Any]:
        """What of it was done and PrimeMaster may not have heard."""
        ...

    def close(self) -> None:
        """The rank's user code has ended."""
        ...


class Checkpoints:
    """The functions of `dljob.checkpoint`. All ranks of an Elastic role make one checkpoint; an Actor rank its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._client: Client | None = None
        self.feeds: list[Feed] = []
        """The data sets that this process reads: what it did of them before a save is told with it."""

    def save(self, step: int, state: Any, *, persist: bool = True) -> None:
        """Copy the state into shared memory; it goes to disk while the rank goes on.

        Args:
            step: What `load` will give back; every rank of an Elastic role saves the same steps.
            state: Dicts and lists of torch tensors (on any device), arrays, and whatever pickle takes.
            persist: False keeps it in memory alone, here and on a peer node, unless the rank or the job ends.

        Two copies are kept. When both still wait for the disk the call waits for one: save less often then, or with
        `persist=False` in between.

        Raises:
            UsageError: when something in the state cannot be pickled, or memory for two copies is not there.
            CheckpointError: when a later process of this rank has taken its place, or there is no saver.
        """
        if isinstance(step, bool) or not hasattr(step, "__index__"):
            raise TypeError(f"checkpoint.save(step): the step must be an integer, got {type(step).__name__}")
        mine = self._mine()
        mine.save(step.__index__(), state, persist=persist, shards=[feed.told() for feed in self.feeds])

    def load(self, into: Any = None) -> tuple[int, Any] | None:
        """(step, state) of the newest checkpoint that counts, from memory or disk; None when there is none.

        All ranks of an Elastic role get the same step. Tensors come on the CPU.

        Args:
            into: A state of the same shape whose tensors are filled in place, on their own devices. DTensors need it,
                and may be sharded in another way, over another number of ranks, than when they were saved.

        Raises:
            CheckpointError: when what was decided upon is gone, or does not fit `into`.
        """
        return self._mine().load(into)

    def latest(self) -> int | None:
        """The newest step that is whole on disk; None without one."""
        return self._mine().latest()

    def wait(self, timeout_s: float = WAIT_S) -> None:
        """Wait until what was saved is on disk. Raises CheckpointError when it is not, with the reason."""
        self._mine().wait(timeout_s)

    def close(self, *, wait: bool = True) -> None:
        """The rank's user code has ended: bring to disk what is to be there, and give the memory back."""
        with self._lock:
            client, self._client = self._client, None
            feeds, self.feeds = self.feeds, []
        for feed in feeds:
            feed.close()
        if client is not None:
            client.close(wait=wait)

    def _mine(self) -> Client:
        with self._lock:
            if self._client is None:
                self._client = new_client()
            return self._client

    @property
    def saved(self) -> int | None:
        """The last step that this process saved in its present life; -1: it has only loaded; None: neither."""
        with self._lock:
            return self._client.saved if self._client is not None else None


def new_client() -> Client:
    """A line of this rank to the saver of its node."""
    me = current_worker()
    return Client(lambda: current_worker().saver(), me.log.info)


checkpoint = Checkpoints()
"""What `from dljob import checkpoint` gives."""
