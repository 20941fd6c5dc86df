"""The folder of a simulated job, with a journal as PrimeMaster writes one."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from dljob.master.persistence.codec import encode_state, event_record, snapshot_records
from dljob.master.state.actions import Note
from dljob.master.state.events import Event, MasterStarted
from dljob.master.state.state import JobState
from dljob.master.transition import transition
from dljob.report.replay import Past
from dljob.runtime.controller.rebuild import change_record
from dljob.runtime.journal.code_version import code_version
from dljob.telemetry.records import Header, Record, encode_line
from dljob.testing.simulate.drive import Case, Driver, Durations
from dljob.testing.world.state import UID

CLASS = {"class": "pkg.Class"}
WORKERS: dict[str, Any] = {
    "apiVersion": "dljob.io/v1alpha1",
    "kind": "DLJob",
    "metadata": {"name": "past"},
    "spec": {"roles": [{"name": "w", "replicas": 2, "entrypoint": CLASS, "restartPolicy": {"maxRestarts": 50}}]},
}


@dataclass
class PastJob:
    """What a job's folder was made of: its events with the state behind each, by its real time."""

    folder: Path
    states: list[str] = field(default_factory=list[str])
    """The state behind each event, as PrimeMaster encodes it; first the initial one."""
    times: list[float] = field(default_factory=list[float])
    seqs: list[int] = field(default_factory=list[int])


class Writer:
    """Writes segments as the journal does: each with a header, and with a snapshot at its start."""

    def __init__(self, journal: Path, core: str) -> None:
        self.journal, self.core = journal, core
        journal.mkdir(parents=True)
        self.number = self.lines = 0
        self.prev: tuple[str, int] | None = None
        self.path = journal

    def roll(self) -> None:
        if self.number:
            self.prev = (f"{self.number:06d}", self.path.stat().st_size)
        self.number, self.lines = self.number + 1, 0
        self.path = self.journal / f"{self.number:06d}.jsonl"
        self.write(Header(self.number, self.prev, core=self.core).record())

    def write(self, *records: Record) -> None:
        with self.path.open("ab") as file:
            for record in records:
                file.write(encode_line(self.lines, record))
                self.lines += 1


def encoded(state: JobState) -> str:
    """The bytes of a state, as in a snapshot."""
    return json.dumps(encode_state(state), separators=(",", ":"))


def past_of(
    folder: Path,
    case: Case,
    *,
    core: str = "",
    every: int = 40,
    closed: int = 0,
    work: float = 0.0,
    edit: Callable[[Event], Iterable[Event]] = lambda event: (event,),
) -> PastJob:
    """Make the folder of a simulated job: `every` so many events a segment, the first `closed` of them closed.

    `work`: seconds that user code runs; 0: drawn. `edit`: what becomes of each event of the simulation.
    """
    driver = Driver(case, pace=Durations(work=(work, work)) if work else None)
    driver.run()
    world = driver.world
    journal = ((at, made) for at, event in world.journal for made in edit(event))
    return written(folder, case, world.begin, journal, core=core, every=every, closed=closed)


def written(
    folder: Path,
    case: Case,
    state: JobState,
    journal: Iterable[tuple[float, Event]],
    *,
    core: str = "",
    every: int,
    closed: int = 0,
    light: bool = False,
) -> PastJob:
    """Make the folder of a job with these events; `light`: the states are not kept."""
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(json.dumps(case.manifest))
    (folder / "status.json").write_text(json.dumps({"name": "past", "uid": UID}))
    writer = Writer(folder / "journal", core or code_version())
    seq, made = 0, PastJob(folder)
    facts = {"ownNodes": True} if case.own_nodes else {}
    writer.roll()
    writer.write({"k": "begin", "at": state.started_at, "plan": state.job.plan.digest, **facts})
    writer.write(*snapshot_records(state, state.started_at), {"k": "notes", "seq": 0, **facts})
    made.states, made.times, made.seqs = [encoded(state)], [state.started_at], [0]
    last, since = state.started_at, 0
    for at, batch in groupby(journal, key=lambda each: each[0]):
        events = [event for _, event in batch]
        restarted = any(isinstance(event, MasterStarted) and event.epoch > 1 for event in events)
        if since >= every or restarted:
            writer.roll()
            writer.write(*snapshot_records(state, last), {"k": "notes", "seq": seq, **facts})
            since = 0
        before, actions = state, list[Any]()
        for event in events:
            step = transition(state, event, at)
            state = step.state
            actions += step.actions
            seq += sum(isinstance(action, Note) for action in step.actions)
            writer.write(event_record(event, at))
            made.states.append("" if light else encoded(state))
            made.times.append(at)
            made.seqs.append(seq)
        writer.write(change_record(before, state, actions, at))
        last, since = at, since + len(events)
    _close(folder / "journal", closed)
    return made


def check_past(folder: Path) -> list[str]:
    """Check that a replay's states are those that the master itself wrote; return them, as encoded.

    The master writes each batch's change of its own state: laid onto its snapshots they give its states, folded or not.
    """
    wrote = {each.at: encoded(each.state) for each in Past(folder, core="none").states()}
    found = {each.at: encoded(each.state) for each in Past(folder).states()}
    assert found == wrote
    for path in sorted((folder / "journal").glob("*.jsonl")):
        records = [json.loads(line)["r"] for line in path.read_bytes().splitlines()]
        texts = "".join(record["d"] for record in records if record["k"] == "snapshot")
        starts = texts.split('{"v":3,"phase":')[1:]
        assert all(f'{{"v":3,"phase":{text}' in found.values() for text in starts)
    return list(found.values())


def _close(journal: Path, count: int) -> None:
    for path in sorted(journal.glob("*.jsonl"))[:count]:
        (journal / "closed").mkdir(exist_ok=True)
        (journal / "closed" / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
