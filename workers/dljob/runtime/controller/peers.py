"""Peer look-ups: the core's view of ranks as messages to hosts, and calls parked until a rank is ready again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from dljob.master.state.staleness import no_requests_reason
from dljob.master.state.state import JobState
from dljob.master.status import numbers
from dljob.master.status import peer as peer_view
from dljob.runtime.process.messages import Peer, RoleTable
from dljob.tasks import TaskOwner


def peer(state: JobState, role: str, rank: int) -> Peer:
    """Return one rank as a Peer; one that the job does not have is reported as gone for good."""
    if (role, rank) not in state.ranks:
        roles = ", ".join(f"{name} ({facts.plan.replicas})" for name, facts in state.job.roles.items())
        reason = f"there is no such rank; roles and their sizes: {roles}"
        return Peer(
            role, rank, 0, "", ready=False, gone_reason=reason, size=_size(state, role), numbers=_numbers(state, role)
        )
    view = peer_view(state, role, rank)
    sizes = _size(state, role), _numbers(state, role)
    job_ends = state.verdict is not None
    return Peer(role, rank, view.incarnation, view.actor, view.ready, view.gone_reason, *sizes, job_ends=job_ends)


def _numbers(state: JobState, role: str) -> tuple[int, ...]:
    return numbers(state, role) if role in state.sizes else ()


def _size(state: JobState, role: str) -> int:
    facts = state.job.roles.get(role)
    sizing = state.sizes.get(role)
    return sizing.staying if sizing else facts.plan.replicas if facts else 0


def role_table(state: JobState, role: str) -> RoleTable:
    """Return all ranks of a role; an empty table when there is no such role."""
    facts = state.job.roles.get(role)
    ranks = facts.ranks if facts else range(0)
    return RoleTable(role, state.version, tuple(peer(state, role, rank) for rank in ranks))


def callees_of(state: JobState, role: str) -> list[tuple[int, int, bool, bool]]:
    """Return rank, incarnation, whether it gets calls, whether it is gone for good, of all ranks of a role."""
    # Plain values: ranks that are scripts ask for it through their hosts.
    peers = role_table(state, role).peers
    return [
        (
            callee.rank,
            callee.incarnation,
            callee.ready and bool(callee.actor) and not no_requests_reason(state, (role, callee.rank)),
            bool(callee.gone_reason),
        )
        for callee in peers
    ]


class ParkedCalls:
    """Calls that wait for ranks to be ready, and callees that wait for the end of their callers.

    One task evaluates each change, and only for the ranks that changed. Were each call to wait by itself, any change
    would wake all of them, and ten thousand may be parked.
    """

    def __init__(self, tasks: TaskOwner) -> None:
        self._tasks = tasks
        self._parked: dict[tuple[str, int], list[tuple[Callable[[Peer], bool], asyncio.Future[Any]]]] = {}
        """Rank -> whether a state of it answers a call that is parked for it, and what that call awaits."""
        self._questions: dict[str, asyncio.Future[Any]] = {}
        """Callee's actor -> its question about its callers: a later one of the same actor answers it."""
        self._looking: asyncio.Task[None] | None = None

    async def ready(
        self, state: Callable[[], JobState], changed: asyncio.Condition, key: tuple[str, int], after: int
    ) -> Peer:
        """Return a rank once it is ready in an incarnation greater than `after`, or once it will never be again."""
        callee = peer(state(), *key)
        if _is_reachable(after, callee):
            return callee
        answer: asyncio.Future[Peer] = asyncio.get_running_loop().create_future()
        self._park(key, partial(_is_reachable, after), answer, state, changed)
        return await answer

    async def await_end(
        self,
        state: Callable[[], JobState],
        changed: asyncio.Condition,
        asker: str,
        callers: Sequence[tuple[str, int, int]],
        within_s: float,
    ) -> list[tuple[str, int, int]]:
        """Return which incarnations (role, rank, incarnation) have ended, once one has, or after `within_s` seconds.

        The next question of the same asker answers this one.
        """
        earlier = self._questions.get(asker)
        if earlier is not None and not earlier.done():
            earlier.set_result(None)

        def list_ended() -> list[tuple[str, int, int]]:
            now = state()
            return [
                (role, rank, incarnation)
                for role, rank, incarnation in callers
                if _has_ended(incarnation, peer(now, role, rank))
            ]

        if ended_callers := list_ended():
            return ended_callers
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._questions[asker] = answer
        for role, rank, incarnation in callers:
            self._park((role, rank), partial(_has_ended, incarnation), answer, state, changed)
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(answer, within_s)
        finally:
            if self._questions.get(asker) is answer:
                del self._questions[asker]
            for role, rank, _ in callers:
                parked = self._parked.pop((role, rank), [])
                if waiting := [call for call in parked if not call[1].done()]:
                    self._parked[role, rank] = waiting
        return list_ended()

    def _park(
        self,
        key: tuple[str, int],
        answers: Callable[[Peer], bool],
        answer: asyncio.Future[Any],
        state: Callable[[], JobState],
        changed: asyncio.Condition,
    ) -> None:
        self._parked.setdefault(key, []).append((answers, answer))
        if self._looking is None or self._looking.done():
            self._looking = self._tasks.start("parked calls", self._search(state, changed), self._failed)

    async def _search(self, state: Callable[[], JobState], changed: asyncio.Condition) -> None:
        last_states = dict[tuple[str, int], object]()
        verdict: object = None
        # The condition's lock is held except in `wait`, so no change is missed between a look and the wait.
        async with changed:
            while self._parked:
                now = state()
                for key in list(self._parked):
                    rank_state = now.ranks.get(key)
                    # A rank's state is replaced when it changes, so identity tells. A verdict makes all ranks go.
                    if rank_state is None or rank_state is not last_states.get(key) or now.verdict is not verdict:
                        last_states[key] = rank_state
                        self._wake(key, peer(now, *key))
                verdict = now.verdict
                if self._parked:
                    await changed.wait()

    def _wake(self, key: tuple[str, int], now: Peer) -> None:
        """Answer the calls parked for one rank; drop those whose caller has gone."""
        waiting = list[tuple[Callable[[Peer], bool], asyncio.Future[Any]]]()
        for answers, call in self._parked.pop(key):
            if call.done():
                continue
            if answers(now):
                call.set_result(now)
            else:
                waiting.append((answers, call))
        if waiting:
            self._parked[key] = waiting

    def _failed(self, error: Exception) -> None:
        parked, self._parked = self._parked, {}
        for _, answer in (call for many in parked.values() for call in many):
            if not answer.done():
                answer.set_exception(error)


def _is_reachable(after: int, callee: Peer) -> bool:
    return bool(callee.gone_reason) or (callee.ready and callee.incarnation > after)


def _has_ended(incarnation: int, caller: Peer) -> bool:
    return caller.incarnation > incarnation or not caller.actor
