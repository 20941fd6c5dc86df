"""PrimeMaster's side of outside witnesses: whose trouble the node agents' sightings are, and dumps at a hang.

Sightings come with each heartbeat, whole: a lost one costs nothing. Each is told once for an incarnation of its rank. A
witness without `act` gives evidence only: to failures of the rank that follow, and to hangs that are found otherwise.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from dljob.master.state import events as ev
from dljob.master.state.node_names import node_title
from dljob.master.state.sightings import Sighting, may_accuse, rank_of, words
from dljob.master.state.state import JobState, RankKey
from dljob.master.state.views import Clue, Reason
from dljob.plan.witnesses import WitnessPlan
from dljob.runtime.backend.interface import Backend
from dljob.runtime.journal.setup import Setup
from dljob.runtime.process.messages import NodeHeartbeat
from dljob.tasks import TaskOwner, nobody_waits
from dljob.telemetry import reasons
from dljob.telemetry.evidence import Source

log = logging.getLogger(__package__)

DUMP_S = 20.0
"""Seconds for a node agent to answer with a dump."""
DUMPED_S = 1.0
"""Seconds that the report of a hang waits for dumps, beside those of the stacks: a recorder in a rank ends with it."""
KINDS = {"Hang": Reason.HANG, "Slow": Reason.STRAGGLER, "SilentCorruption": Reason.SILENT_CORRUPTION}


class WitnessDesk:
    """Knows what witnesses say now, and tells the core what it has not heard."""

    def __init__(
        self,
        setup: Setup,
        backend: Backend,
        offer: Callable[..., Awaitable[None]],
        state: Callable[[], JobState],
        *,
        owner: TaskOwner,
        clock: Callable[[], float],
    ) -> None:
        self.plans = setup.plan.witnesses
        self._by_name = {plan.name: plan for plan in self.plans}
        self._folder = Path(setup.folder)
        self._backend = backend
        self._offer = offer
        self._state = state
        self._owner = owner
        self._clock = clock
        self._sightings: dict[str, tuple[Sighting, ...]] = {}
        """Node -> what its witnesses say."""
        self._told: set[tuple[str, str, object]] = set()
        """(node, witness, a rank in its incarnation, or None for no one rank) of what the core has heard."""
        self._unreadable: set[tuple[str, str]] = set()
        self._dumps: set[asyncio.Task[None]] = set()
        """Those under way."""

    async def record(self, node: str, heartbeat: NodeHeartbeat) -> None:
        """Take the sightings of a node's heartbeat, and tell the core what is new."""
        self._sightings[node] = tuple(sighting for sighting in heartbeat.sightings if sighting.witness in self._by_name)
        for name, trouble in heartbeat.troubles:
            if (node, name) not in self._unreadable:
                self._unreadable.add((node, name))
                message = f"witness {name} on {node_title(self._state(), node)}: {trouble}"
                await self._offer(ev.NoteReported(reasons.WITNESS_UNREADABLE, message))
        for sighting in self._sightings[node]:
            await self._tell(node, sighting)

    def hanging(self, role: str) -> Mapping[int, str]:
        """Return the ranks of a role that a witness says to hang, with its words."""
        hang_words: dict[int, str] = {}
        for node, sightings in self._sightings.items():
            for sighting in sightings:
                plan = self._by_name[sighting.witness]
                if plan.means != "Hang":
                    continue
                key = rank_of(self._state(), node, sighting.labels)
                if key is not None and key[0] == role:
                    hang_words.setdefault(key[1], words(plan, sighting))
        return hang_words

    def dump(self, role: str, name: str) -> tuple[str, ...]:
        """Ask the machines of a role for dumps; return the files that will hold them. It waits for nothing."""
        state, facts = self._state(), self._state().job.roles[role]
        nodes = sorted({node for rank in facts.ranks if (node := state.hosts[facts.host_of(rank)].node)})
        files: list[str] = []
        for plan in (plan for plan in self.plans if plan.dump is not None):
            for node in nodes:
                path = self._folder / "stacks" / f"{name}.{plan.name}-{node[:8]}.dump"
                files.append(str(path))
                task = self._owner.repeat("dump of a witness", partial(self._dump, plan, node, path), nobody_waits)
                self._dumps.add(task)
                task.add_done_callback(self._dumps.discard)
        return tuple(files)

    async def wait_for_dumps(self) -> None:
        """Return once all dumps under way are written, after DUMPED_S at most; later ones are written all the same."""
        if self._dumps:
            await asyncio.wait(self._dumps, timeout=DUMPED_S)

    async def _tell(self, node: str, sighting: Sighting) -> None:
        state, plan = self._state(), self._by_name[sighting.witness]
        key = rank_of(state, node, sighting.labels)
        # Labels are the witness's own: one that makes up new ones is told once, and fills no memory.
        known = (node, plan.name, None if key is None else (key, state.ranks[key].incarnation))
        if known in self._told:
            return
        self._told.add(known)
        description = words(plan, sighting)
        if key is None:
            node_words = node_title(state, node)
            await self._offer(
                ev.NoteReported(reasons.WITNESS_SAW, f"{description}, on {node_words}: no one rank is meant")
            )
            return
        act = plan.act and may_accuse(state, key, sighting, self._clock())
        await self._offer(*_events(state, plan, key, description, act=act))

    async def _dump(self, plan: WitnessPlan, node: str, path: Path) -> None:
        answer, failure = b"", "its node's agent does not answer"
        try:
            async with asyncio.timeout(DUMP_S):
                agent = await self._backend.lookup(f"{self._state().job.uid[:8]}/agent/{node[:8]}")
                if agent is not None:
                    answer, failure = await self._backend.call(agent, "dump", plan.name)
        except Exception as error:  # noqa: BLE001 - the file says why; nothing waits for it
            failure = str(error) or type(error).__name__
        if failure:
            log.warning("no dump of witness %s on node %s: %s", plan.name, node, failure)
        await asyncio.to_thread(_write, path, f"no dump of {plan.name}: {failure}\n".encode() if failure else answer)


def _events(state: JobState, plan: WitnessPlan, key: RankKey, description: str, *, act: bool) -> Iterable[ev.Event]:
    """Return what the core hears: an incident of the rank from a witness that may act, else evidence and a note."""
    incarnation = state.ranks[key].incarnation
    if act:
        return (ev.HangFound(*key, incarnation, KINDS[plan.means].value, description, by=plan.name),)
    name = f"{key[0]}/{key[1]}"
    return (
        ev.CauseLearned(name, (Clue(Source.WITNESS.value, description),), incarnation),
        ev.NoteReported(reasons.WITNESS_SAW, f"{name}: {description}, which means {plan.means}"),
    )


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
