"""Sampler: writes once a second or less into the job's folder what no journal holds (docs/adr/0076-samples.md).

The event loop only copies a dict; a thread makes the row, writes it and thins older ones. No sample is worth a job:
where the folder cannot be written, the log says so once, and the job goes on.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from dljob.errors import DLJobError
from dljob.master.placement.autoscale import Reading, decide_size
from dljob.master.state.events import LoadSeen
from dljob.master.state.ledger import Ledger
from dljob.master.state.state import JobState, Phase
from dljob.plan.role import AutoscalePlan
from dljob.runtime.backend.interface import Backend
from dljob.runtime.controller.heartbeat_log import calls_under_way
from dljob.runtime.controller.worker_hosts import Offer
from dljob.runtime.journal.busy_times import BusyTimes
from dljob.runtime.journal.resource_use import ResourceUses
from dljob.runtime.journal.sample_rows import Columns, SampleRow
from dljob.runtime.journal.samples import ABSENT, ACCOUNTS, SampleWriter, last_columns
from dljob.runtime.process.messages import KEEPER, JobInfo
from dljob.runtime.process.worker_context import DEVICE, PUBLISHED, SAVES, SAVING, WAITED
from dljob.tasks import ErrorLog

log = logging.getLogger(__package__)

LEAST_S = 1.0
"""Least seconds between two samples."""
RANKS_A_SECOND = 1000
"""Ranks that are sampled in a second: larger jobs are sampled less often, so that the cost stays the same."""
METRICS = 64
"""Most metrics of the driver role that are recorded."""
LOOK_S = 1.0
"""Seconds between two readings of the loads of roles that scale themselves."""
END_S = 5.0
"""Most seconds that the end of a job waits for its last sample."""


QUEUES = 32
"""Most queues whose fill is recorded."""
QUEUES_S, ANSWER_S = 2.0, 5.0
"""Seconds between two questions to a queue, and the most that an answer may take."""
_QUEUE = f"{KEEPER}queue:"


class SampledMaster(NamedTuple):
    """The part of a master that is sampled, at one time (unix seconds)."""

    at: float
    state: JobState
    progress: Mapping[tuple[str, int], tuple[int, Mapping[str, float]]]
    """(role, rank) -> last step and its metrics; not changed any more."""
    usage: Mapping[str, tuple[str, Mapping[str, Any]]] = {}
    """Actor -> its role, and the last usage of its ranks (`worker.usage`)."""


class Sampler:
    """Samples one master. `view` is called on the event loop; `chosen`: roles whose resources were chosen."""

    def __init__(
        self, info: JobInfo, view: Callable[[], SampledMaster], backend: Backend, chosen: Iterable[str] = ()
    ) -> None:
        self._view = view
        self._uid = info.uid
        self._backend = backend
        self._folder = Path(info.dir)
        self._writer = SampleWriter(self._folder)
        self._rows = RowMaker()
        self._uses = ResourceUses(chosen)
        self._busy = BusyTimes()
        self._errors = ErrorLog("the recording of samples", log)
        self._ended = self._begun = False
        # One thread keeps the order of the rows; the volume may be slow, and then samples are left out.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dljob-samples")

    async def run(self) -> None:
        """Sample until the task is cancelled."""
        while True:
            ranks = await self._sample()
            await asyncio.sleep(max(LEAST_S, ranks / RANKS_A_SECOND))

    def queues(self) -> Mapping[str, list[int]]:
        """Return `queues/<name>` -> items and capacity, as last asked."""
        return self._rows.queues

    def resource_use(self) -> tuple[Mapping[str, Any], ...]:
        """Return what roles used whose resources were chosen, as rows of the status; empty: there is none."""
        return self._uses.rows

    def busy_times(self) -> Mapping[str, Mapping[str, Any]]:
        """Return role -> how much of its time it was busy, and what it waited for in the rest."""
        return self._busy.rows

    async def watch_queues(self) -> None:
        """Ask the queues that ranks use for their fill, until the task is cancelled."""
        while True:
            await asyncio.sleep(QUEUES_S)
            names = {store.removeprefix(_QUEUE) for _, usage in self._view().usage.values() for store in stores(usage)}
            await asyncio.gather(*(self._ask(name) for name in sorted(names)[:QUEUES]))

    async def _ask(self, name: str) -> None:
        with suppress(DLJobError, TimeoutError):  # a queue whose actor restarts: its last fill stays for a moment
            async with asyncio.timeout(ANSWER_S):
                actor = await self._backend.lookup(f"{self._uid[:8]}/queue/{name}")
                fill = None if actor is None else await self._backend.call(actor, "gauge")
            if fill is not None:
                # A new dict: the thread reads the old one.
                self._rows.queues = {**self._rows.queues, f"queues/{name}": list(fill)}

    async def _sample(self) -> int:
        view = self._view()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._write, view)
        return len(view.state.ranks)

    def _write(self, view: SampledMaster) -> None:
        if self._ended:
            return
        try:
            if not self._begun and view.state.epoch > 1:
                self._rows.recall(last_columns(self._folder), view)
            self._begun = True
            columns = self._rows.columns(view)
            self._uses.take(view.at, view.state, columns)
            self._busy.take(view.at, columns)
            self._writer.append(SampleRow(view.at, columns))
            self._errors.worked()
        except OSError as error:
            self._errors.failed(error)

    async def end(self) -> None:
        """Write a last sample and close the files; gives up on a volume that hangs."""
        loop = asyncio.get_running_loop()
        view = self._view()

        def last() -> None:
            self._write(view)
            self._ended = True
            try:
                self._writer.close()
            except OSError as error:
                self._errors.failed(error)

        await asyncio.wait([loop.run_in_executor(self._thread, last)], timeout=END_S)

    def close(self) -> None:
        """Let go of the thread, without waiting for it."""
        self._thread.shutdown(wait=False, cancel_futures=True)


class RowMaker:
    """Makes the columns of samples; parts that did not change are the same objects as in the last ones."""

    def __init__(self) -> None:
        self._ledger: Ledger | None = None
        self._accounts: dict[str, str] = {}
        self.usage = UsageTotals()
        self.queues: Mapping[str, list[int]] = {}
        """`queues/<name>` -> items and capacity; replaced as a whole."""
        self._before: Columns = {}
        """What the last row of the master before this one had."""
        self._recalled: Mapping[tuple[str, int], object] = {}
        """Steps that this master has from the journal, which are older."""

    def recall(self, before: Columns, view: SampledMaster) -> None:
        """Go on from the last row of an earlier master: hosts tell steps and usage again only with their heartbeats."""
        self._before = {name: value for name, value in before.items() if not name.startswith("accounts/")}
        self._recalled = view.progress

    def columns(self, view: SampledMaster) -> Columns:
        """Return the columns of a sample."""
        state, columns = view.state, dict[str, Any]()
        if state.ledger is not self._ledger:
            self._ledger, self._accounts = state.ledger, accounts(state)
        columns |= self._accounts
        for role, facts in state.job.roles.items():
            reports = [view.progress.get((role, rank)) for rank in range(facts.plan.end)]
            if any(reports):
                columns[f"steps/{role}"] = [None if report is None else report[0] for report in reports]
            if role == state.job.drivers[0]:
                metrics = next((report[1] for report in reports if report is not None), {})
                columns |= {f"progress/{name}": _finite(value) for name, value in list(metrics.items())[:METRICS]}
        self.usage.take(view)
        columns = {**columns, **self.usage.columns(state), **self.queues}
        return {**columns, **self._not_heard_yet(view, columns)} if self._before else columns

    def _not_heard_yet(self, view: SampledMaster, known: Columns) -> Columns:
        """Return the columns of the last master that this one cannot tell yet."""
        columns = {name: value for name, value in self._before.items() if name not in known}
        for role, facts in view.state.job.roles.items():
            ranks = range(facts.plan.end)
            reports = [view.progress.get((role, rank)) for rank in ranks]
            silent = [report is self._recalled.get((role, rank)) for rank, report in zip(ranks, reports, strict=True)]
            if olds := self._before.get(f"steps/{role}"):
                olds = [*olds, *[None] * len(reports)]
                news = [None if report is None else report[0] for report in reports]
                steps = zip(silent, olds, news, strict=False)
                columns[f"steps/{role}"] = [_further(old, new) if quiet else new for quiet, old, new in steps]
            if role == view.state.job.drivers[0] and all(silent):
                columns |= {name: value for name, value in self._before.items() if name.startswith("progress/")}
        return columns


class UsageTotals:
    """Sums of the usage of all hosts, those that ended included."""

    def __init__(self) -> None:
        self.taken: dict[str, Mapping[str, Any]] = {}
        """Actor -> the usage that is part of the sums."""
        self._calls: dict[str, list[int]] = {}
        """`caller>callee.method` -> the numbers of `samples.CALLS`."""
        self._ranks: dict[str, dict[tuple[str, int], int]] = defaultdict(dict)
        """What is known of ranks: `memory`, `peak`, `cpu`, `device`, `served`, `saves`, `saving`,
        `waited/<role>` or `held/<channel>` -> (role, rank) -> value."""
        self._published: dict[str, int] = {}

    def take(self, view: SampledMaster) -> None:
        """Add what changed since the last view."""
        present = {host.actor for host in view.state.hosts.values()} if view.usage else set[str]()
        for actor, (role, usage) in view.usage.items():
            last = self.taken.get(actor, {})
            # A process that is gone waits for nobody any more.
            now = usage if actor in present else {**usage, "calls": _ended(usage)}
            if now is last or now == last:
                continue
            self.taken[actor] = now
            self._add_calls(role, last.get("calls", {}), now.get("calls", {}))
            for kind in ("memory", "peak", "cpu", "served"):
                self._ranks[kind].update({(role, rank): value for rank, value in now.get(kind, ())})
            for name, rank, value in now.get("noted", ()):
                self._note(role, rank, name, value)
        if len(self.taken) > 2 * len(view.usage) + METRICS:
            self.taken = {actor: usage for actor, usage in self.taken.items() if actor in view.usage}

    def _add_calls(self, role: str, before: Mapping[str, list[int]], now: Mapping[str, list[int]]) -> None:
        for name, row in now.items():
            total = self._calls.setdefault(f"{role}>{name}", [0] * len(row))
            old = before.get(name, [0] * len(row))
            self._calls[f"{role}>{name}"] = [have + new - last for have, new, last in zip(total, row, old, strict=True)]

    def _note(self, role: str, rank: int, name: str, value: int) -> None:
        if name.startswith(PUBLISHED):
            channel = name.removeprefix(PUBLISHED)
            self._published[channel] = max(value, self._published.get(channel, value))
        of = name.partition(":")[2]
        kind = name if name in (DEVICE, SAVES, SAVING) else f"waited/{of}" if name.startswith(WAITED) else f"held/{of}"
        self._ranks[kind][role, rank] = value

    def columns(self, state: JobState) -> Columns:
        """Return the columns of what is known."""
        columns: dict[str, Any] = {f"calls/{name}": row for name, row in self._calls.items()}
        columns |= {f"published/{name}": version for name, version in self._published.items()}
        for kind, values in self._ranks.items():
            metric, _, channel = kind.partition("/")
            for role in dict.fromkeys(role for role, _ in values):
                ranks = range(state.job.roles[role].plan.end)
                columns[f"{metric}/{role}" + (channel and f"/{channel}")] = [values.get((role, rank)) for rank in ranks]
        return columns


def _further(old: int | None, new: int | None) -> int | None:
    return new if old is None else old if new is None else max(old, new)


def _ended(usage: Mapping[str, Any]) -> dict[str, list[int]]:
    calls: dict[str, list[int]] = usage.get("calls", {})
    return {name: [sent, 0, again, lost, 0, took] for name, (sent, _, again, lost, _, took) in calls.items()}


def stores(usage: Mapping[str, Any]) -> list[str]:
    """Return the addresses of the queues in a usage."""
    return [address for address in usage.get("stores", ()) if address.startswith(_QUEUE)]


def accounts(state: JobState) -> dict[str, str]:
    """Return the `accounts` columns: for each role a letter a rank."""
    clocks = state.ledger.clocks
    columns: dict[str, str] = {}
    for role, facts in state.job.roles.items():
        role_clocks = (clocks.get((role, rank)) for rank in range(facts.plan.end))
        letters = (ABSENT if clock is None else ACCOUNTS[clock[0].value] for clock in role_clocks)
        columns[f"accounts/{role}"] = "".join(letters)
    return columns


def _finite(value: float) -> float | None:
    """Return a number that JSON has; None for others."""
    return value if math.isfinite(value) else None


class Autoscaler:
    """Reads the load of roles that scale themselves, and offers the core what it asks for.

    What is decided is decided by the core (`dljob.master.placement.autoscale`), here only when: an event is journaled,
    so the core hears of a load that changes something, and of no other. `queues` returns `queues/<name>` -> items and
    capacity.
    """

    def __init__(
        self, view: Callable[[], SampledMaster], queues: Callable[[], Mapping[str, list[int]]], offer: Offer
    ) -> None:
        self._view = view
        self._queues = queues
        self._offer = offer
        self._readings: dict[str, deque[Reading]] = {}
        self._said: dict[str, str] = {}

    async def run(self) -> None:
        """Read and offer until the task is cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            for event in self.look(self._view()):
                await self._offer(event)

    def look(self, view: SampledMaster) -> list[LoadSeen]:
        """Read the loads; return what they ask for."""
        changes: list[LoadSeen] = []
        for role, sizing in view.state.sizes.items() if view.state.phase is Phase.RUNNING else ():
            plan = view.state.job.roles[role].plan
            if plan.autoscale is None or (load := self._load(view, role, plan.autoscale)) is None:
                continue
            readings = self._readings.setdefault(role, deque())
            readings.append(Reading(view.at, load))
            # One reading of before the cooldown stays: it tells that all of it is known.
            while len(readings) > 1 and readings[1].at <= view.at - plan.autoscale.cooldown_s:
                readings.popleft()
            decision = decide_size(plan, sizing, readings, view.at)
            if decision.count:
                log.info("%s is to have %d ranks: %s", role, decision.count, decision.reason)
                changes.append(LoadSeen(role, decision.count, decision.reason))
        return changes

    def _load(self, view: SampledMaster, role: str, policy: AutoscalePlan) -> float | None:
        """Return the load of a role; None while it is not known."""
        match policy.by:
            case "queue":
                fill = self._queues().get(f"queues/{policy.name}")
                return None if fill is None else float(fill[0])
            case "calls":
                return float(sum(calls_under_way(view.state, role, view.usage).values()))
            case _:
                return _metric(view, policy.name)


def _metric(view: SampledMaster, name: str) -> float | None:
    """Return a metric of the first driver role, from its lowest rank that reports it."""
    driver = view.state.job.drivers[0]
    reports = sorted((rank, metrics) for (role, rank), (_, metrics) in view.progress.items() if role == driver)
    return next((float(metrics[name]) for _, metrics in reports if name in metrics), None)
