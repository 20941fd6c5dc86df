"""Rendezvous of collective groups: reports a group's members, whether all have joined, and which are lost.

None of this is journaled. Each member repeats its question with all that a new master must know (the epoch of the group
that it is in, and its offer), so a master that takes over learns in a moment who has joined.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dljob.master.start.rosters import Roster, roster
from dljob.runtime.controller.master_loop import MasterLoop, until
from dljob.tasks import TaskOwner

POLL_S = 20.0
"""Longest wait (s) of a question; the member then repeats it."""
SHARE = 10
"""Pause between two evaluations of the rosters, as a multiple of the time that the last one took: restarts of large
roles come in thousands of events, and each would cost an evaluation."""
LEAST_S = 0.005
BUSY_S = 10.0
"""Seconds for which a member's report of being inside an operation is valid: its thread repeats it sooner, unless its
process is gone."""
GIVEN_UP_S = 10.0
"""Seconds after an answer without a new question, after which a member counts as gone: one that waits asks at once."""


@dataclass(slots=True)
class RendezvousRound:
    """Members that have joined one round of a group. Once all have (`complete`) it changes no more.

    It must not change, because members that ask later have to receive the same first member's offer as the others.
    """

    offers: dict[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])
    """The latest offer of each member, its store's address: a member that tries again opens another store."""
    asking: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    """Number of open questions of each member."""
    answered_at: dict[tuple[str, int], float] = field(default_factory=dict[tuple[str, int], float])
    """When the last question of each member was answered (monotonic seconds)."""
    complete: bool = False

    def join(self, member: tuple[str, int], offer: str, size: int) -> bool:
        """Note that a member of a group of `size` joins; return whether that is news for the others."""
        self.asking[member] = self.asking.get(member, 0) + 1
        # An offer that comes now is ignored: others may have been told the earlier one already.
        if self.complete:
            return False
        self._forget(time.monotonic() - GIVEN_UP_S)
        news = self.offers.get(member) != offer
        self.offers[member] = offer
        self.complete = len(self.offers) == size
        return news

    def answered(self, member: tuple[str, int]) -> None:
        """Note that a question of a member has been answered, or was given up."""
        self.asking[member] -= 1
        self.answered_at[member] = time.monotonic()

    def _forget(self, before: float) -> None:
        """Drop the members that gave up before a time: their offers are addresses of stores that are closed."""
        for member in [
            member for member in self.offers if not self.asking[member] and self.answered_at[member] < before
        ]:
            del self.offers[member]


class GroupRendezvous:
    """The rendezvous of all groups of one master."""

    def __init__(self, owner: TaskOwner) -> None:
        self._owner = owner
        self._changed = asyncio.Condition()
        self._job = ""
        """Name of this attempt of the job: members use it to tell one attempt's group from another's."""
        self._watcher: asyncio.Task[None] | None = None
        self._waiting: dict[str, int] = {}
        self._rosters: dict[str, Roster | None] = {}
        self._rounds: dict[tuple[str, int, int], RendezvousRound] = {}
        """Joined members, by group, epoch and round."""
        self._busy: dict[tuple[str, str, int, int], float] = {}
        """When a member last said that it is inside an operation, by group, role, rank and incarnation."""

    async def answer(self, shell: MasterLoop, question: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a member, at the latest after `POLL_S`.

        Args:
            shell: the master's loop.
            question: `group`; `me`: [role, rank, incarnation]; `epoch`, 0 to ask for the present roster; `round`: how
                often this member has formed the group in this epoch; `offer`: the address at which the others reach
                it, if any; `met`: whether it has already been told that all have joined; `busy`: whether it is inside
                an operation.

        Returns:
            {over}: why the group will never form again. {members, absent, epoch, ended, busy}: the present roster,
            where its epoch is another one or a member is absent; `busy` lists absent members whose threads are still
            inside an operation. {offer}: all have joined, with the offer of the first member. {missing}: nothing new,
            and the members that have not joined yet.
        """
        name = str(question["group"])
        self._job = f"{shell.setup.info.uid[:8]}.{shell.setup.info.attempt}"
        self._waiting[name] = self._waiting.get(name, 0) + 1
        if self._watcher is None or self._watcher.done():
            self._watcher = self._owner.repeat("group rendezvous", lambda: self._watch_rosters(shell))
        try:
            self._refresh(shell, name)
            return await self._answer(name, question)
        finally:
            self._waiting[name] -= 1

    async def _answer(self, name: str, question: Mapping[str, Any]) -> dict[str, Any]:
        role, rank, incarnation = question["me"]
        epoch = int(question["epoch"])

        def current_roster() -> Roster | None:
            return self._rosters[name]

        if (now := current_roster()) is None:
            return {"over": f"the job has no group {name}"}
        # A thread of an earlier incarnation may live on in a host: it must not join in place of its successor.
        if (role, rank, incarnation) not in now.members:
            return {"over": f"this process is no member of it: it was {role}/{rank} in incarnation {incarnation}"}
        # A member without an epoch asks who is in the group: only a roster that can form is worth an answer.
        if not epoch:
            await self._until(lambda: (current := current_roster()) is None or bool(current.over) or not current.absent)
            return {**_roster_data(current_roster(), refuse_ended=True), "job": self._job}
        # By incarnation: the word of an old process must not make its successor look busy.
        self._note_busy((name, role, rank, incarnation), busy=bool(question.get("busy")))
        group_round = self._join(name, question, len(now.members))
        try:
            return await self._wait_for_members(current_roster, group_round, question)
        finally:
            group_round.answered((role, rank))

    async def _wait_for_members(
        self, current_roster: Callable[[], Roster | None], group_round: RendezvousRound, question: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Wait until all members have joined (unless `met`: this member knows), or until the roster changes."""
        epoch, met = int(question["epoch"]), bool(question["met"])

        def changed() -> bool:
            current = current_roster()
            return current is None or current.epoch != epoch or bool(current.absent) or bool(current.over)

        await self._until(lambda: changed() or (group_round.complete and not met))
        now = current_roster()
        # A change comes first, also where all have joined: the group that met is not the present one.
        if now is None or changed():
            return {**_roster_data(now, refuse_ended=False), "busy": self._busy_members(now)}
        if group_round.complete and not met:
            return {"offer": group_round.offers[now.members[0][:2]]}
        return {
            "missing": [f"{role}/{rank}" for role, rank, _ in now.members if (role, rank) not in group_round.offers]
        }

    def _note_busy(self, member: tuple[str, str, int, int], *, busy: bool) -> None:
        if busy:
            self._busy[member] = time.monotonic()
        else:
            self._busy.pop(member, None)

    def _busy_members(self, now: Roster | None) -> list[list[Any]]:
        """Return the absent members that are inside an operation: a thread may be, though its rank has ended."""
        if now is None:
            return []
        # A thread that was killed inside an operation cannot take its word back, so the word expires.
        since, absent = time.monotonic() - BUSY_S, dict(now.absent)
        return [
            [role, rank]
            for role, rank, incarnation in now.members
            if (role, rank) in absent and self._busy.get((now.group, role, rank, incarnation), since) > since
        ]

    def _join(self, name: str, question: Mapping[str, Any], size: int) -> RendezvousRound:
        """Note that a member has joined its round, and drop the rounds of older epochs."""
        epoch, number = int(question["epoch"]), int(question["round"])
        # The round before stays: a member that was slow to hear its answer may still ask for it.
        for key in [key for key in self._rounds if key[0] == name and key[1:] < (epoch, number - 1)]:
            del self._rounds[key]
        group_round = self._rounds.setdefault((name, epoch, number), RendezvousRound())
        role, rank, _ = question["me"]
        if group_round.join((role, rank), str(question["offer"]), size):
            self._tell()
        return group_round

    # -- looking

    async def _until(self, check: Callable[[], bool]) -> None:
        await until(self._changed, check, POLL_S)

    def _tell(self) -> None:
        async def tell() -> None:
            async with self._changed:
                self._changed.notify_all()

        self._owner.repeat("news of a group rendezvous", tell)

    def _refresh(self, shell: MasterLoop, name: str) -> bool:
        """Evaluate the roster of a group; return whether it has changed."""
        now = roster(shell.state, name)
        if shell.final is not None and now is not None:
            # The loop's final status is not part of the state, yet members must not wait for ranks that never come.
            now = Roster(name, now.epoch, now.members, now.absent, "the job is over", ended=True)
        is_changed = name not in self._rosters or self._rosters[name] != now
        self._rosters[name] = now
        return is_changed

    async def _watch_rosters(self, shell: MasterLoop) -> None:
        """Evaluate the groups that members ask for, whenever the state changes; end when no question is open."""
        parts: object = None
        while any(self._waiting.values()):
            state, final = shell.state, shell.final
            parts = (state.ranks, state.hosts, state.verdict, final)
            began = time.monotonic()
            news = [self._refresh(shell, name) for name, count in self._waiting.items() if count]
            if any(news):
                async with self._changed:
                    self._changed.notify_all()
            await asyncio.sleep(max(LEAST_S, SHARE * (time.monotonic() - began)))

            # Parts of the state are immutable and shared between versions, so identity tells whether one changed.

            def has_changed(before: Any = parts) -> bool:
                now = shell.state
                return any(
                    old is not new
                    for old, new in zip(before, (now.ranks, now.hosts, now.verdict, shell.final), strict=True)
                )

            await until(shell.changed, has_changed, POLL_S)


def _roster_data(group_roster: Roster | None, *, refuse_ended: bool) -> dict[str, Any]:
    """Return a roster as plain data. With `refuse_ended` an ended group becomes {over}, else a loss of members."""
    if group_roster is None or (group_roster.over and refuse_ended):
        return {"over": group_roster.over if group_roster else "the job has no such group"}
    return {
        "epoch": group_roster.epoch,
        "members": [list(member) for member in group_roster.members],
        "absent": [[role, rank, reason] for (role, rank), reason in group_roster.absent],
        "ended": group_roster.ended,
        "why": group_roster.over,
    }
