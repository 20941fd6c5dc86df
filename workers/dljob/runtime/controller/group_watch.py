"""Watch over placement groups and actors that Ray drivers in ranks ask for: reports within 10 s why one waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from dljob.master.start.driver_groups import explain
from dljob.master.state import events as ev
from dljob.master.state.state import JobState
from dljob.master.state.views import AskedGroup
from dljob.runtime.backend.interface import Backend
from dljob.runtime.journal.setup import Setup
from dljob.tasks import ErrorLog

log = logging.getLogger(__package__)

LOOK_S = 2.0
WAITS_S = 4.0
"""Seconds that a group must wait before it is reported: most are placed sooner."""
AGAIN_S = 30.0
"""Interval (s) at which the explanation of a waiting group is renewed, as what it lacks may change."""

GONE = "it is placed, or nobody asks for it any more"


class GroupWatch:
    """Watches one job's groups; it does nothing in a job without a role that has a `quota`."""

    def __init__(
        self,
        setup: Setup,
        backend: Backend,
        offer: Callable[..., Awaitable[None]],
        state: Callable[[], JobState],
    ) -> None:
        self._owner = f"{setup.info.uid}/"
        self._has_quota = any(role.quota is not None for role in setup.plan.roles.values())
        self._backend = backend
        self._offer = offer
        self._state = state
        self._since: dict[str, float] = {}
        """Group -> when it was first seen waiting, by the event loop's time."""
        self._reported_at: dict[str, float] = {}
        """Group -> when its explanation was last made."""

    async def run(self) -> None:
        """Look every `LOOK_S` until the task is cancelled."""
        loop, errors = asyncio.get_running_loop(), ErrorLog("the look at waiting placement groups", log)
        while self._has_quota:
            await asyncio.sleep(LOOK_S)
            try:
                await self.turn(loop.time())
                errors.worked()
            except Exception as error:  # noqa: BLE001 - Ray may be away for a moment: the next look is soon
                errors.failed(error)

    async def turn(self, now: float) -> None:
        """Run one turn: report groups that wait too long, and withdraw the reports of those that wait no longer.

        `now` is the event loop's time in seconds.
        """
        state = self._state()
        if state.verdict is not None:
            return
        waiting = {group.id: group for group in await self._backend.asked_groups(self._owner)}
        self._since = {id_: self._since.get(id_, now) for id_ in waiting}
        self._reported_at = {id_: at for id_, at in self._reported_at.items() if id_ in waiting}
        due = [group for id_, group in waiting.items() if self._is_due(id_, now)]
        # By the core's list, not this object's: a group that an earlier master reported must be taken back, too.
        events = [
            ev.GroupAsked(id_, owner, GONE, waits=False)
            for id_, (owner, _) in sorted(state.groups.items())
            if id_ not in waiting
        ]
        events += await self._events(due, now)
        if events:
            await self._offer(*events)

    def _is_due(self, group: str, now: float) -> bool:
        told = self._reported_at.get(group)
        return now - self._since[group] >= WAITS_S and (told is None or now - told >= AGAIN_S)

    async def _events(self, groups: list[AskedGroup], now: float) -> list[ev.GroupAsked]:
        if not groups:
            return []
        nodes = await self._backend.nodes()
        self._reported_at.update({group.id: now for group in groups})
        return [ev.GroupAsked(group.id, group.owner, explain(group, nodes)) for group in groups]
