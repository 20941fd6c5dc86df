"""What `dljob status` says of a fault: its first cause, the evidence, and what only followed from it."""

from __future__ import annotations

from pathlib import Path

from dljob.api.local import views
from dljob.api.registry import RegistryEntry
from dljob.cli.description import detail

FAULT = {
    "target": "trainer",
    "level": "RoleGroup",
    "firstCause": "trainer/2: OOMKilled: ended by SIGKILL; Killed process 41 (python), exit code 137",
    "evidence": ["exit code 137", "kernel: Killed process 41 (python)"],
    "followed": ["trainer/0: Network: RuntimeError: Connection closed by peer"],
    "seconds": 0.5,
}


def test_followers_of_a_fault_stand_under_its_first_cause(tmp_path: Path) -> None:
    record = RegistryEntry(name="j", uid="0" * 32, dir=str(tmp_path), started=1.0)
    lines = detail(views.overview(record, {"phase": "Running", "recentFaults": [FAULT]}), now=2.0)
    at = lines.index(f"  fault: trainer [RoleGroup] {FAULT['firstCause']}; recovered in 0.50 s")
    assert lines[at + 1 : at + 4] == [
        "    evidence: exit code 137",
        "    evidence: kernel: Killed process 41 (python)",
        "    after it: trainer/0: Network: RuntimeError: Connection closed by peer",
    ]
