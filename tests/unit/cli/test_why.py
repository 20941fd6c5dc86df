"""why: the first cause of a failure, from the status in a job's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dljob.api import registry
from dljob.api.local import views
from dljob.cli import main
from dljob.cli.diagnosis import diagnose
from dljob.master.state.views import Reason
from dljob.telemetry import reasons
from dljob.telemetry.remedies import FAULTS, VERDICTS, CauseKind, of_fault

UID = "a7efe1" * 5 + "00"
LOST: dict[str, Any] = {
    "level": "Role", "reason": "Network", "target": "trainer", "rank": "trainer/2", "incarnation": 3,
    "firstCause": "trainer/2: OOMKilled: ended by SIGKILL, exit code 137",
    "evidence": ["exit code 137", "kernel: Killed process 41 (python)"],
    "followed": ["trainer/0: Network: RuntimeError: Connection closed by peer"],
    "detectedAt": "2026-01-01T00:05:00Z", "recoveredAt": "2026-01-01T00:05:01Z", "seconds": 1.0, "lostSteps": 12,
}  # fmt: skip
RAISED: dict[str, Any] = {
    "level": "Fail", "reason": "UserError", "target": "actor/0", "rank": "actor/0", "incarnation": 2,
    "firstCause": "actor/0: UserError: ValueError: bad (at a.py:1 in m)",
    "evidence": [], "followed": [], "detectedAt": "2026-01-01T00:09:00Z", "recoveredAt": None, "seconds": None,
}  # fmt: skip


def status(
    phase: str, reason: str = "", message: str = "", faults: tuple[Any, ...] = (), **more: Any
) -> dict[str, Any]:
    return {
        "name": "ppo",
        "uid": UID,
        "phase": phase,
        "reason": reason,
        "message": message,
        "recentFaults": faults,
        **more,
    }


def explained(said: dict[str, Any]) -> tuple[CauseKind, list[str]]:
    job = views.overview(registry.RegistryEntry("ppo", UID, "/gone"), said)
    kind, lines = diagnose(job, "ppo", " -n team")
    assert len(lines) <= 20
    return kind, list(lines)


def test_a_failed_job_is_explained_by_the_fault_that_ended_it() -> None:
    said = status(
        "Failed", "UserErrorRepeats", "actor/0: ValueError: bad", (LOST, RAISED), restarts={"role": 1, "node": 0}
    )
    assert explained(said) == (
        CauseKind.USER_CODE,
        [
            "ppo (a7efe1a7): Failed: UserErrorRepeats: actor/0: ValueError: bad",
            "first cause: actor/0, incarnation 2, at 2026-01-01T00:09:00Z: UserError: ValueError: bad (at a.py:1 in m)",
            "done: the job ended",
            "restarts: 1 role",
            "earlier: 2026-01-01T00:05:00Z trainer/2: OOMKilled: ended by SIGKILL, exit code 137",
            "next: correct the code at the place that the error names, then run the job again",
            "      dljob logs ppo --role actor --rank 0 -n team",
        ],
    )


def test_the_kind_is_that_of_the_first_cause_and_not_of_its_echo() -> None:
    kind, lines = explained(status("Running", faults=(LOST,)))
    assert kind is CauseKind.MEMORY
    assert lines[2:6] == [
        "  evidence: exit code 137",
        "  evidence: kernel: Killed process 41 (python)",
        "  after it: trainer/0: Network: RuntimeError: Connection closed by peer",
        "done: trainer restarted at level Role; recovered in 1.0 s, 12 steps lost",
    ]


def test_a_verdict_is_not_blamed_on_a_fault_that_the_job_recovered_from() -> None:
    kind, lines = explained(status("Failed", reasons.DEADLINE_EXCEEDED, "after 60 s", (LOST,)))
    assert kind is CauseKind.SPEC
    assert lines[1].startswith("earlier: 2026-01-01T00:05:00Z trainer/2: OOMKilled")
    assert not any(line.startswith("first cause") for line in lines)


def test_a_fault_still_open_is_the_cause_of_an_exhausted_deadline() -> None:
    kind, lines = explained(status("Failed", reasons.DEADLINE_EXCEEDED, "after 60 s", (RAISED,)))
    assert (kind, lines[1].split(":")[0]) == (CauseKind.USER_CODE, "first cause")


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (status("Running"), CauseKind.NOTHING),
        (status("Succeeded"), CauseKind.NOTHING),
        (status("Running", faults=({**LOST, "reason": "Requested"},)), CauseKind.NOTHING),
        (status("Failed", "MasterLost", "gone"), CauseKind.UNKNOWN),
        (status("Stopped", reasons.STOPPED, "by ann"), CauseKind.STOPPED),
        (status("Scheduling", reasons.NO_ROOM, "trainer needs 8 GPU"), CauseKind.SPEC),
    ],
)
def test_jobs_without_a_fault_have_a_kind_too(said: dict[str, Any], kind: CauseKind) -> None:
    assert explained(said)[0] is kind


def test_an_exception_about_a_full_device_counts_as_memory() -> None:
    assert (
        of_fault("UserError", "OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB").kind is CauseKind.MEMORY
    )
    assert of_fault("UserError", "ValueError: bad").kind is CauseKind.USER_CODE


def test_every_reason_of_a_process_has_a_remedy() -> None:
    assert set(FAULTS) == set(Reason)
    assert all(remedy.advice for remedy in (*FAULTS.values(), *VERDICTS.values()))
    assert of_fault("NewReason", "").kind is CauseKind.UNKNOWN


def test_many_lines_of_evidence_are_cut_and_counted() -> None:
    _, lines = explained(status("Running", faults=({**LOST, "evidence": [f"line {n}" for n in range(9)]},) * 9))
    assert [line for line in lines if "evidence" in line][-1] == "  evidence: ... 6 more"


def test_a_folder_that_was_copied_explains_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "status.json").write_text(json.dumps(status("Failed", "UserErrorRepeats", "bad", (RAISED,))))
    assert main.run(["why", f"{tmp_path}/"]) == CauseKind.USER_CODE
    assert "first cause: actor/0, incarnation 2" in capsys.readouterr().out


@pytest.mark.parametrize("content", [None, "{", "[]", '{"phase": "Failed"}'])
def test_a_folder_without_a_job_is_refused(
    content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / "status.json").write_text(content)
    assert main.run(["why", f"{tmp_path}/"]) == 3
    assert f"{tmp_path}/status.json: no status of a job" in capsys.readouterr().err


def test_a_folder_and_a_cluster_exclude_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["why", f"{tmp_path}/", "-n", "team"]) == 2
    assert "is a folder of this machine" in capsys.readouterr().err
