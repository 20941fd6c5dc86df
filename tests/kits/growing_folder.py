"""Folder of a simulated job that grows event by event, as a PrimeMaster writes it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from simulated_folder import UID, note_line, of_actions

from dljob.master.persistence.codec import event_record, snapshot_records
from dljob.master.status import status
from dljob.master.transition import transition
from dljob.runtime.controller.rebuild import change_record
from dljob.runtime.journal.record_files import record_news
from dljob.runtime.journal.timeline import write_atomically
from dljob.telemetry.records import Header, Record, encode_header, encode_line
from dljob.testing.simulate.drive import Case, Driver


class GrowingFolder:
    """The events of a case that was driven to its end are written when `step` says so."""

    def __init__(self, path: Path, case: Case, driver: Driver | None = None) -> None:
        self.driver = driver or Driver(case)
        if driver is None:
            self.driver.run()
        self.path = path
        self.state = self.driver.world.begin
        self.left = list(self.driver.world.journal)
        self.seq = self.number = self.size = self.lines = 0
        (path / "journal").mkdir(parents=True)
        manifest: dict[str, Any] = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", **case.manifest}
        (path / "spec.json").write_text(json.dumps(manifest))
        (path / "events.jsonl").touch()
        self.segment()
        self.status()

    def segment(self) -> None:
        """Begin a segment, as a successor or a rolled journal does."""
        prev = (f"{self.number:06d}", self.size) if self.number else None
        self.number, self.size, self.lines = self.number + 1, 0, 1
        head = encode_header(Header(self.number, prev, core="a test"))
        self.part.write_bytes(head)
        self.size = len(head)
        self._write(list(snapshot_records(self.state, self.left[0][0] if self.left else self.state.started_at)))

    @property
    def part(self) -> Path:
        """The segment that is written."""
        return self.path / "journal" / f"{self.number:06d}.jsonl"

    def step(self, count: int = 1, *, status: bool = True) -> None:
        """Write the next events, and the status behind them."""
        for at, event in self.left[:count]:
            after = transition(self.state, event, at)
            self._write([event_record(event, at), change_record(self.state, after.state, after.actions, at)])
            self.state = after.state
            notes = [note_line(note, self.seq + i, at) for i, note in enumerate(of_actions(after.actions), 1)]
            self.seq += len(notes)
            with (self.path / "events.jsonl").open("a") as file:
                file.writelines(f"{json.dumps(note)}\n" for note in notes)
        self.left = self.left[count:]
        if status:
            self.status()

    def status(self) -> None:
        """Write the status."""
        at = self.state.ended_at or (self.left[0][0] if self.left else self.driver.world.now)
        write_atomically(self.path / "status.json", json.dumps({**status(self.state, at, {}), "uid": UID}))

    def _write(self, records: list[Record]) -> None:
        data = b"".join(encode_line(self.lines + i, record) for i, record in enumerate(records))
        with self.part.open("ab") as file:
            file.write(data)
        self.lines += len(records)
        self.size += len(data)


def record_answer(folder: Path, question: dict[str, int]) -> dict[str, Any]:
    """Return what a gateway answers of a folder."""
    news = record_news(str(folder), question)
    parts = [{"file": p.name, "from": p.offset, "data": base64.b64encode(p.data).decode()} for p in news.parts]
    return {"files": news.files, "parts": parts}
