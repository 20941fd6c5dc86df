"""`current_worker().job`: the job's status for user code, and its orders to the job."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from dljob.errors import NotFoundError, UsageError
from dljob.telemetry import reasons

ANSWER_S = 60.0
"""Seconds for PrimeMaster to answer, its own restart included."""


WHY = 500
"""Characters of an accusation that are journaled."""


class MasterLine(Protocol):
    """The transport of requests to PrimeMaster."""

    def ask(self, method: str, args: Sequence[Any], timeout_s: float) -> Future[Any]:
        """Ask PrimeMaster. The future returns its answer, or raises UnreachableError."""
        ...


class JobControl:
    """The job, as one of its ranks sees it. An order is in the job's journal when its method returns."""

    def __init__(self, calls: MasterLine, me: str, peers: Mapping[str, int]) -> None:
        self._calls = calls
        self._me = me
        self._peers = peers

    def status(self) -> dict[str, Any]:
        """Return the present status: phase, roles, ranks, restarts, progress; the same as `JobHandle.status`.

        Raises:
            UnreachableError: PrimeMaster does not answer within a minute.
        """
        return self._ask("status").result()

    def restart(self, *, role: str | None = None, rank: int | None = None) -> None:
        """Restart a role, one rank of it, or, without either, the whole job, the caller included.

        Raises:
            NotFoundError: There is no such role or rank.
            UnreachableError: PrimeMaster does not answer within a minute.
        """
        self._order("restart", self._target(role, rank))

    def scale(self, role: str, ranks: int) -> None:
        """Give a role with minReplicas or maxReplicas another number of ranks, as far as there is room.

        `len(RoleGroup(role))` follows as ranks come and go.

        Raises:
            UsageError: PrimeMaster refused: there is no such role, or it cannot have this size.
            UnreachableError: PrimeMaster does not answer within a minute.
        """
        # The answer to an order carries no refusal; PrimeMaster notes it in the timeline, after the last note of now.
        before = max((int(note["seq"]) for note in self._ask("notes").result()), default=0)
        self._order("scale", f"{role}={ranks}")
        for note in self._ask("notes", before).result():
            if (note["reason"], note["target"]) == (reasons.COMMAND_REFUSED, role):
                raise UsageError(str(note["message"]))

    def checkpoint(self) -> int | None:
        """Begin a consistent cut of the job, and return its number, or that of the one under way.

        Each rank that uses `dljob.checkpoint` takes part with its next `checkpoint.save`, in whichever thread calls it.
        The timeline has `CutCommitted` once all of it is on disk. None: a rank of the cut is starting, and there is
        none now; the timeline has `CutGivenUp` with the reason.

        Raises:
            UnreachableError: PrimeMaster does not answer within a minute.
        """
        reply = self._ask("cut", self._me).result()
        return None if reply["why"] else int(reply["number"])

    def stop(self) -> None:
        """End the job, the caller included, as `JobHandle.stop` does; what it saved stays in its folder.

        Raises:
            UnreachableError: PrimeMaster does not answer within a minute.
        """
        self._order("stop", "job")

    def suspect(self, caller: tuple[str, int, int], reason: str, rank: int | None = None) -> None:
        """Accuse a rank of the caller's role; `caller` is (role, rank, incarnation). See `WorkerContext.suspect`."""
        role, me, incarnation = caller
        accused = me if rank is None else rank
        if accused not in range(self._peers[role]):
            raise NotFoundError(f"suspect(rank={rank!r}): no such rank", hint=f"{role} has {self._peers[role]}")
        # Of another rank no incarnation is known here: its present one is meant.
        self._ask("suspect", role, accused, incarnation if accused == me else 0, str(reason)[:WHY], self._me).result()

    def _target(self, role: str | None, rank: int | None) -> str:
        role_sizes = ", ".join(f"{name} ({size})" for name, size in self._peers.items())
        if role is None and rank is None:
            return "job"
        if role is None or role not in self._peers:
            raise NotFoundError(f"job.restart(role={role!r}): there is no such role", hint=f"roles: {role_sizes}")
        if rank is not None and rank not in range(self._peers[role]):
            raise NotFoundError(f"job.restart(role={role!r}, rank={rank!r}): no such rank", hint=f"roles: {role_sizes}")
        return role if rank is None else f"{role}/{rank}"

    def _order(self, kind: str, target: str) -> None:
        # The id makes a repeated request one order: an answer may be lost with PrimeMaster.
        self._ask("command", uuid.uuid4().hex, kind, target, self._me).result()

    def _ask(self, method: str, *args: Any) -> Future[Any]:
        return self._calls.ask(method, args, ANSWER_S)
