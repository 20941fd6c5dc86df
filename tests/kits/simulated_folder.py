"""Folder of a simulated job: journal, status, events and spec as a PrimeMaster would have written them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dljob.master.persistence.codec import event_record, snapshot_records
from dljob.master.state.actions import Note
from dljob.master.state.state import JobState
from dljob.master.status import status
from dljob.master.transition import transition
from dljob.runtime.controller.rebuild import change_record
from dljob.telemetry.records import Header, Record, encode_header, encode_line
from dljob.testing.simulate.drive import Case, Driver, Durations

UID = "0123456789abcdef0123456789abcdef"


def simulated(folder: Path, case: Case, pace: Durations | None = None, *, segments: int = 1) -> JobState:
    """Drive a case to its end, and write the folder of its job; return its last state."""
    driver = Driver(case, pace=pace)
    driver.run()
    return written(folder, driver, case.manifest, segments)


def written(folder: Path, driver: Driver, manifest: Mapping[str, Any], segments: int = 1) -> JobState:
    """Write what a driver's PrimeMaster journaled; each further segment begins with a snapshot, as after a death."""
    world, state = driver.world, driver.world.begin
    (folder / "journal").mkdir(parents=True)
    every = len(world.journal) // segments + 1
    notes: list[dict[str, Any]] = []
    prev: tuple[str, int] | None = None
    for number in range(1, segments + 1):
        part = world.journal[(number - 1) * every : number * every]
        at = part[0][0] if part else state.started_at
        records: list[Record] = list(snapshot_records(state, at))
        for at, event in part:
            step = transition(state, event, at)
            records += [event_record(event, at), change_record(state, step.state, step.actions, at)]
            state = step.state
            notes += [note_line(note, len(notes) + i, at) for i, note in enumerate(of_actions(step.actions), 1)]
        prev = _segment(folder, number, prev, records)
    ended = state.ended_at or world.now
    manifest = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", **manifest}
    (folder / "status.json").write_text(json.dumps({**status(state, ended, {}), "uid": UID}))
    (folder / "spec.json").write_text(json.dumps(manifest))
    (folder / "events.jsonl").write_text("".join(f"{json.dumps(note)}\n" for note in notes))
    return state


def of_actions(actions: object) -> list[Note]:
    return [action for action in actions if isinstance(action, Note)]  # type: ignore[attr-defined]


def note_line(note: Note, seq: int, at: float) -> dict[str, Any]:
    return {"seq": seq, "time": round(at, 3), "reason": note.reason, "target": note.target, "message": note.message}


def _segment(folder: Path, number: int, prev: tuple[str, int] | None, records: list[Record]) -> tuple[str, int]:
    name = f"{number:06d}"
    lines = [encode_header(Header(number, prev, core="a test")), *map(encode_line, range(1, 10**9), records)]
    data = b"".join(lines)
    (folder / "journal" / f"{name}.jsonl").write_bytes(data)
    return name, len(data)
