"""Inquiry after a host that vanished without a report: asks its node for the exit status and for other evidence.

The exit status is asked for at once, as the restart's level may depend on it. All other evidence (kernel log, memory
counters) is collected while the restart is under way, and so is an exit status that is not there yet: a process closes
its sockets, which shows its death, before the driver of its GPU has freed gigabytes of memory. The next process of a
rank with a device therefore waits for that end, unless it is there already as a spare; the report of the loss does not,
as that of a peer which only lost this one would then come first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

from dljob.errors import DLJobError
from dljob.master.state import events as ev
from dljob.master.state.views import Clue, HostId, Outcome
from dljob.runtime.backend.interface import ActorRef, Backend
from dljob.runtime.forked_workers import worker_ends
from dljob.runtime.node import log_tails
from dljob.runtime.process import evidence, process_end
from dljob.tasks import TaskOwner, nobody_waits

log = logging.getLogger(__package__)

AFTER_S = 0.5
"""Pause (s) before the inquiry: the restart goes first, and the kernel's log may be a moment late."""
WITHIN_S = 10.0
END_S = 1.0
"""Seconds that the report of a death waits for the exit status: an agent answers in 5 ms, on a machine at full load in
up to a second, and without the status the cause stays unknown at first."""
GONE_S, GONE_EVERY_S = 10.0, 0.05
"""Seconds that the next process of a rank waits for the end of the last one, whose device memory it may need, and
between two questions for it. A driver takes up to a second to free it, with much page-locked memory more."""
END_AGAIN_S = (0.5, 1.0, 2.0, 4.0)
"""Pauses (s) between further questions for an exit status."""


class Inquiry:
    """Inquiries under way; `agents` is the name prefix of the node agents.

    `log_reader` returns what reads the end of the log of a host's one rank, on its node; `code_dir`: of user code.
    """

    def __init__(
        self,
        backend: Backend,
        offer: Callable[..., Awaitable[None]],
        agents: str,
        owner: TaskOwner,
        *,
        log_reader: Callable[[HostId], Callable[[], str]] = lambda _: str,
        code_dir: str = "",
    ) -> None:
        self._log_reader, self._code_dir = log_reader, code_dir
        self._backend = backend
        self._offer = offer
        self._agents = agents
        self._owner = owner
        self._actors: dict[str, ActorRef] = {}
        """Node -> its agent."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def ended(self, host: HostId, node: str, pid: int, vanished: Outcome, output: str | None = None) -> Outcome:
        """Return the outcome of a vanished host, with the exit status of its process where its node knows it.

        `output`: the end of its log, where nobody waits for the outcome and the rank's next process may write by now.
        """
        # Later the log may end with lines of the rank's next process.
        read_log: Callable[[], str] = self._log_reader(host) if output is None else lambda: ""
        try:
            noted: tuple[int, str] | None = await self._ask_agent(node, "end_of", pid, str(host))
            if noted is None and node not in self._actors:
                noted = await self._noted(node, pid, read_log, late=output is not None)
        except Exception as error:  # noqa: BLE001 - the cause stays unknown; the restart does not depend on it
            log.info("how process %d on node %s ended is not known: %r", pid, node[:8], error)
            return vanished
        if noted is None:
            return vanished
        status, tail = noted
        if not tail:  # an agent does not know a host of its first second
            tail = await asyncio.to_thread(read_log) if output is None else output
        return process_end.with_status(vanished, status, tail, self._code_dir)

    async def _noted(self, node: str, pid: int, read_log: Callable[[], str], *, late: bool) -> tuple[int, str] | None:
        """Return the wait status that was noted by the parent of a host, and the end of its rank's log, or none.

        The node has no agent yet, or never gets one.

        On another machine a process of Ray starts for the question. The restart waits END_S for that at most: without
        the status, a second such end would end the job with its cause unknown.
        """
        if node == self._backend.own_node():
            return await asyncio.to_thread(worker_ends.end_of, pid, read_log)
        status = await asyncio.to_thread(worker_ends.wait_status_beside, pid)
        if status is not None or self._backend.name != "ray":
            return None if status is None else (status, "")
        async with asyncio.timeout(WITHIN_S if late else END_S):
            return await log_tails.on_node(node, worker_ends.end_of, pid, read_log)

    async def wait_until_gone(self, node: str, pid: int) -> None:
        """Return once the process of a former host has ended, after GONE_S, or where its node does not answer."""
        try:
            async with asyncio.timeout(GONE_S):
                while await self._ask_agent(node, "exists", pid):  # noqa: ASYNC110 - the agent is another process
                    await asyncio.sleep(GONE_EVERY_S)
        except Exception as error:  # noqa: BLE001 - the next process may find the memory free all the same
            message = (
                "process %d on node %s was not seen to end, so its rank's next one may find device memory taken: %r"
            )
            log.warning(message, pid, node[:8], error)

    async def _ask_agent(self, node: str, method: str, *args: Any) -> Any:
        """Return what a node's agent answers within END_S; None where there is no agent."""
        try:
            async with asyncio.timeout(END_S):
                agent = self._actors.get(node) or await self._backend.lookup(f"{self._agents}{node[:8]}")
                if agent is None:
                    return None
                self._actors[node] = agent
                return await self._backend.call(agent, method, *args)
        except Exception:
            # The agent may have died: the next inquiry looks its name up again.
            self._actors.pop(node, None)
            raise

    def begin(self, host: HostId, node: str, pid: int, beside: ActorRef | None) -> None:
        """Start an inquiry: `_clues_from` asks another host on the node, else its agent, else a task there."""
        self._start(lambda: self._ask(host, node, pid, beside))

    def begin_end(self, host: HostId, node: str, pid: int, vanished: Outcome) -> None:
        """Start an inquiry for the exit status of a host whose loss was reported without it."""
        self._start(lambda: self._ask_end(host, node, pid, vanished))

    def _start(self, inquiry: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = self._owner.repeat("evidence inquiry", inquiry, nobody_waits)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Cancel all inquiries."""
        for task in self._tasks:
            task.cancel()

    async def _ask(self, host: HostId, node: str, pid: int, beside: ActorRef | None) -> None:
        await asyncio.sleep(AFTER_S)
        clues: tuple[Clue, ...] = ()
        try:
            async with asyncio.timeout(WITHIN_S):
                clues = await self._clues_from(node, pid, beside)
        except Exception as error:  # noqa: BLE001 - the cause stays unknown; the restart does not depend on it
            log.warning("no evidence about the end of %s (pid %d, node %s): %r", host, pid, node[:8], error)
        if clues:
            await self._offer(ev.CauseLearned(str(host), clues, host=host))

    async def _ask_end(self, host: HostId, node: str, pid: int, vanished: Outcome) -> None:
        output = await asyncio.to_thread(self._log_reader(host))  # before the rank's next process writes to it
        for pause in END_AGAIN_S:
            await asyncio.sleep(pause)
            if (end := await self.ended(host, node, pid, vanished, output)) != vanished:
                await self._offer(ev.CauseLearned(str(host), (), end=end, host=host))
                return

    async def _clues_from(self, node: str, pid: int, beside: ActorRef | None) -> tuple[Clue, ...]:
        """Return the clues of the first process on the node that answers.

        Another host is asked first: in a container the memory cgroup only counts its OOM kills, so only a process that
        read the counter before the death can tell that it has grown.
        """
        if beside is not None:
            with suppress(DLJobError):  # it may have died with its neighbour
                return await self._backend.call(beside, "clues", pid)
        agent = await self._backend.lookup(f"{self._agents}{node[:8]}")
        if agent is not None:
            with suppress(DLJobError):
                return await self._backend.call(agent, "clues", pid)
        return await log_tails.on_node(node, evidence.of_the_dead, pid) if self._backend.name == "ray" else ()
