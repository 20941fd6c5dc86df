"""Faults that can be made here, on a real Ray: which first cause the job's status names, and what it lists under it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from host_kit import alive
from prime_help import USERS, Job, eventually

pytestmark = pytest.mark.ray


@pytest.fixture
def small_group() -> Any:
    """A memory control group of 64 MiB, where this machine lets us make one."""
    folder = Path(f"/sys/fs/cgroup/memory/dljob-ray-{os.getpid()}")
    try:
        folder.mkdir()
        (folder / "memory.limit_in_bytes").write_text(str(64 << 20))
    except OSError as error:
        pytest.skip(f"no memory control group can be made: {error}")
    yield folder
    eventually(lambda: not (folder / "cgroup.procs").read_text(), 10, lambda: "somebody is left in the group")
    folder.rmdir()


def script(**more: Any) -> dict[str, Any]:
    entry = {"module": str(USERS / "causes_user.py")}
    return {"name": "w", "entrypoint": entry, "resources": {"cpu": "0.25"}, **more}


def do(job: Job, what: str) -> None:
    (job.folder / "do.new").write_text(what)
    (job.folder / "do.new").rename(job.folder / "do")


def fault(job: Job, reason: str, within: float = 30) -> dict[str, Any]:
    """The last fault, once it has this reason."""

    def found() -> dict[str, Any]:
        last = job.connection.status().get("lastFault") or {}
        return last if last.get("reason") == reason else {}

    return eventually(found, within, job.seen)


def healed(job: Job, *ranks: str) -> None:
    job.running(*ranks, incarnation={"w/1": 2})
    job.go()
    assert job.connection.wait(60)["phase"] == "Succeeded"


@pytest.mark.parametrize(
    ("what", "reason", "evidence"),
    [
        ("exit", "UserError", "exit code 3"),
        ("raise", "UserError", "LookupError: nothing under that name"),
        ("segfault", "UserError", "exit code 139"),
        ("kill", "Killed", "exit code 137"),
        ("limit", "UserError", "MemoryError"),
    ],
)
def test_the_cause_of_a_scripts_end_is_named_with_its_evidence(job: Job, what: str, reason: str, evidence: str) -> None:
    job.start(script(replicas=2))
    job.running("w/0", "w/1")
    do(job, what)
    told = fault(job, reason)
    assert told["target"] == "w/1"
    assert any(evidence in line for line in [told["firstCause"], *told["evidence"]])
    assert told["followed"] == []
    healed(job, "w/0", "w/1")


def test_a_killed_fork_host_takes_its_rank_along_and_is_told_as_the_cause(job: Job) -> None:
    job.start(script(replicas=2))
    pids = job.running("w/0", "w/1")
    os.kill(job.host_pid("w/1"), signal.SIGKILL)
    told = fault(job, "Killed")
    assert told["target"] == "w/1"
    assert told["firstCause"] == "w/1: Killed: ended by SIGKILL, exit code 137"
    assert told["followed"] == []
    eventually(lambda: not alive(pids["w/1"]), 30, job.seen)
    assert alive(pids["w/0"])
    healed(job, "w/0", "w/1")


def test_a_rank_killed_by_its_control_groups_memory_limit_is_told_as_oomkilled(job: Job, small_group: Path) -> None:
    job.start(script(replicas=2, env=[{"name": "SMALL_GROUP", "value": str(small_group)}]))
    job.running("w/0", "w/1")
    do(job, "hog")
    told = fault(job, "OOMKilled")
    assert "Killed process" in told["firstCause"]
    healed(job, "w/0", "w/1")


def test_a_missing_module_fails_the_job_with_the_import_error(job: Job, tmp_path: Path) -> None:
    code = tmp_path / "broken.py"
    code.write_text("import tokenisers_that_nobody_has\n")
    job.start({**script(replicas=2), "entrypoint": {"module": str(code)}})
    status = job.connection.wait(60)
    assert (status["phase"], status["reason"]) == ("Failed", "UserErrorRepeats")
    assert status["lastFault"]["reason"] == "ImportError"
    assert "tokenisers_that_nobody_has" in status["lastFault"]["firstCause"]
