"""Incidents: cause, evidence, who restarted, and stages until the last rank is productive again."""

from __future__ import annotations

from typing import Any

import pytest

from dljob.report import incidents
from dljob.report.history import IncidentRecord, JobHistory, Stretch
from dljob.report.incidents import IncidentText

S = 10**6
CLUE = "word " * 100


def fault(number: int, **fields: Any) -> dict[str, Any]:
    outcome = {"code": 137, "clues": [{"source": "kernel", "text": CLUE}], "detail": "a\n\x1b[31mlast\n \n"}
    whole = {"id": number, "level": "Role", "reason": "Killed", "target": "a", "cause": f"a/1: \x1b[1mcause {number}",
             "detected_at": 110.0, "recovered_at": 120.0, "rank": "a/1", "incarnation": 2, "outcome": outcome,
             "root_number": 0, "consequences": [], "lost": 3}  # fmt: skip
    return {**whole, **fields}


def history(*faults: dict[str, Any]) -> JobHistory:
    lane = ["productive", "detect", "decide", "schedule", "replace", "init", "recompute", "productive"]
    slow = [Stretch(at * S, account) for at, account in zip((0, 8, 10, 12, 13, 15, 20, 26), lane, strict=True)]
    quick = [Stretch(0, "productive"), Stretch(10 * S, "replace"), Stretch(14 * S, "productive")]
    record = IncidentRecord(110.0, "a", [("a", 0), ("a", 1)], [1], 120.0)
    return JobHistory(100.0, 200.0, {("a", 0): quick, ("a", 1): slow}, {own["id"]: own for own in faults}, [record])


def test_stages_follow_the_rank_that_was_productive_last() -> None:
    (found,) = incidents.of_history(history(fault(1)), 200.0)
    stages = {stage["name"]: stage["seconds"] for stage in found["stages"]}
    assert stages == {"noticed": 2.0, "decided": 2.0, "placed": 1.0, "started": 7.0, "first step": 6.0}
    assert found["restarted"] == ["a/0", "a/1"]
    assert (found["at"], found["until"], found["lostSteps"]) == (110.0, 120.0, 3)


def test_an_incident_that_lasts_counts_until_the_end_of_the_record() -> None:
    own = history(fault(1, recovered_at=None))
    own.lanes["a", 1] = own.lanes["a", 1][:5]
    (found,) = incidents.of_history(own, 118.0)
    assert sum(stage["seconds"] for stage in found["stages"]) == pytest.approx(10.0)
    assert found["until"] is None


def test_a_fault_without_a_restart_has_no_stages_and_shows_its_first_cause() -> None:
    follower = fault(2, root_number=1, outcome=None, consequences=[{"cause": "b/0: \x1b]0;x\x07gone"}])
    found = incidents.of_history(history(fault(1), follower), 200.0)[1]
    assert found["stages"] == []
    assert found["evidence"] == []
    assert found["cause"] == "a/1: cause 1"
    assert found["followed"] == ["b/0: gone"]


def test_evidence_is_short_and_free_of_terminal_escapes() -> None:
    (found,) = incidents.of_history(history(fault(1)), 200.0)
    code, clue, last = found["evidence"]
    assert code == "exit code 137"
    assert clue.startswith("kernel: word")
    assert len(clue) < incidents.TEXT + 20
    assert last == "last line: last"
    vanished = {"code": None, "error_type": "", "clues": [], "detail": "gone"}
    (found,) = incidents.of_history(history(fault(1, outcome=vanished)), 200.0)
    assert found["evidence"] == ["backend: gone"], "no log is known, but the backend's text"


def test_a_status_tells_incidents_without_stages() -> None:
    told = {"level": "Process", "reason": "Killed", "target": "a/1", "firstCause": "a/1: x", "evidence": ["e"],
            "followed": None, "detectedAt": "1970-01-01T00:01:50Z", "recoveredAt": None, "lostSteps": None}  # fmt: skip
    (found,) = incidents.of_status([told])
    assert (found["id"], found["at"], found["until"], found["cause"]) == (1, 110.0, None, "a/1: x")
    assert (found["restarted"], found["stages"]) == (None, None)
    assert found["evidence"] == ["e"]


def test_log_lines_and_stacks_belong_to_their_incident() -> None:
    text = IncidentText("a/1", ["one\rtwo\r", "", "\x1b[2Jthree"], [("a/1", "s" * 30_000)])
    found = incidents.with_texts(incidents.of_history(history(fault(1), fault(2)), 200.0), {1: text})
    assert found[0]["log"] == {"rank": "a/1", "lines": ["two", "three"]}
    assert len(found[0]["stacks"][0]["text"]) == incidents.STACK
    assert (found[1]["log"], found[1]["stacks"]) == (None, [])
