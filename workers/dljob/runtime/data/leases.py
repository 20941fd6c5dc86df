"""The leases of one process on a data set or a source: what it asks PrimeMaster, and what it has done since."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from dljob.errors import CheckpointError, UsageError
from dljob.master.state.checkpoint_ids import CheckpointId
from dljob.master.state.shard_table import Runs, is_covered, merge_runs
from dljob.runtime.checkpoint.checkpoints import checkpoint
from dljob.runtime.checkpoint.client import CheckpointClient
from dljob.runtime.process.context import current_worker, is_forked_child

Run = tuple[int, int]
"""Positions [start, end)."""
AT_ONCE = 1000
"""Intervals that a question gives back at most, so that it fits into a message."""
_reading = threading.Lock()
"""Held while an object becomes the reader of its name in this process."""


def check_process(subject: str) -> None:
    """Refuse a data set in a child of the rank.

    Leases belong to the rank: each of its processes would get all of them, and saves of the rank would not include what
    a child has done.

    Raises:
        UsageError: This process is a worker of a DataLoader, or another forked child of the rank.
    """
    loading = sys.modules.get("torch.utils.data")
    if is_forked_child() or (loading is not None and loading.get_worker_info() is not None):
        raise UsageError(
            f"{subject} was used in process {os.getpid()}, a child of the rank, such as a DataLoader worker: "
            "each child would get the same samples",
            hint="iterate it in the rank itself, and hand the indices to the workers: "
            "DataLoader(dataset, sampler=list(shard.indices()), num_workers=2)",
        )


class LeaseClient:
    """Asks PrimeMaster for leases, and reports what is done: with the next question, or with a save.

    Of several objects of one name in a process the one that began last is the reader: PrimeMaster leases to ranks, so
    each would get all leases of the rank. It goes on from what the earlier one has done, which hands out nothing more.
    """

    _kind = "shards"
    """The function that made it, for errors."""

    def __init__(self, client: CheckpointClient, sizes: Mapping[str, Any], name: str, *, wait: bool) -> None:
        self._client = client
        self._sizes = dict(sizes)
        self._name = name
        self._role, self._rank = current_worker().role, current_worker().rank
        self._wait = wait
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        """Held during a call, which may wait for other ranks: not `_lock`, since a save must not wait for that."""
        self._place = client.place()
        self._leased: list[Run] = []
        self._epoch = 0
        """The history of the job to which these leases belong."""
        self._done: list[tuple[int | None, ...]] = []
        """(start, end, step saved last before, and its revision unless that is 0)."""
        self._undoable: dict[tuple[int, int], Runs] = {}
        """What a load may undo, without what is surely kept: positions done since (step, revision) was saved."""
        self._begun = False
        """Whether it has been the reader of its name."""
        self._replaced = False
        """Whether a later object of its name is the reader."""

    def unreported_positions(self) -> dict[str, Any]:
        """Return a request that leases nothing, and reports positions that may not have reached PrimeMaster."""
        return self._question(0)

    def close(self) -> None:
        """Report finished positions; leases that are still held return when this process ends."""
        with suppress(CheckpointError, OSError):
            # Without anything done there is nothing to report: leases return with the process.
            if self._done:
                self._ask_for_leases(0)
        with self._lock:  # the next incarnation in this process gets its own leases
            self._drop()
        self._client.close(wait=False)

    def _attach(self) -> None:
        """Become the reader of the name in this process, unless it is that; saves include it from then on.

        Raises:
            UsageError: A later object of the name is the reader, or this is a child of the rank.
        """
        check_process(self._called)
        with _reading:
            others = [feed for feed in checkpoint.feeds if isinstance(feed, LeaseClient) and feed._reads_for(self)]
            if others and self._begun:
                raise self._replaced_error()
            if self._replaced:  # and the later object is closed
                with self._lock:
                    self._drop()
            for earlier in others:
                self._take_over(earlier)
            self._begun, self._replaced = True, False
            # Also one that user code kept across a new torch group, whose end has removed all of them.
            added = () if self in checkpoint.feeds else (self,)
            if others or added:
                checkpoint.feeds = [*(feed for feed in checkpoint.feeds if feed not in others), *added]

    def _reads_for(self, reader: LeaseClient) -> bool:
        """Whether this object reads what another one is going to read."""
        return self is not reader and self._begun and self._reads == reader._reads

    @property
    def _reads(self) -> tuple[str, str, Mapping[str, Any]]:
        """The world that reads, and what of which data."""
        return self._place.of, self._name, self._sizes

    def _take_over(self, earlier: LeaseClient) -> None:
        """Take what an earlier object of the name has done: it was not handed out for nothing."""
        with earlier._lock:
            done, undoable, is_same_run = earlier._done, earlier._undoable, earlier._place.run_id == self._place.run_id
            # Not all that `_drop` forgets: another thread may be at it, until it sees that the object is replaced.
            earlier._leased, earlier._done, earlier._undoable = [], [], {}
            earlier._replaced = True
        if is_same_run:
            with self._lock:
                self._done = [*done, *self._done]
                for after, runs in undoable.items():
                    self._undoable[after] = merge_runs((*self._undoable.get(after, ()), *runs))

    @property
    def _called(self) -> str:
        """The call that made it, as in `shards('train')`."""
        return f"{self._kind}({self._name!r})"

    def _check_reads(self) -> None:
        """Raise UsageError where a later object of the name is the reader."""
        if self._replaced:
            raise self._replaced_error()

    def _replaced_error(self) -> UsageError:
        return UsageError(
            f"{self._called} was opened again in this process, and the later object has all leases of the rank: this "
            "one would hand out the same samples",
            hint="open a name once, and share the object: each thread that iterates it gets other samples",
        )

    def _drop(self) -> None:
        """Forget all leases; called with the lock."""
        self._leased, self._done, self._undoable = [], [], {}

    def _note_done(self, run: Run) -> None:
        """Note positions as done, to be reported; called with the lock."""
        after = checkpoint.saved
        step, revision = after or (None, 0)
        self._done.append((*run, step, revision) if revision else (*run, step))
        if after is not None:
            self._undoable[after] = merge_runs((*self._undoable.get(after, ()), run))

    def went_back(self, client: CheckpointClient) -> None:
        """Give back all leases, and what was done that is not in the checkpoint which this run has loaded again.

        The question is the client's own: that of a thread which waits here for shards may wait for those in hand.
        """
        with self._lock:
            # What it did in an earlier run is handed out again by the decision of this one.
            if self._place.run_id != client.place().run_id:
                return
            undoable_left = {after: runs for after, runs in self._undoable.items() if self._in(after, client.loaded)}
            undone = merge_runs(
                run for after, runs in self._undoable.items() if after not in undoable_left for run in runs
            )
            self._drop()
            self._undoable = undoable_left
        for first in range(0, max(1, len(undone)), AT_ONCE):
            client.shards({**self._question(0), "undone": undone[first : first + AT_ONCE]})

    def _in(self, after: tuple[int, int], mark: CheckpointId | None) -> bool:
        """Whether a checkpoint has what this process did after it had saved another one, a (step, revision)."""
        return is_covered(CheckpointId(self._place.run_id, *after), mark)

    def _held_count(self) -> int:
        """Return the number of leases in hand, which do not count as wanted."""
        return 0

    def _ask_for_leases(self, want: int) -> dict[str, Any]:
        """Report finished positions and ask for leases; return PrimeMaster's answer."""
        with self._asking:
            # A refusal may only mean that this process has another incarnation since its role was restarted: ask anew
            # as that one, and raise if it has not.
            try:
                question = self._question(want)
                reply = self._client.shards(question)
            except CheckpointError:
                if not self._renewed():
                    raise
                question = self._question(want)
                reply = self._client.shards(question)
            with self._lock:
                # Work that was done during the call is not in PrimeMaster's answer: keep it for the next report.
                self._done = [run for run in self._done if run not in question["done"]]
                if oldest := reply.get("oldest"):  # no load goes back to before it
                    sure = CheckpointId.of(oldest)
                    self._undoable = {n: runs for n, runs in self._undoable.items() if not self._in(n, sure)}
                self._answered(question, reply)
                return reply

    def _answered(self, question: Mapping[str, Any], reply: Mapping[str, Any]) -> None:
        """Take the answer to a question; called with the lock."""
        del question  # of a source, it has what need not be said again
        since = {done[:2] for done in self._done}
        self._epoch = int(reply.get("epoch", 0))
        self._leased = [run for start, end in reply["runs"] if (run := (start, end)) not in since]

    def _renewed(self) -> bool:
        """Return whether this process has another incarnation now: its role was restarted, and it lived on."""
        before, self._place = self._place, self._client.renewed()
        with self._lock:
            if self._place.run_id != before.run_id:
                self._drop()
        return self._place.run_id != before.run_id

    def _question(self, want: int) -> dict[str, Any]:
        place = self._place
        with self._lock:
            # Shards in hand do not count as wanted: a rank leases ahead of those that its threads work on.
            return {
                **self._sizes, "name": self._name, "world": place.of, "role": self._role, "rank": self._rank,
                "run": {"attempt": place.attempt, "number": place.number}, "incarnation": place.incarnation,
                "saves": checkpoint.saved is not None, "done": list(self._done),
                "want": want and self._held_count() + want, "wait": self._wait,
            }  # fmt: skip
