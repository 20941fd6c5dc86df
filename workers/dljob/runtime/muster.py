"""PrimeMaster's answers to the members of collective groups: who is in a group now, whether all have come, who is lost.

Nothing of it is journaled. Each member asks again and again with all that a new master must know: the epoch that it is
of and what it offers; so a master that takes over knows in a moment who has come.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dljob.master.rosters import Roster, roster
from dljob.runtime.shell import Shell, until

POLL_S = 20.0
"""No question is kept waiting longer; who asked asks again."""
SHARE = 10
"""After a look at the rosters so many times as long as it took passes before the next one: restarts of large roles come
in thousands of events."""
LEAST_S = 0.005
BUSY_S = 10.0
"""A member that ended, and was at an operation, says so again within less, or its process is gone."""
GIVEN_UP_S = 10.0
"""A member that asks nothing for so long after an answer waits no more: it asks again at once else."""


@dataclass(slots=True)
class Coming:
    """Who has come to a group in one of its rounds, until all have; it stays as it is then."""

    offers: dict[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])
    """What each needs the others to know: its last word, as one that tries again opens another store."""
    asking: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    """How many questions of each are waiting."""
    heard: dict[tuple[str, int], float] = field(default_factory=dict[tuple[str, int], float])
    """When the last question of each ended."""
    whole: bool = False

    def come(self, who: tuple[str, int], offer: str, wanted: int) -> bool:
        """A member asks, of so many; whether that is news for the others."""
        self.asking[who] = self.asking.get(who, 0) + 1
        if self.whole:
            return False
        self._forget(time.monotonic() - GIVEN_UP_S)
        news = self.offers.get(who) != offer
        self.offers[who] = offer
        self.whole = len(self.offers) == wanted
        return news

    def answered(self, who: tuple[str, int]) -> None:
        """A question of a member has ended."""
        self.asking[who] -= 1
        self.heard[who] = time.monotonic()

    def _forget(self, before: float) -> None:
        """Those that gave up: an address of theirs is that of a store that is closed."""
        for who in [who for who in self.offers if not self.asking[who] and self.heard[who] < before]:
            del self.offers[who]


class MusterDesk:
    """One master's."""

    def __init__(self) -> None:
        self._news = asyncio.Condition()
        self._job = ""
        """Names this attempt of the job."""
        self._looker: asyncio.Task[None] | None = None
        self._waiting: dict[str, int] = {}
        self._rosters: dict[str, Roster | None] = {}
        self._there: dict[tuple[str, int, int], Coming] = {}
        """Who has come to a group, by epoch and round."""
        self._busy: dict[tuple[str, str, int, int], float] = {}
        """When members said last that they are at an operation, by group, role, rank and incarnation."""

    async def answer(self, shell: Shell, question: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a member.

        Args:
            shell: the master's.
            question: `group`; `me`: [role, rank, incarnation]; `epoch`, and 0 for who is in it now; `round`: how often
                this member has made the group in this epoch; `offer`: what the others need to reach it, if anything;
                `met`: it was told already that all are there; `busy`: it is at an operation.

        Returns:
            {over}: the group will not be any more, why. {members, absent, epoch, ended, busy}: as it is now, another
            epoch than the question's, or somebody is absent; `busy` are at an operation all the same. {offer}: all
            have come; that of the first member. {missing}: nothing new; who has not come yet.
        """
        name = str(question["group"])
        self._job = f"{shell.setup.info.uid[:8]}.{shell.setup.info.attempt}"
        self._waiting[name] = self._waiting.get(name, 0) + 1
        if self._looker is None or self._looker.done():
            self._looker = asyncio.create_task(self._look(shell))
        try:
            self._refresh(shell, name)
            return await self._answer(name, question)
        finally:
            self._waiting[name] -= 1

    async def _answer(self, name: str, question: Mapping[str, Any]) -> dict[str, Any]:
        role, rank, incarnation = question["me"]
        epoch = int(question["epoch"])

        def seen() -> Roster | None:
            return self._rosters[name]

        if (now := seen()) is None:
            return {"over": f"the job has no group {name}"}
        if (role, rank, incarnation) not in now.members:
            return {"over": f"this process is no member of it: it was {role}/{rank} in incarnation {incarnation}"}
        if not epoch:
            await self._until(lambda: (own := seen()) is None or bool(own.over) or not own.absent)
            return {**_told(seen(), whole=True), "job": self._job}
        self._at_work((name, role, rank, incarnation), busy=bool(question.get("busy")))
        there = self._come(name, question, len(now.members))
        try:
            return await self._met(seen, there, question)
        finally:
            there.answered((role, rank))

    async def _met(
        self, seen: Callable[[], Roster | None], there: Coming, question: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Wait until all have come, unless that was told, or until the group is another one."""
        epoch, met = int(question["epoch"]), bool(question["met"])

        def changed() -> bool:
            own = seen()
            return own is None or own.epoch != epoch or bool(own.absent) or bool(own.over)

        await self._until(lambda: changed() or (there.whole and not met))
        now = seen()
        if now is None or changed():
            return {**_told(now, whole=False), "busy": self._still(now)}
        if there.whole and not met:
            return {"offer": there.offers[now.members[0][:2]]}
        return {"missing": [f"{role}/{rank}" for role, rank, _ in now.members if (role, rank) not in there.offers]}

    def _at_work(self, who: tuple[str, str, int, int], *, busy: bool) -> None:
        if busy:
            self._busy[who] = time.monotonic()
        else:
            self._busy.pop(who, None)

    def _still(self, now: Roster | None) -> list[list[Any]]:
        """The absent members that are at an operation: a thread may be, though its rank has ended."""
        if now is None:
            return []
        since, gone = time.monotonic() - BUSY_S, dict(now.absent)
        return [
            [role, rank]
            for role, rank, life in now.members
            if (role, rank) in gone and self._busy.get((now.group, role, rank, life), since) > since
        ]

    def _come(self, name: str, question: Mapping[str, Any], wanted: int) -> Coming:
        """Write down that a member has come; what is of older epochs goes."""
        epoch, number = int(question["epoch"]), int(question["round"])
        for key in [key for key in self._there if key[0] == name and key[1:] < (epoch, number - 1)]:
            del self._there[key]
        there = self._there.setdefault((name, epoch, number), Coming())
        role, rank, _ = question["me"]
        if there.come((role, rank), str(question["offer"]), wanted):
            self._tell()
        return there

    # -- looking

    async def _until(self, check: Callable[[], bool]) -> None:
        await until(self._news, check, POLL_S)

    def _tell(self) -> None:
        async def tell() -> None:
            async with self._news:
                self._news.notify_all()

        self._telling = asyncio.create_task(tell())

    def _refresh(self, shell: Shell, name: str) -> bool:
        """Look at a group; whether it is another one than before."""
        now = roster(shell.state, name)
        if shell.final is not None and now is not None:
            now = Roster(name, now.epoch, now.members, now.absent, "the job is over", ended=True)
        other = name not in self._rosters or self._rosters[name] != now
        self._rosters[name] = now
        return other

    async def _look(self, shell: Shell) -> None:
        """Look at the groups that somebody waits for, whenever something happened."""
        seen: object = None
        while any(self._waiting.values()):
            state, final = shell.state, shell.final
            seen = (state.ranks, state.hosts, state.verdict, final)
            began = time.monotonic()
            news = [self._refresh(shell, name) for name, count in self._waiting.items() if count]
            if any(news):
                async with self._news:
                    self._news.notify_all()
            await asyncio.sleep(max(LEAST_S, SHARE * (time.monotonic() - began)))

            def other(before: Any = seen) -> bool:
                now = shell.state
                return any(
                    one is not two
                    for one, two in zip(before, (now.ranks, now.hosts, now.verdict, shell.final), strict=True)
                )

            await until(shell.changed, other, POLL_S)


def _told(own: Roster | None, *, whole: bool) -> dict[str, Any]:
    """A roster in plain data. `whole`: an end is told as one; else as the loss that it is."""
    if own is None or (own.over and whole):
        return {"over": own.over if own else "the job has no such group"}
    return {
        "epoch": own.epoch,
        "members": [list(one) for one in own.members],
        "absent": [[role, rank, why] for (role, rank), why in own.absent],
        "ended": own.ended,
        "why": own.over,
    }
