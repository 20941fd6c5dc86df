"""Watch over placement groups and actors that Ray drivers in ranks ask for: reports within 10 s why one waits.

On a Ray of `dljob run` also over Ray tasks of any rank, which may well wait for others: they are reported after 30 s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from dljob.master.start.driver_groups import explain
from dljob.master.state import events as ev
from dljob.master.state.state import JobState
from dljob.master.state.views import AskedGroup
from dljob.runtime.backend.interface import Backend
from dljob.runtime.backend.ray_processes import embedded_folder
from dljob.runtime.journal.setup import Setup
from dljob.tasks import ErrorLog

log = logging.getLogger(__package__)

LOOK_S = 2.0
LOOK_AT_TASKS_S = 10.0
"""Seconds between looks in a job without Ray drivers, whose ranks may start Ray tasks nevertheless."""
WAITS_S = {"placement group": 4.0, "actor": 4.0, "task": 30.0}
"""Seconds that a request must wait before it is reported: most are placed sooner."""
AGAIN_S = 30.0
"""Interval (s) at which the explanation of a waiting group is renewed, as what it lacks may change."""

GONE = "it is placed, or nobody asks for it any more"


class GroupWatch:
    """Watches one job's groups; it does nothing in a job without a `quota` on a Ray that is no embedded one."""

    def __init__(
        self,
        setup: Setup,
        backend: Backend,
        offer: Callable[..., Awaitable[None]],
        state: Callable[[], JobState],
    ) -> None:
        self._owner = f"{setup.info.uid}/"
        has_quota = any(role.quota is not None for role in setup.plan.roles.values())
        self._look_s = LOOK_S if has_quota else LOOK_AT_TASKS_S if embedded_folder() else 0.0
        """Seconds between looks; 0: there is nothing to look at."""
        self._backend = backend
        self._offer = offer
        self._state = state
        self._since: dict[str, float] = {}
        """Group -> when it was first seen waiting, by the event loop's time."""
        self._reported_at: dict[str, float] = {}
        """Group -> when its explanation was last made."""

    async def run(self) -> None:
        """Look again and again until the task is cancelled."""
        loop, errors = asyncio.get_running_loop(), ErrorLog("the look at waiting placement groups", log)
        while self._look_s:
            await asyncio.sleep(self._look_s)
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
        due_groups = [group for group in waiting.values() if self._is_due(group, now)]
        # By the core's list, not this object's: a group that an earlier master reported must be taken back, too.
        events = [
            ev.GroupAsked(id_, owner, GONE, waits=False)
            for id_, (owner, _) in sorted(state.groups.items())
            if id_ not in waiting
        ]
        events += await self._events(due_groups, now)
        if events:
            await self._offer(*events)

    def _is_due(self, group: AskedGroup, now: float) -> bool:
        reported_at = self._reported_at.get(group.id)
        waits_long = now - self._since[group.id] >= WAITS_S[group.kind]
        return waits_long and (reported_at is None or now - reported_at >= AGAIN_S)

    async def _events(self, groups: list[AskedGroup], now: float) -> list[ev.GroupAsked]:
        if not groups:
            return []
        nodes = await self._backend.nodes()
        self._reported_at.update({group.id: now for group in groups})
        return [ev.GroupAsked(group.id, group.owner, explain(group, nodes)) for group in groups]
