"""A rank's part in a consistent cut: which save belongs to it, the markers, and what is saved beside the state.

The markers go out before the state is copied, from the thread that saves: what this thread got from queues is in the
state, and what it asks for later is not.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from dljob.errors import UnreachableError
from dljob.master.state.checkpoint_ids import CheckpointId
from dljob.runtime.process.context import current_worker
from dljob.runtime.process.worker_context import WorkerContext, held_versions
from dljob.runtime.queues import data_queue
from dljob.runtime.queues.session import cut_numbers

ANSWER_S = 30.0
"""Seconds for a queue, or PrimeMaster, to answer a rank that saves."""


class SavePlace(Protocol):
    """The part of a rank's location that a cut depends on."""

    @property
    def world(self) -> int:
        """The number of ranks that save together."""
        ...

    @property
    def of(self) -> str:
        """The name of their world."""
        ...


class SavingClient(Protocol):
    """The part of a rank's checkpoint client that a cut depends on."""

    @property
    def called(self) -> Callable[[], int]:
        """Returns the cut for which the rank is to save; 0: for none."""
        ...

    def place(self) -> SavePlace:
        """Return where the rank saves."""
        ...

    def next_order(self) -> int:
        """Return how many saves this run will have made with the next one."""
        ...


class CutPart:
    """The part of this process in cuts."""

    def __init__(self) -> None:
        self._at: tuple[int, int] = (0, 0)

    def find_due_cut(self, client: SavingClient) -> int:
        """Return the cut to which the next save belongs; 0: to none."""
        number = client.called()
        if number <= cut_numbers.last_taken:
            return 0
        me = current_worker()
        place = client.place()
        if place.world == 1:
            return number
        # Ranks of a world make the same saves, in step: the first that asks lets all of them take its next save.
        if self._at[0] != number:
            order = client.next_order()
            try:
                reply = me.calls.ask("cut_at", [number, place.of, order], ANSWER_S).result()
            except UnreachableError:
                return 0
            self._at = number, int(reply)
        return number if client.next_order() >= self._at[1] else 0

    def begin(self, number: int) -> tuple[dict[str, Any], str]:
        """Send the markers; return what belongs beside the state, and why it has no part in the cut."""
        # For all threads at once: what one of them does from here on is after the cut, in all queues.
        cut_numbers.last_taken = number
        problem = data_queue.mark(number, ANSWER_S)
        return {"random": random_states(), "weights": dict(held_versions)}, problem

    def end(self, number: int, mark: CheckpointId | None, problem: str) -> None:
        """Report the part to PrimeMaster, without waiting for it."""
        me = current_worker()
        report = {"number": number, "role": me.role, "rank": me.rank, "incarnation": me.incarnation, "why": problem}
        if problem:
            me.log.info("checkpoint: no part in cut %d: %s", number, problem)
        future = me.calls.ask("cut_taken", [{**report, "mark": mark and mark.json()}], ANSWER_S)
        future.add_done_callback(lambda done: _log_failed_report(me, number, done.exception()))


def _log_failed_report(me: WorkerContext, number: int, error: BaseException | None) -> None:
    if error is not None:
        me.log.warning("checkpoint: PrimeMaster does not know of the part in cut %d: %s", number, error)


def random_states() -> dict[str, Any]:
    """Return the states of the random number generators of this process: of Python, and of what it has imported."""
    states: dict[str, Any] = {"python": random.getstate()}
    if (numpy := sys.modules.get("numpy")) is not None:
        states["numpy"] = numpy.random.get_state()
    if (torch := sys.modules.get("torch")) is not None:
        states["torch"] = torch.get_rng_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def restore_random_states(states: Mapping[str, Any]) -> None:
    """Set the random number generators back; those of modules that this process has not imported are left."""
    random.setstate(states["python"])
    if "numpy" in states and (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.set_state(states["numpy"])
    if "torch" in states and (torch := sys.modules.get("torch")) is not None:
        torch.set_rng_state(states["torch"])
        if "cuda" in states and torch.cuda.device_count() == len(states["cuda"]):
            torch.cuda.set_rng_state_all(states["cuda"])
