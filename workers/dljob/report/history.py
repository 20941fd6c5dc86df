"""A job's history, folded from the `change` records of its journal. No I/O.

Changes are the new values of fields, so this needs no code of the master: it also reads what another version wrote.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from dljob.telemetry.records import Record

KINDS = (b"event", b"change", b"snapshot")
LIVE = ("init", "productive", "rendezvous", "recompute")
"""Accounts of ranks that give signs of life: a loss that is found later moves their last seconds to `detect`."""
DETECT = "detect"
_SIGNS = ("HostLost", "NodeFrozen", "HangFound", "NodesSeen")

RankKey = tuple[str, int]


class Stretch(NamedTuple):
    """The account of a rank from a time on, in microseconds since the job's start; empty: its role dropped it."""

    at: int
    account: str


@dataclass(slots=True)
class IncidentRecord:
    """A restart, from the fault to the last rank that is ready again. Times are unix seconds."""

    begun: float
    role: str
    members: list[RankKey]
    faults: list[int]
    ended: float | None = None


@dataclass(slots=True)
class JobHistory:
    """What a journal says about a job."""

    started: float = 0.0
    until: float = 0.0
    """Time of the last record, in unix seconds."""
    lanes: dict[RankKey, list[Stretch]] = field(default_factory=dict[RankKey, list[Stretch]])
    faults: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])
    """Each fault as it was last written, by its id."""
    incidents: list[IncidentRecord] = field(default_factory=list[IncidentRecord])
    units: dict[str, str] = field(default_factory=dict[str, str])
    """Unit -> the node that it was last placed on."""
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """Node -> how it was last seen."""

    def seconds(self, at: int) -> float:
        """Return microseconds since the job's start as unix seconds."""
        return round(self.started + at / 1e6, 3)


def fold(records: Iterable[Record]) -> JobHistory:
    """Return the history that the records tell, oldest first."""
    reader = _Reader()
    for record in records:
        kind = record["k"]
        if kind == "event":
            reader.event(record["e"])
            continue
        reader.history.until = max(reader.history.until, record["at"])
        if kind == "snapshot":
            reader.snapshot(record)
        elif record["d"] is not None:
            reader.change(record["d"], record["at"])
        reader.signs.clear()
    return reader.history


class _Reader:
    def __init__(self) -> None:
        self.history = JobHistory()
        self.signs: dict[RankKey, float] = {}
        """(role, index of a host) -> its last sign of life, of hosts that the present events report as lost."""
        self._detect: dict[str, int] = defaultdict(int)
        """Role -> total of its `detect` account."""
        self._hosts: dict[str, int] = defaultdict(int)
        """Role -> its number of hosts without the store of a torch world."""
        self._open: dict[int, IncidentRecord] = {}
        self._chunks: list[str] = []

    def event(self, event: Mapping[str, Any]) -> None:
        """Keep the sign of life that an event reports; its effect is in the change that follows."""
        if event["t"] == "HostLost" and event.get("seen") is not None:
            self.signs[event["host"]["role"], event["host"]["index"]] = event["seen"]

    def snapshot(self, record: Record) -> None:
        """Take over a whole state, as far as it differs: after a gap it says what became of the ranks."""
        self._chunks = [*self._chunks, record["d"]] if record["i"] else [record["d"]]
        if len(self._chunks) != record["of"]:
            return
        state = json.loads("".join(self._chunks))
        self._chunks = []
        history = self.history
        history.started = state["started_at"]
        self._hosts.clear()
        for host, _ in state["hosts"]:
            self._hosts[host["role"]] += host["index"] >= 0
        for (role, rank), (account, since) in state["ledger"]["clocks"]:
            self._move((role, rank), since, account)
        self._books(state["ledger"]["books"])
        history.units.update({name: unit["node"] for name, unit in state["units"] if unit["node"]})
        history.nodes.update({node["id"]: node for node in state["nodes"]})
        history.faults.update({fault["id"]: fault for fault in state["faults"]})
        going = {number for number, _ in state["incidents"]}
        for number, row in state["incidents"]:
            self._incident(number, row)
        for number in [number for number in self._open if number not in going]:
            self._open.pop(number).ended = record["at"]

    def change(self, change: list[Any], at: float) -> None:
        """Apply the change of one batch of events."""
        fields: dict[str, list[Any]] = change[1]
        if "hosts" in fields:
            for host, own in fields["hosts"][1]:
                self._hosts[host["role"]] += own[0] == "v" and host["index"] >= 0
        if "units" in fields:
            for name, own in fields["units"][1]:
                if (node := _value(own, "node")) is not None and node:
                    self.history.units[name] = node
        if "nodes" in fields:
            self.history.nodes.update({node["id"]: node for node in _items(fields["nodes"])})
        if "faults" in fields:
            self.history.faults.update({fault["id"]: fault for fault in _items(fields["faults"])})
        if "incidents" in fields:
            self._incidents(fields["incidents"], at)
        if "ledger" in fields:
            self._ledger(fields["ledger"][1])

    def _incidents(self, change: list[Any], at: float) -> None:
        for number, own in change[1]:
            if own[0] == "v":
                self._incident(number, own[1])
            elif number in self._open:
                row = self._open[number]
                row.faults += [fault for fault in _items(own[1].get("faults")) if fault not in row.faults]
                row.members += [
                    key for role, rank in _items(own[1].get("members")) if (key := (role, rank)) not in row.members
                ]
        for number in change[2]:
            if number in self._open:
                self._open.pop(number).ended = at

    def _incident(self, number: int, row: Mapping[str, Any]) -> None:
        if number not in self._open:
            members = [(role, rank) for role, rank in row["members"]]
            own = IncidentRecord(row["detected"], row["role"], members, list(row["faults"]))
            self._open[number] = own
            self.history.incidents.append(own)

    def _ledger(self, change: Mapping[str, Any]) -> None:
        clocks = change.get("clocks")
        if clocks is None:
            return
        before = dict(self._detect)
        if "books" in change:
            self._books([[key, own[1]] for key, own in change["books"][1]])
        grown = {role: total - before.get(role, 0) for role, total in self._detect.items() if total != before.get(role)}
        moved: dict[str, list[tuple[int, Stretch, int]]] = defaultdict(list)
        for (role, rank), own in clocks[1]:
            # A clock is a pair, which is no array of one kind: it is written whole.
            account, since = own[1]
            lane = self.history.lanes.get((role, rank))
            if role in grown and lane and lane[-1].account in LIVE:
                moved[role].append((rank, lane[-1], since))
            self._move((role, rank), since, account)
        for role, rank in clocks[2]:
            self._move((role, rank), change.get("at", ["v", self._last((role, rank))])[1], "")
        for role, amount in grown.items():
            self._detected(role, amount, moved[role])

    def _books(self, rows: Iterable[Any]) -> None:
        for (role, account), own in rows:
            if account == DETECT and (total := _value(["d", own], "total")) is not None:
                self._detect[role] = total

    def _detected(self, role: str, amount: int, moved: list[tuple[int, Stretch, int]]) -> None:
        """Insert the time between the last sign of life and the report of a loss, as the ledger booked it."""
        lost = [(rank, was, at, self._sign(role, rank)) for rank, was, at in moved]
        known = [(rank, was, at, sign) for rank, was, at, sign in lost if sign is not None]
        for rank, was, at, sign in known:
            begin = max(was.at, min(sign, at))
            amount -= at - begin
            self._insert((role, rank), begin, at)
        # Nodes that froze or went, and hangs: their ranks had the same last sign, and share what the account grew by.
        rest = [(rank, was, at) for rank, was, at, sign in lost if sign is None]
        if amount > 0 and rest and not known:
            for rank, was, at in rest:
                self._insert((role, rank), max(was.at, at - amount // len(rest)), at)

    def _sign(self, role: str, rank: int) -> int | None:
        hosts = self._hosts[role] or 1
        ranks = sum(1 for own, _ in self.history.lanes if own == role) if self.signs else 1
        seen = self.signs.get((role, rank // max(1, ranks // hosts)))
        return None if seen is None else round((seen - self.history.started) * 1e6)

    def _insert(self, key: RankKey, begin: int, at: int) -> None:
        lane = self.history.lanes[key]
        # The stretch that the loss began stands last.
        place = len(lane) - 1
        if begin < at == lane[place].at:
            keep = place - 1 if lane[place - 1].at == begin else place
            lane[keep:place] = [Stretch(begin, DETECT)]

    def _last(self, key: RankKey) -> int:
        lane = self.history.lanes.get(key)
        return lane[-1].at if lane else 0

    def _move(self, key: RankKey, at: int, account: str) -> None:
        lane = self.history.lanes.setdefault(key, [])
        if lane and lane[-1].account == account and lane[-1].at >= at:
            return
        # The ledger's own time never goes back, whatever the clock does.
        if lane and lane[-1].at >= at:
            lane[-1] = Stretch(lane[-1].at, account)
        elif not lane or lane[-1].account != account:
            lane.append(Stretch(at, account))


def _value(change: Any, name: str) -> Any:  # noqa: ANN401 - JSON
    """Return the new value of a field of a row that is new or changed; None: it is as before."""
    if change[0] == "v":
        return change[1].get(name)
    own: Any = change[1].get(name)
    # A row of the books arrives whole, or as changes of its fields.
    return cast("list[Any]", own)[1] if isinstance(own, list) else own


def _items(change: Any) -> list[Any]:  # noqa: ANN401 - JSON
    """Return the new items of an array."""
    if change is None:
        return []
    return cast("list[Any]", change[1] if change[0] == "v" else change[3])
