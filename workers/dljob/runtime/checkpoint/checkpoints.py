"""The object `dljob.checkpoint`: what user code calls to save and load."""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Protocol

from dljob.plan.tensorflow import TF_CONFIG, resharded, servers_of
from dljob.runtime.checkpoint.client import BESIDE, CheckpointClient, SaveCount
from dljob.runtime.process.context import current_worker
from dljob.runtime.process.messages import CUT
from dljob.runtime.process.worker_context import SAVES, SAVING
from dljob.runtime.queues.cutting import CutPart, restore_random_states

WAIT_S = 600.0
"""Default limit of `wait`, in seconds."""
SERVERS = "ps"
"""The key, beside a chief's state, of the number of parameter servers that held its variables."""


class Feed(Protocol):
    """A data set that this process reads; the implementation is in `dljob.runtime.data.shards`."""

    def unreported_positions(self) -> dict[str, Any]:
        """Return the positions that were read and that PrimeMaster may not know of; a save sends them along."""
        ...

    def went_back(self, client: CheckpointClient) -> None:
        """Give back what was read since the checkpoint that the client has loaded once more."""
        ...

    def close(self) -> None:
        """Release the data set; called when the rank's user code has ended."""
        ...


class Checkpoints:
    """The functions of `dljob.checkpoint`. All ranks of an Elastic role make one checkpoint.

    An Actor rank makes its own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._client: CheckpointClient | None = None
        self._count = SaveCount()
        self._part = CutPart()
        self._saves, self._saving_s = 0, 0.0
        """How often this process saved, and for how long in all."""
        self.feeds: list[Feed] = []
        """The data sets that this process reads. Each save reports the positions that were done before it."""

    def save(self, step: int, state: Any, *, persist: bool = True) -> None:
        """Copy the state into shared memory; the saver writes it to disk while the rank goes on.

        Args:
            step: The step that `load` will return, from 0 to 2**63 - 1; every rank of an Elastic role saves the same
                steps. The newest save counts once all ranks have made it, also at the same or a lower step than before:
                `load` then returns that step.
            state: Dicts and lists of torch tensors (on any device), arrays, and whatever pickle takes.
            persist: False keeps the copy in memory alone, here and on a peer node, unless the rank or the job ends.

        Two copies are kept. When both still wait for the disk, the call waits for one of them: save less often then, or
        with `persist=False` in between.

        Raises:
            UsageError: The step is out of range, something in the state cannot be pickled, or there is no memory for
                two copies.
            CheckpointError: A later process of this rank has taken its place, or there is no saver.
        """
        if isinstance(step, bool) or not hasattr(step, "__index__"):
            raise TypeError(f"checkpoint.save(step): the step must be an integer, got {type(step).__name__}")
        begun, client, failure = time.monotonic(), self._own_client(), ""
        servers = servers_of(os.environ.get(TF_CONFIG, ""))
        beside: dict[str, Any] = {SERVERS: servers} if servers else {}
        if number := self._part.find_due_cut(client):
            more, failure = self._part.begin(number)
            beside |= more
        if beside:
            state = {BESIDE: beside, "state": state}
        mark = client.save(
            step.__index__(),
            state,
            persist=persist or bool(number),
            shards=[feed.unreported_positions() for feed in self.feeds],
        )
        if number:
            self._part.end(number, mark, failure)
        self._note(client, time.monotonic() - begun)

    def load(self, into: Any = None) -> tuple[int, Any] | None:
        """Return (step, state) of the newest checkpoint that counts, from memory or disk; None when there is none.

        All ranks of an Elastic role get the same step. Tensors are on the CPU. A later load in the same process goes
        back to the newest step that its run has saved, once that is on disk: what its shards and sources gave this
        process since is handed out again.

        Args:
            into: A state of the same shape whose tensors are filled in place, on their own devices. DTensors need it;
                they may be sharded in another way, over another number of ranks, than when they were saved.

        Raises:
            CheckpointError: The chosen checkpoint is gone, fails its checksum, or does not fit `into`.
        """
        client = self._own_client()
        before = client.saved
        step_and_state = client.load(into)
        if before is not None:  # it had loaded or saved before: what was done since is gone
            for feed in self.feeds:
                feed.went_back(client)
        if "random" in client.beside:
            restore_random_states(client.beside["random"])
        saved = client.beside.get(SERVERS, 0)
        if step_and_state and (words := resharded(step_and_state[0], saved, servers_of(os.environ.get(TF_CONFIG, "")))):
            current_worker().log.warning("checkpoint: %s", words)
        return step_and_state

    def latest(self) -> int | None:
        """Return the newest step that is whole on disk; None without one."""
        return self._own_client().latest()

    def wait(self, timeout_s: float = WAIT_S) -> None:
        """Wait until everything that was saved is on disk.

        Raises:
            CheckpointError: It is not on disk after `timeout_s` seconds; the message says why.
        """
        self._own_client().wait(timeout_s)

    def close(self, *, wait: bool = True) -> None:
        """Write unsaved copies to disk and release the memory; called when the rank's user code has ended."""
        with self._lock:
            client, self._client = self._client, None
            feeds, self.feeds = self.feeds, []
        for feed in feeds:
            feed.close()
        if client is not None:
            client.close(wait=wait)

    def _note(self, client: CheckpointClient, spent_s: float) -> None:
        """Note the time that a save took, from which `dljob advise` computes how often to save."""
        self._saves, self._saving_s = self._saves + 1, self._saving_s + spent_s
        client.note(SAVING, round(self._saving_s * 1000))
        client.note(SAVES, self._saves)

    def _own_client(self) -> CheckpointClient:
        with self._lock:
            if self._client is None:
                self._client = new_client(self._count)
            return self._client

    @property
    def saved(self) -> tuple[int, int] | None:
        """(step, revision) of the newest checkpoint of this process's present run: `CheckpointClient.saved`."""
        with self._lock:
            return self._client.saved if self._client is not None else None


def new_client(count: SaveCount | None = None) -> CheckpointClient:
    """Connect this rank to the saver of its node. `count` continues the count of saves of an earlier client."""
    me = current_worker()
    client = CheckpointClient(lambda: current_worker().saver(), me.log.info, count)
    client.note = lambda name, value: current_worker().note(name, value)
    client.called = lambda: current_worker().calls.sizes.get(CUT, 0)
    return client


checkpoint = Checkpoints()
"""The object that `from dljob import checkpoint` gives."""
