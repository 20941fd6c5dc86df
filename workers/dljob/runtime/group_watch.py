"""Looks whether placement groups or actors of ranks that are Ray drivers wait, and says why within ten seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from dljob.master import events as ev
from dljob.master.asked import explain
from dljob.master.state import JobState
from dljob.master.views import AskedGroup
from dljob.runtime.backend import Backend
from dljob.runtime.setup import Setup

LOOK_S = 2.0
WAITS_S = 4.0
"""A group that waits for less is on its way: nothing is said of it."""
AGAIN_S = 30.0
"""As long as a group waits, its words are made anew so often."""

GONE = "it is placed, or nobody asks for it any more"


class GroupWatch:
    """Watches one job's groups; without a role that reserves Quota there is nothing to watch."""

    def __init__(
        self,
        setup: Setup,
        backend: Backend,
        offer: Callable[..., Awaitable[None]],
        state: Callable[[], JobState],
    ) -> None:
        self._owner = f"{setup.info.uid}/"
        self._wanted = any(role.quota is not None for role in setup.plan.roles.values())
        self._backend = backend
        self._offer = offer
        self._state = state
        self._since: dict[str, float] = {}
        """Group -> when it was first seen to wait, by the loop's time."""
        self._told: dict[str, float] = {}
        """Group -> when its words were made."""

    async def run(self) -> None:
        """Look until the job is over."""
        loop = asyncio.get_running_loop()
        while self._wanted:
            await asyncio.sleep(LOOK_S)
            with suppress(Exception):  # Ray may be away for a moment: the next look is soon
                await self.turn(loop.time())

    async def turn(self, now: float) -> None:
        """One look; `now` is the loop's time in seconds."""
        state = self._state()
        if state.verdict is not None:
            return
        waiting = {group.id: group for group in await self._backend.asked_groups(self._owner)}
        self._since = {id_: self._since.get(id_, now) for id_ in waiting}
        self._told = {id_: at for id_, at in self._told.items() if id_ in waiting}
        due = [group for id_, group in waiting.items() if self._due(id_, now)]
        events = [
            ev.GroupAsked(id_, owner, GONE, waits=False)
            for id_, (owner, _) in sorted(state.groups.items())
            if id_ not in waiting
        ]
        events += await self._words(due, now)
        if events:
            await self._offer(*events)

    def _due(self, group: str, now: float) -> bool:
        told = self._told.get(group)
        return now - self._since[group] >= WAITS_S and (told is None or now - told >= AGAIN_S)

    async def _words(self, groups: list[AskedGroup], now: float) -> list[ev.GroupAsked]:
        if not groups:
            return []
        nodes = await self._backend.nodes()
        self._told.update({group.id: now for group in groups})
        return [ev.GroupAsked(group.id, group.owner, explain(group, nodes)) for group in groups]
