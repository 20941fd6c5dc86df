"""A PrimeMaster of another version than the one before it, on a real Ray: what it can read goes on as it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from prime_help import Job, eventually

from dljob.runtime.journal.code_version import code_version
from dljob.telemetry import reasons
from dljob.telemetry.records import encode_line, scan

pytestmark = pytest.mark.ray

OTHER = "0.0.9 0123456789ab"


def written_by_another(job: Job, alter: Callable[[dict[str, Any]], object] = lambda _: None) -> None:
    """The journal, as if another version had written it; `alter` may change the state of its snapshots."""
    (path,) = job.segments()
    read = scan(path.read_bytes())
    assert read.header is not None
    assert read.header.core == code_version()
    records = [{**read.header.record(), "core": OTHER}, *map(dict, read.records)]
    for record in records:
        if record["k"] == "snapshot":
            state = json.loads(record["d"])
            alter(state)
            record["d"] = json.dumps(state)
    path.write_bytes(b"".join(encode_line(n, record) for n, record in enumerate(records)))


def start(job: Job) -> dict[str, int]:
    """Two workers, one of which was restarted; the pids."""
    role = job.role("worker", "prime_user.until_told", replicas=2)
    job.start(role, faultTolerance={"backoff": {"initialSeconds": 0}})
    job.running("worker/0", "worker/1")
    job.connection.command("restart", "worker/1")
    return job.running("worker/0", "worker/1", incarnation={"worker/1": 2})


def told(job: Job, reason: str) -> str:
    """The one note of that reason."""
    notes = lambda: [note["message"] for note in job.connection.notes() if note["reason"] == reason]  # noqa: E731
    (message,) = eventually(notes, 60, job.seen)
    return message


def test_ranks_keep_their_processes_under_a_master_of_another_version(job: Job) -> None:
    before = start(job)
    written_by_another(job)
    job.kill_master(before["master"])
    message = told(job, reasons.JOURNAL_TAKEN_OVER)
    assert (
        message
        == f"the journal is of dljob {OTHER}, this is dljob {code_version()}: its state goes on as it was written"
    )
    after = job.running("worker/0", "worker/1", incarnation={"worker/1": 2})
    assert {**after, "master": 0} == {**before, "master": 0}
    job.go()
    status = job.connection.wait(60)
    restarts = {name: count for name, count in status["restarts"].items() if count}
    assert (status["phase"], restarts) == ("Succeeded", {"process": 1, "master": 1})
    job.nothing_left()


def test_a_job_whose_journal_another_version_cannot_read_begins_anew(job: Job) -> None:
    before = start(job)
    written_by_another(job, lambda state: state.update(phase="Levitating", units=[["worker/0", {"token": 40}]]))
    job.kill_master(before["master"])
    # Above all numbers that were used: 40 in the snapshot, or 2 where a change of the units was written after it.
    ranks = lambda: {f"worker/{r['rank']}": r["incarnation"] for r in job.connection.status()["ranks"]}  # noqa: E731
    eventually(lambda: set(ranks().values()) in ({41}, {3}), 60, job.seen)
    after = job.running("worker/0", "worker/1", incarnation=ranks())
    assert not set(after.values()) & set(before.values())
    message = told(job, reasons.JOURNAL_NOT_TAKEN_OVER)
    assert "all ranks start again from their last checkpoints" in message
    status = job.connection.status()
    assert {name: count for name, count in status["restarts"].items() if count} == {"process": 1, "master": 1, "job": 1}
    assert "all ranks start again" in json.dumps(status["lastFault"])
    job.go()
    assert job.connection.wait(60)["phase"] == "Succeeded"
    job.nothing_left()
