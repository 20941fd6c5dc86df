"""A job's history, folded from the `change` records of its journal. No I/O.

Changes are the new values of fields, so this needs no code of the master: it also reads what another version wrote.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from dljob.linux.plain_files import parse_json
from dljob.telemetry.records import Record

_KINDS = re.compile(
    rb'"r":\{"k":"(?:change|snapshot|event","at":[-+.e\d]+,"e":\{"t":"(?:HostLost|NodeFrozen|NodesSeen|HangFound))"'
)
_NONE_LOST = b'"silent":[]'
"""Part of a list of nodes of which none is lost; it is long, and often written."""
DETECT, STALLED, PRODUCTIVE, INIT = "detect", "stalled", "productive", "init"
_LIVE = ("Starting", "Ready", "Stopping")
"""Phases of ranks that have a process: a loss that is found later moves their last seconds to `detect`."""
_STORE = -1
"""Index of the host of a torch world's store."""
_NODE_LOST = "NodeLost"

RankKey = tuple[str, int]
HostKey = tuple[str, int]
"""(role, index)."""


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


def is_needed(line: bytes) -> bool:
    """Whether a line of a journal has anything for a history; most have not, and need not be parsed."""
    return _KINDS.search(line, 0, 160) is not None and _NONE_LOST not in line


def fold(records: Iterable[Record]) -> JobHistory:
    """Return the history that the records tell, oldest first."""
    reader = HistoryReader()
    for record in records:
        reader.take(record)
    return reader.history


class HistoryReader:
    """Reads the records of a journal one by one, those of needed lines; `history` is what they tell so far."""

    def __init__(self) -> None:
        self.history = JobHistory()
        self.touched: dict[RankKey, int] = {}
        """Rank -> number of its stretches that are as they were when this was last cleared; others are new."""
        self.signs: dict[HostKey | str, float] = {}
        """Host or node -> its last sign of life (unix seconds), where the present events report a loss."""
        self._hosts: dict[HostKey, str] = {}
        """Host -> its node."""
        self._per_host: dict[str, int] = {}
        """Role -> ranks of each of its hosts, where it was counted."""
        self._phases: dict[RankKey, str] = {}
        self._open: dict[int, IncidentRecord] = {}
        self._chunks: list[str] = []

    def take(self, record: Record) -> None:
        """Take the next record."""
        kind = record["k"]
        if kind == "event":
            self._event(record["e"], record["at"])
            return
        self.history.until = max(self.history.until, record["at"])
        if kind == "snapshot":
            self._snapshot(record)
        elif record["d"] is not None:
            self._change(record["d"], record["at"])
        self.signs.clear()

    def _event(self, event: Mapping[str, Any], at: float) -> None:
        """Keep the signs of life that an event reports; its effect is in the change that follows."""
        match event["t"]:
            case "HostLost" if event.get("seen") is not None:
                host = event["host"]["role"], event["host"]["index"]
                self.signs[host] = event["seen"]
                # A lost node takes its other hosts along: they gave their last sign of life then, too.
                if event["outcome"]["reason"] == _NODE_LOST and (node := self._hosts.get(host)):
                    self.signs[node] = event["seen"]
            case "NodeFrozen":
                self.signs[event["node"]] = at - event["silent_s"]
            case "NodesSeen":
                self.signs.update(cast("list[tuple[str, float]]", event["silent"]))
            case "HangFound":
                role, host = event["role"], self._host(event["role"], event["rank"])
                # In a torch world its peers wait for it, so they stand still as long as it does.
                still = event["whole"] or (role, _STORE) in self._hosts
                hosts = [key for key in self._hosts if key[0] == role] if still else [host]
                self.signs.update((key, at - event["silent_s"]) for key in hosts)
            case _:
                pass

    def _snapshot(self, record: Record) -> None:
        """Take over a whole state, as far as it differs: after a gap it says what became of the ranks."""
        self._chunks = [*self._chunks, record["d"]] if record["i"] else [record["d"]]
        if len(self._chunks) != record["of"]:
            return
        state = parse_json("".join(self._chunks))
        self._chunks = []
        history = self.history
        history.started = state["started_at"]
        self._put_hosts([host, ["v", fields]] for host, fields in state["hosts"])
        self._phases = {(role, rank): fields["phase"] for (role, rank), fields in state["ranks"]}
        for (role, rank), (account, since) in state["ledger"]["clocks"]:
            self._move((role, rank), since, account)
        history.units.update({name: unit["node"] for name, unit in state["units"] if unit["node"]})
        history.nodes.update({node["id"]: node for node in state["nodes"]})
        history.faults.update({fault["id"]: fault for fault in state["faults"]})
        for number, row in state["incidents"]:
            self._incident(number, row)
        going = {number for number, _ in state["incidents"]}
        for number in [number for number in self._open if number not in going]:
            self._open.pop(number).ended = record["at"]

    def _change(self, change: list[Any], at: float) -> None:
        """Apply the change of one batch of events."""
        fields: dict[str, list[Any]] = change[1]
        # First the ledger: what it says about a loss goes by the hosts and ranks as they were before.
        if "ledger" in fields:
            self._ledger(fields["ledger"][1])
        if "hosts" in fields:
            self._put_hosts(fields["hosts"][1])
        for (role, rank), delta in fields["ranks"][1] if "ranks" in fields else ():
            if (phase := _value(delta, "phase")) is not None:
                self._phases[role, rank] = phase
        for name, delta in fields["units"][1] if "units" in fields else ():
            if node := _value(delta, "node"):
                self.history.units[name] = node
        self.history.nodes.update({node["id"]: node for node in _items(fields.get("nodes"))})
        self.history.faults.update({fault["id"]: fault for fault in _items(fields.get("faults"))})
        if "incidents" in fields:
            self._incidents(fields["incidents"], at)

    def _put_hosts(self, rows: Iterable[Any]) -> None:
        for host, delta in rows:
            key = host["role"], host["index"]
            if key not in self._hosts:
                self._per_host.clear()
            node = _value(delta, "node")
            self._hosts[key] = self._hosts.get(key, "") if node is None else node

    def _incidents(self, change: list[Any], at: float) -> None:
        for number, delta in change[1]:
            if delta[0] == "v":
                self._incident(number, delta[1])
                continue
            row = self._open[number]
            row.faults += [fault for fault in _items(delta[1].get("fault_numbers")) if fault not in row.faults]
            members = [(role, rank) for role, rank in _items(delta[1].get("members"))]
            row.members += [key for key in members if key not in row.members]
        for number in change[2]:
            self._open.pop(number).ended = at

    def _incident(self, number: int, row: Mapping[str, Any]) -> None:
        if number not in self._open:
            members = [(role, rank) for role, rank in row["members"]]
            incident = IncidentRecord(row["detected_at"], row["role"], members, list(row["fault_numbers"]))
            self._open[number] = incident
            self.history.incidents.append(incident)

    def _ledger(self, change: Mapping[str, Any]) -> None:
        clocks = change.get("clocks")
        for (role, rank), delta in clocks[1] if clocks else ():
            # A clock is a pair, no array of items of one kind: it is written whole.
            account, since = delta[1]
            self._move((role, rank), since, account, self._lost((role, rank)) if self.signs else None)
        for role, rank in clocks[2] if clocks else ():
            self._move((role, rank), change["at"][1] if "at" in change else 0, "")

    def _lost(self, key: RankKey) -> int | None:
        """Return the last sign of life of a rank that the present events report as lost, in ledger time."""
        if self._phases.get(key) not in _LIVE:
            return None
        host = self._host(*key)
        # The host's own sign is more exact than that of its node.
        sign = self.signs.get(host, self.signs.get(self._hosts.get(host, "")))
        return None if sign is None else round((sign - self.history.started) * 1e6)

    def _host(self, role: str, rank: int) -> HostKey:
        """Return the host of a rank: a role's ranks are spread over its hosts evenly, and in order."""
        if role not in self._per_host:
            ranks = sum(1 for role_name, _ in self._phases if role_name == role)
            hosts = sum(1 for role_name, index in self._hosts if role_name == role and index != _STORE)
            self._per_host[role] = max(1, ranks // max(1, hosts))
        return role, rank // self._per_host[role]

    def _move(self, key: RankKey, at: int, account: str, lost: int | None = None) -> None:
        lane = self.history.lanes.setdefault(key, [])
        self._redate(key, lane, at, account)
        if lane and (lane[-1].account == account or lane[-1].at > at):
            return
        if lane and lost is not None and lost < at:
            # The time since its last sign of life was booked to `detect`, as the ledger does it.
            self._put(key, Stretch(max(lane[-1].at, lost), DETECT))
        self._put(key, Stretch(at, account))

    def _redate(self, key: RankKey, lane: list[Stretch], at: int, account: str) -> None:
        """Correct the past where a clock says that a stall, or a process's first work, began or ended at another time.

        The ledger gives back the time of a stall that ended by itself, and takes what came before the first work.
        """
        if lane and lane[-1].account == STALLED and (at < lane[-1].at or (account == STALLED and at != lane[-1].at)):
            self.touched[key] = min(len(lane) - 1, self.touched.get(key, len(lane) - 1))
            lane.pop()
        if lane and lane[-1].account == account == PRODUCTIVE and at > lane[-1].at:
            self.touched[key] = min(len(lane) - 1, self.touched.get(key, len(lane) - 1))
            lane[-1] = Stretch(lane[-1].at, INIT)

    def _put(self, key: RankKey, stretch: Stretch) -> None:
        """Append a stretch; one that begins with the last one replaces it, and joins the one before if it is equal."""
        lane = self.history.lanes[key]
        if lane and lane[-1].at == stretch.at:
            lane.pop()
        self.touched[key] = min(len(lane), self.touched.get(key, len(lane)))
        if not lane or lane[-1].account != stretch.account:
            lane.append(stretch)


def _value(change: Any, name: str) -> Any:  # noqa: ANN401 - JSON
    """Return the new value of a field of a row that is new or changed; None: it is as before."""
    if change[0] == "v":
        return change[1].get(name)
    value: Any = change[1].get(name)
    # A row of the books arrives whole, or as changes of its fields.
    return cast("list[Any]", value)[1] if isinstance(value, list) else value


def _items(change: Any) -> list[Any]:  # noqa: ANN401 - JSON
    """Return the new items of an array."""
    if change is None:
        return []
    return cast("list[Any]", change[1] if change[0] == "v" else change[3])
