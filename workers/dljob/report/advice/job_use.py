"""What a job's ranks used and lost, measured on its record. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dljob.master.state.views import Reason
from dljob.report.advice import slowness
from dljob.report.advice.values import mapping, number, rows
from dljob.report.job_folder import RecordedJob
from dljob.runtime.journal.cpu_windows import GAP_S, PRODUCTIVE, WINDOW_S, CpuWindow
from dljob.runtime.journal.samples import Samples
from dljob.runtime.process.messages import KEEPER

LATE = 0.75
"""Share of a rank's samples after which its peak should not grow any more."""


@dataclass(frozen=True, slots=True)
class SaveUse:
    """The saves of a role, by its rank that waited longest for them."""

    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RoleUse:
    """What the ranks of a role used."""

    ranks: int
    productive_s: float
    """Time of its ranks in the account `productive`, together."""
    productive: float | None
    """The same as a share of all their time."""
    peaks: tuple[int, ...] = ()
    """Peak memory of each rank, in bytes."""
    growth: float = 0.0
    """Share by which the highest peak grew late in the run."""
    cpus: tuple[float, ...] = ()
    """CPUs used by a rank over a window in which it was productive, of all ranks and windows, rising."""
    out_of_memory: int = 0
    """Ranks killed for want of memory."""
    lost_s: float = 0.0
    """Seconds that their recovery took."""
    saves: SaveUse | None = None
    steps: int = 0
    """Steps that its fastest rank made, repeated ones not counted."""
    recompute_s: float = 0.0
    failures: int = 0
    """Restarts of any of its ranks."""


@dataclass(frozen=True, slots=True)
class CallUse:
    """The calls of a role's rank that waited longest for another role, while it was productive."""

    seconds: float
    """The time of the caller over which this was measured."""
    waited_s: float
    served_s: tuple[float, ...]
    """Seconds of that time in which each rank of the callee ran calls; empty: not recorded."""
    windows: tuple[float, ...]
    """The share that it waited, of each part of that time."""


@dataclass(frozen=True, slots=True)
class JobUse:
    """What a job used. `name` is how people call it."""

    name: str
    spec: Mapping[str, Any]
    seconds: float
    goodput: float | None
    journal: bool
    """Whether its failures are known."""
    roles: Mapping[str, RoleUse]
    unrecorded: tuple[str, ...] = ()
    calls: Mapping[tuple[str, str], CallUse] = field(default_factory=dict[tuple[str, str], CallUse])
    """(caller, callee) -> the caller's waits."""
    slowness: tuple[str, ...] = ()
    """What slowed it down, a line each."""


def measure(record: RecordedJob, name: str) -> JobUse:
    """Measure a job's record; what it does not tell is left out."""
    ledger = mapping(record.status.get("ledger"))
    accounts = {
        str(row.get("name")): {key: number(value) for key, value in mapping(row.get("accounts")).items()}
        for row in rows(ledger.get("roles"))
    }
    roles = {
        str(role["name"]): _role(record, role, accounts.get(str(role["name"]), {}))
        for role in rows(record.spec.get("roles"))
        if "name" in role
    }
    goodput = ledger.get("goodput")
    known = float(goodput) if isinstance(goodput, int | float) and 0 <= goodput <= 1 else None
    seconds = number(ledger.get("seconds"))
    calls = {
        (caller, callee): _calls(record.samples, caller, callee)
        for caller, callees in record.samples.waited.items()
        for callee in callees
        # Waits for queues and weights are no calls of a role.
        if not callee.startswith(KEEPER)
    }
    known_by_journal, slow = record.history is not None, slowness.lines(record.events)
    return JobUse(name, record.spec, seconds, known, known_by_journal, roles, record.unrecorded, calls, slow)


def _role(record: RecordedJob, role: Mapping[str, Any], accounts: Mapping[str, float]) -> RoleUse:
    samples, name = record.samples, str(role["name"])
    peaks = [highest for rank in samples.peak.get(name, ()) if (highest := _highest(rank))]
    faults = [fault for fault in _faults(record) if _role_of(fault) == name]
    killed = [fault for fault in faults if fault.get("reason") == Reason.OOM_KILLED]
    productive = accounts.get("productive", 0.0)
    total = sum(amount for account, amount in accounts.items() if account != "spare")
    return RoleUse(
        max(1, int(number(role.get("replicas", 1)))),
        productive,
        productive / total if total else None,
        tuple(peaks),
        max(map(_growth, samples.peak.get(name, ())), default=0.0),
        _cpus(samples.times, samples.cpu.get(name, ()), samples.accounts.get(name, ())),
        len(killed),
        sum(_took(fault) for fault in killed),
        _saves(samples.saves.get(name, ()), samples.saving.get(name, ())),
        max((highest for rank in samples.steps.get(name, ()) if (highest := _highest(rank))), default=0),
        accounts.get("recompute", 0.0),
        _failures(record, name),
    )


def _highest(series: Sequence[int | None]) -> int:
    return max((value for value in series if value is not None), default=0)


def _growth(peaks: Sequence[int | None]) -> float:
    known = [peak for peak in peaks if peak]
    if len(known) < 2:
        return 0.0
    before = known[int(len(known) * LATE)]
    return known[-1] / before - 1


def _cpus(
    times: Sequence[float], cpu: Sequence[Sequence[int | None]], accounts: Sequence[str | None]
) -> tuple[float, ...]:
    rates: list[float] = []
    for rank, series in enumerate(cpu):
        window = CpuWindow()
        for at, used, letters in zip(times, series, accounts, strict=False):
            productive = letters is not None and letters[rank : rank + 1] == PRODUCTIVE
            rate = window.take(at, used, productive=productive)
            rates += () if rate is None else (rate,)
    return tuple(sorted(rates))


def _calls(samples: Samples, caller: str, callee: str) -> CallUse:
    """Return the waits of the caller's rank that waited longest."""
    by_rank = samples.waited[caller][callee]
    rank = max(range(len(by_rank)), key=lambda index: _grown(by_rank[index]))
    spans = _productive_spans(samples.times, samples.accounts.get(caller, ()), rank)
    waits = [(samples.times[end] - samples.times[begin], _grown_in(by_rank[rank], begin, end)) for begin, end in spans]
    served = [sum(_grown_in(index, *span) for span in spans) / 1000 for index in samples.served.get(callee, ())]
    return CallUse(
        sum(lasted for lasted, _ in waits),
        sum(waited for _, waited in waits) / 1000,
        tuple(served),
        tuple(waited / 1000 / lasted for lasted, waited in waits),
    )


def _productive_spans(times: Sequence[float], accounts: Sequence[str | None], rank: int) -> list[tuple[int, int]]:
    """Return spans, by their first and last sample, over all of which a rank was productive."""
    spans: list[tuple[int, int]] = []
    begin: int | None = None
    for index, letters in enumerate(accounts):
        if letters is None or letters[rank : rank + 1] != PRODUCTIVE:
            begin = None
        elif begin is None or times[index] - times[index - 1] > GAP_S:
            begin = index
        elif times[index] - times[begin] >= WINDOW_S:
            spans.append((begin, index))
            begin = index
    return spans


def _grown_in(series: Sequence[int | None], begin: int, end: int) -> int:
    """Return what a counter grew by between two samples."""
    return _grown(series[begin : end + 1]) - (series[begin] or 0)


def _saves(counts: Sequence[Sequence[int | None]], spent: Sequence[Sequence[int | None]]) -> SaveUse | None:
    saves = [
        SaveUse(_grown(count), _grown(milliseconds) / 1000)
        for count, milliseconds in zip(counts, spent, strict=False)
        if _grown(count)
    ]
    return max(saves, key=lambda use: use.seconds) if saves else None


def _grown(series: Sequence[int | None]) -> int:
    """Return the sum of a counter that begins anew with each process."""
    total = last = 0
    for value in series:
        if value is not None:
            total += value - last if value >= last else value
            last = value
    return total


def _failures(record: RecordedJob, role: str) -> int:
    incidents = record.history.incidents if record.history else ()
    return sum(any(member == role for member, _ in incident.members) for incident in incidents)


def _faults(record: RecordedJob) -> list[Mapping[str, Any]]:
    return list(record.history.faults.values()) if record.history else rows(record.status.get("recentFaults"))


def _took(fault: Mapping[str, Any]) -> float:
    """Return the seconds to the recovery of a fault, as the journal or as a status has it."""
    if "seconds" in fault:
        return number(fault["seconds"])
    return max(0.0, number(fault.get("recovered_at")) - number(fault.get("detected_at")))


def _role_of(fault: Mapping[str, Any]) -> str:
    return str(fault.get("rank") or fault.get("target") or "").partition("/")[0]
