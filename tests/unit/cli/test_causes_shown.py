"""What `dljob status` says of a fault: its first cause, the evidence, and what only followed from it."""

from __future__ import annotations

import pytest

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


def test_followers_of_a_fault_stand_under_its_first_cause(tmp_path):
    record = RegistryEntry(name="j", uid="0" * 32, dir=str(tmp_path), started=1.0)
    lines = detail(views.overview(record, {"phase": "Running", "recentFaults": [FAULT]}), 2.0, "dljob events j")
    at = lines.index(f"  fault: trainer [RoleGroup] {FAULT['firstCause']}; recovered in 0.50 s")
    assert lines[at + 1 : at + 4] == [
        "    evidence: exit code 137",
        "    evidence: kernel: Killed process 41 (python)",
        "    after it: trainer/0: Network: RuntimeError: Connection closed by peer",
    ]


@pytest.mark.parametrize(
    ("cuts", "line"),
    [
        (
            {"committed": 3, "givenUp": 1, "why": "cut 4: x", "last": 3, "restored": 2, "restoredCut": 2},
            "  cuts: 3 committed, 1 given up (cut 4: x); the last one is 3; the job went back 2 times, last to cut 2",
        ),
        ({"restored": 1}, "  cuts: 0 committed, 0 given up; the job went back 1 time, last to the beginning"),
    ],
)
def test_the_cuts_of_a_job_are_told_in_one_line(tmp_path, cuts, line):
    record = RegistryEntry(name="j", uid="u1", dir=str(tmp_path), started=0.0)
    assert line in detail(views.overview(record, {"phase": "Running", "cuts": cuts}), 2.0, "dljob events j")


def test_a_role_with_ports_is_told_with_its_ready_servers(tmp_path):
    record = RegistryEntry(name="j", uid="u1", dir=str(tmp_path), started=0.0)
    servers = [
        {"role": "rollout", "ready": 3, "desired": 4, "addresses": [{"http": "h:1", "x": "h:9"}, {"http": "h:2"}]},
        {"role": "reward", "ready": 0, "desired": 2, "addresses": []},
    ]
    lines = detail(views.overview(record, {"phase": "Running", "endpoints": servers}), 2.0, "dljob events j")
    assert [line for line in lines if "endpoints" in line] == [
        "  endpoints of rollout: 3 of 4 ready: h:1, h:2, and 1 more",
        "  endpoints of reward: 0 of 2 ready",
    ]
