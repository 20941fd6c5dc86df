"""What one end says of its cause: each rule of the table by its own example, and what must not mislead."""

from __future__ import annotations

import time

import pytest
from master_kit import job

from dljob.master.failure.policy import describe
from dljob.master.state.causes import add_clues, classify, evidence, judged, matches
from dljob.master.state.views import Clue, Outcome, Reason
from dljob.telemetry.causes import RULES
from dljob.telemetry.evidence import EvidenceScope, Source

SIGKILL = Outcome(ok=False, reason=Reason.UNKNOWN, code=137, message="ended by SIGKILL")


def seen(rule):
    """An end with a rule's example as its evidence."""
    if rule.source is Source.ERROR:
        kind, _, message = rule.example.partition(": ")
        return Outcome(ok=False, reason=Reason.USER_ERROR, code=1, error_type=kind, message=message)
    if rule.source is Source.LOG:
        return Outcome(ok=False, reason=Reason.USER_ERROR, code=1, detail=rule.example)
    if rule.source is Source.BACKEND:
        return Outcome(ok=False, reason=Reason.UNKNOWN, detail=rule.example)
    if rule.source is Source.END:
        return Outcome(ok=False, reason=Reason.UNKNOWN, code=143, message=rule.example)
    return add_clues(SIGKILL, [Clue(rule.source, rule.example)])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_finds_its_own_example(rule):
    cause = classify(seen(rule))
    assert (cause.rule, cause.secondary) == (rule.name, rule.secondary)
    assert not rule.reason or cause.reason.value == rule.reason
    assert rule.documented


def test_names_of_rules_are_unique():
    assert len({rule.name for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("rule", [r for r in RULES if r.of is not EvidenceScope.ANY], ids=lambda rule: rule.name)
def test_trouble_beside_it_does_not_explain_an_error_of_the_users_code(rule):
    raised = Outcome(ok=False, reason=Reason.USER_ERROR, code=1, error_type="KeyError", message="'labels'")
    assert classify(add_clues(raised, [Clue(rule.source, rule.example)])).reason is Reason.USER_ERROR


def test_sigterm_is_no_death_of_memory_but_may_be_a_preemption():
    ended = Outcome(ok=False, reason=Reason.UNKNOWN, code=143, message="SIGTERM from outside")
    assert classify(add_clues(ended, [Clue("cgroup", "oom_kill +1")])).reason is Reason.UNKNOWN
    assert classify(add_clues(ended, [Clue("notice", "the machine goes")])).reason is Reason.PREEMPTED


def test_a_device_explains_what_its_runtime_reports_or_what_crashed():
    clue = Clue("kernel", "NVRM: Xid (PCI:0000:3b:00): 48, pid=4129, DBE (double bit error) ECC Error")
    vague = Outcome(
        ok=False, reason=Reason.USER_ERROR, code=1, error_type="RuntimeError", message="CUDA error: unknown"
    )
    crashed = Outcome(ok=False, reason=Reason.USER_ERROR, code=134, message="ended by SIGABRT")
    assert classify(add_clues(vague, [clue])).reason is Reason.DEVICE_ERROR
    assert classify(add_clues(crashed, [clue])).reason is Reason.DEVICE_ERROR
    assert classify(add_clues(crashed, [Clue("kernel", clue.text.replace("48", "13"))])).reason is Reason.USER_ERROR


def test_no_evidence_leaves_what_the_host_said():
    assert classify(SIGKILL).reason is Reason.KILLED
    assert classify(Outcome(ok=False)).reason is Reason.UNKNOWN
    vanished = Outcome(ok=False, reason=Reason.UNKNOWN)
    assert judged(vanished, classify(vanished)) is vanished
    assert describe("w/0", judged(SIGKILL, classify(SIGKILL))) == "w/0: Killed: ended by SIGKILL, exit code 137"


def test_the_evidence_speaks_where_the_process_did_not():
    ended = add_clues(SIGKILL, [Clue("cgroup", "oom_kill +1, peak 7 of 7 bytes")])
    said = describe("w/0", judged(ended, classify(ended)))
    assert said == "w/0: OOMKilled: ended by SIGKILL; oom_kill +1, peak 7 of 7 bytes, exit code 137"
    silent = add_clues(Outcome(ok=False), [Clue("pod", "OOMKilled")])
    assert describe("w/0", judged(silent, classify(silent))) == "w/0: OOMKilled: OOMKilled"


@pytest.mark.parametrize("why", ["no step for 9 s", "no step for " + "9" * 2000 + " s"])
def test_the_words_of_a_hang_are_told_once(why: str) -> None:
    found = Outcome(ok=False, reason=Reason.HANG, message=why, clues=(Clue("monitor", f"hang: {why}"),))
    assert describe("w/0", judged(found, classify(found))) == f"w/0: Hang: {why}"


def test_evidence_told_twice_is_kept_once():
    clue = Clue("pod", "OOMKilled")
    once = add_clues(SIGKILL, [clue])
    assert add_clues(once, [clue]) is once
    assert evidence(once) == ("exit code 137", "pod: OOMKilled")
    assert evidence(Outcome(ok=False, detail="a\nb\n\n")) == ("last line: b",)


RAYS = (
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker "
    "unexpectedly exits with a connection error code 2. End of file. There are some potential root causes. (1) The "
    "process is killed by SIGKILL by OOM killer due to high memory usage. (2) ray stop --force is called. (3) The "
    "worker is crashed unexpectedly due to SIGSEGV or other unexpected errors. (4) Nobody knows what else it can be."
)


def test_evidence_is_cut_behind_a_sentence_or_a_word():
    (line,) = evidence(Outcome(ok=False, detail=RAYS))
    assert line.startswith("last line: The actor is dead because its worker process has died. Worker exit type")
    assert line.endswith(". ...")
    assert len(line) <= 400 + len("last line: ")
    (clue,) = evidence(add_clues(Outcome(ok=False), [Clue("kernel", "word " * 100)]))
    assert clue.endswith("word ...")
    (clue,) = evidence(add_clues(Outcome(ok=False), [Clue("kernel", "x" * 500)]))
    assert clue == f"kernel: {'x' * 396} ..."


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("xid (*): 79,", "NVRM: Xid (PCI:0000:3b:00): 79, pid=1", True),
        ("xid (*): 79,", "NVRM: Xid (PCI:0000:3b:00): 7, 79", False),
        ("a*b*c", "xaxbxcx", True),
        ("a*b*a", "ab", False),
        ("", "anything", True),
    ],
)
def test_a_log_pattern_matches_its_example_text(pattern, text, found):
    assert matches(pattern, text) is found


def test_no_pattern_takes_long():
    started = time.perf_counter()
    assert not matches("*a" * 128, "a" * 100 + "b" * 900)
    assert time.perf_counter() - started < 1


USERS = {
    "causes": [
        {"name": "fabric", "onLog": "EFA: * unreachable", "reason": "Network"},
        {"name": "licence", "onLog": "no licence left", "reason": "Preempted"},
    ]
}


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (Outcome(ok=False, reason=Reason.USER_ERROR, code=1, detail="efa: host 7 unreachable\nbye\n"), "Network"),
        (Outcome(ok=False, reason=Reason.USER_ERROR, error_type="E", message="No Licence left"), "Preempted"),
        (Outcome(ok=False, reason=Reason.USER_ERROR, error_type="E", message="other"), "UserError"),
        (Outcome(ok=False, reason=Reason.UNKNOWN, code=137, detail="no licence left"), "Killed"),
    ],
)
def test_users_define_causes_of_their_own(outcome, reason):
    _, spec = job({"name": "w"}, faultTolerance=USERS)
    assert classify(outcome, spec.fault_tolerance.causes).reason.value == reason
