"""PrimeMaster's answers to the members of collective groups: who is in a group now, whether all have come, who is lost.

Nothing of it is journaled. Each member asks again and again with all that a new master must know: the epoch that it is
of and what it offers; so a master that takes over knows in a moment who has come.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from dljob.master.rosters import Roster, roster
from dljob.runtime.shell import Shell, until

POLL_S = 20.0
"""No question is kept waiting longer; who asked asks again."""
SHARE = 10
"""After a look at the rosters so many times as long as it took passes before the next one: restarts of large roles come
in thousands of events."""
LEAST_S = 0.005


class MusterDesk:
    """One master's."""

    def __init__(self) -> None:
        self._news = asyncio.Condition()
        self._job = ""
        """Names this attempt of the job."""
        self._looker: asyncio.Task[None] | None = None
        self._waiting: dict[str, int] = {}
        self._rosters: dict[str, Roster | None] = {}
        self._there: dict[tuple[str, int, int], dict[tuple[str, int], str]] = {}
        """Who has come to a group, by epoch and round, and what each offers."""

    async def answer(self, shell: Shell, question: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a member.

        Args:
            shell: the master's.
            question: `group`; `me`: [role, rank, incarnation]; `epoch`, and 0 for who is in it now; `round`: how often
                this member has made the group in this epoch; `offer`: what the others need to reach it, if anything;
                `met`: it was told already that all are there.

        Returns:
            {over}: the group will not be any more, why. {members, absent, epoch, ended}: as it is now, another epoch
            than the question's, or somebody is absent. {offer}: all have come; that of the first member. {missing}:
            nothing new; who has not come yet.
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
        epoch, met = int(question["epoch"]), bool(question["met"])

        def seen() -> Roster | None:
            return self._rosters[name]

        if (now := seen()) is None:
            return {"over": f"the job has no group {name}"}
        if (role, rank, incarnation) not in now.members:
            return {"over": f"this process is no member of it: it was {role}/{rank} in incarnation {incarnation}"}
        if not epoch:
            await self._until(lambda: (own := seen()) is None or bool(own.over) or not own.absent)
            return {**_told(seen(), whole=True), "job": self._job}
        there = self._come(name, question)

        def changed() -> bool:
            own = seen()
            return own is None or own.epoch != epoch or bool(own.absent) or bool(own.over)

        def all_here() -> bool:
            return not met and len(there) == len(now.members)

        await self._until(lambda: changed() or all_here())
        if changed():
            return _told(seen(), whole=False)
        if all_here():
            return {"offer": there[now.members[0][:2]]}
        return {"missing": [f"{role}/{rank}" for role, rank, _ in now.members if (role, rank) not in there]}

    def _come(self, name: str, question: Mapping[str, Any]) -> dict[tuple[str, int], str]:
        """Write down that a member has come; what is of older epochs goes."""
        epoch, number = int(question["epoch"]), int(question["round"])
        for key in [key for key in self._there if key[0] == name and key[1:] < (epoch, number - 1)]:
            del self._there[key]
        there = self._there.setdefault((name, epoch, number), {})
        role, rank, _ = question["me"]
        if (role, rank) not in there:
            there[role, rank] = str(question["offer"])
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
