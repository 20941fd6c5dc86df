"""The final status of a job whose Ray or runner ended, in its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dljob.api import registry
from dljob.api.local import final_status
from dljob.api.local.final_status import AbruptEnd, ray_end, with_end, write_end
from dljob.master.state.views import Clue
from dljob.telemetry.process_ends import ProcessEnd

UID = "01234567" * 4
HEALED = {
    "level": "Process",
    "reason": "Killed",
    "firstCause": "worker/0: Killed",
    "recoveredAt": "2026-01-01T00:01:00Z",
}
RUNNING: dict[str, Any] = {
    "name": "job", "uid": UID, "phase": "Running", "reason": "Running", "message": "", "version": 7, "seconds": 3.0,
    "startTime": "2026-01-01T00:00:00Z", "recentFaults": [HEALED], "lastFault": HEALED,
    "roles": [{"name": "worker", "desired": 2, "ready": 1, "running": 1, "succeeded": 1}],
    "ranks": [{"phase": "Ready", "pid": 5}, {"phase": "Succeeded", "pid": 0}],
}  # fmt: skip
END = AbruptEnd("Failed", "RayLost", "the raylet was ended", ("a line",), at=1767225700.0)


def test_the_end_of_its_ray_is_the_first_cause_and_not_an_older_healed_failure() -> None:
    status = with_end(RUNNING, END)
    assert (status["phase"], status["reason"], status["message"]) == ("Failed", "RayLost", "the raylet was ended")
    assert (status["completionTime"], status["seconds"], status["version"]) == ("2026-01-01T00:01:40Z", 100.0, 8)
    assert status["recentFaults"][0] == HEALED
    assert status["lastFault"]["firstCause"] == "RayLost: the raylet was ended"
    assert not status["lastFault"].get("recoveredAt")
    assert [(rank["phase"], rank["pid"]) for rank in status["ranks"]] == [("Stopped", 0), ("Succeeded", 0)]
    assert status["roles"][0] | {"ready": 0, "running": 0} == status["roles"][0]


def test_an_ordered_end_is_no_failure() -> None:
    status = with_end(RUNNING, AbruptEnd("Stopped", "StoppedByUser", "stopped", is_failure=False))
    assert (status["lastFault"], status["completionTime"], status["seconds"]) == (HEALED, None, 3.0)


def test_a_final_status_is_written_once_with_its_event(tmp_path: Path) -> None:
    record = registry.RegistryEntry("job", UID, str(tmp_path))
    (tmp_path / "events.jsonl").write_text('{"seq": 4, "time": 1.0, "reason": "Admitted"}\n')
    write_end(record, END)
    write_end(record, AbruptEnd("Failed", "RunnerFailed", "later"))
    assert record.status()["reason"] == "RayLost", "a job without a status yet gets one, and keeps it"
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [(event["seq"], event["reason"]) for event in events] == [(4, "Admitted"), (5, "RayLost")]


def test_a_job_that_primemaster_ended_gets_no_other_end_where_its_status_found_no_room(tmp_path: Path) -> None:
    record = registry.RegistryEntry("job", UID, str(tmp_path))
    (tmp_path / "status.json").write_text(json.dumps(RUNNING))
    events = '{"seq": 4, "time": 1.0, "reason": "StoppedByUser", "target": "job"}\n{"seq": 5, "reason": "Released"}\n'
    (tmp_path / "events.jsonl").write_text(events)
    last_status = {**RUNNING, "phase": "Stopped", "reason": "StoppedByUser", "message": "stopped by pid 7"}
    write_end(record, END, last_status)
    assert record.status() == last_status
    assert (tmp_path / "events.jsonl").read_text() == events
    write_end(record, END)
    assert record.status() == last_status


def test_a_job_that_was_still_stopping_when_its_processes_were_killed_is_told_so(tmp_path: Path) -> None:
    record = registry.RegistryEntry("job", UID, str(tmp_path))
    write_end(record, END, {**RUNNING, "phase": "Stopping"})
    assert record.status()["reason"] == END.reason


@pytest.mark.parametrize(("lines", "reason"), [((), "RayLost"), (("Out of memory: Killed process 7",), "OOMKilled")])
def test_a_raylet_that_the_kernel_killed_for_memory_is_told_so(
    lines: tuple[str, ...], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(final_status.evidence, "of_the_dead", lambda pid: [Clue("kernel", line) for line in lines])
    end = ray_end(ProcessEnd("raylet", "the head", 7, 9), tmp_path / "ray", tmp_path, 5.0)
    assert (end.reason, end.evidence, end.at) == (reason, lines, 5.0)
    assert end.message == "the raylet (pid 7) of the head was ended by SIGKILL from outside"
