"""What one end says of its cause: each rule of the table by its own example, and what must not mislead."""

from __future__ import annotations

import time

import pytest
from master_kit import job

from dljob.master.failure.policy import describe_failure
from dljob.master.state.causes import add_clues, child_pids, classify, evidence, matches, outcome_of_cause
from dljob.master.state.views import Clue, Outcome, Reason
from dljob.telemetry.causes import RULES
from dljob.telemetry.evidence import EvidenceScope, Source
from dljob.telemetry.remedies import CauseKind, of_fault

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
    assert (cause.rule, cause.reports_lost_peer) == (rule.name, rule.secondary)
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
    assert classify(add_clues(ended, [Clue("cgroup", "oom_kill +1")])).reason is Reason.KILLED
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
    assert outcome_of_cause(vanished, classify(vanished)) is vanished
    assert (
        describe_failure("w/0", outcome_of_cause(SIGKILL, classify(SIGKILL)))
        == "w/0: Killed: ended by SIGKILL, exit code 137"
    )


def test_the_evidence_speaks_where_the_process_did_not():
    ended = add_clues(SIGKILL, [Clue("cgroup", "oom_kill +1, peak 7 of 7 bytes")])
    said = describe_failure("w/0", outcome_of_cause(ended, classify(ended)))
    assert said == "w/0: OOMKilled: ended by SIGKILL; oom_kill +1, peak 7 of 7 bytes, exit code 137"
    silent = add_clues(Outcome(ok=False), [Clue("pod", "OOMKilled")])
    assert describe_failure("w/0", outcome_of_cause(silent, classify(silent))) == "w/0: OOMKilled: OOMKilled"


@pytest.mark.parametrize("why", ["no step for 9 s", "no step for " + "9" * 2000 + " s"])
def test_the_words_of_a_hang_are_told_once(why: str) -> None:
    found = Outcome(ok=False, reason=Reason.HANG, message=why, clues=(Clue("monitor", f"hang: {why}"),))
    assert describe_failure("w/0", outcome_of_cause(found, classify(found))) == f"w/0: Hang: {why}"


def test_evidence_told_twice_is_kept_once():
    clue = Clue("pod", "OOMKilled")
    once = add_clues(SIGKILL, [clue])
    assert add_clues(once, [clue]) is once
    assert evidence(once) == ("exit code 137", "pod: OOMKilled")
    assert evidence(Outcome(ok=False, code=1, detail="a\nb\n\n")) == ("exit code 1", "last line: b")
    assert evidence(Outcome(ok=False, detail="a\nb\n\n")) == ("backend: b",), "no log is known, but Ray's text"


RAYS = (
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker "
    "unexpectedly exits with a connection error code 2. End of file. There are some potential root causes. (1) The "
    "process is killed by SIGKILL by OOM killer due to high memory usage. (2) ray stop --force is called. (3) The "
    "worker is crashed unexpectedly due to SIGSEGV or other unexpected errors. (4) Nobody knows what else it can be."
)


def test_evidence_is_cut_behind_a_sentence_or_a_word():
    (line,) = evidence(Outcome(ok=False, detail=RAYS))
    assert line.startswith("backend: The actor is dead because its worker process has died. Worker exit type")
    assert line.endswith(". ...")
    assert len(line) <= 400 + len("backend: ")
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


def raised(kind: str, message: str, *clues: Clue) -> Outcome:
    return Outcome(
        ok=False, reason=Reason.USER_ERROR, code=1, error_type=kind, message=message, frame="a.py:3 in f", clues=clues
    )


@pytest.mark.parametrize(
    "line",
    [
        "CUDA out of memory. Tried to allocate 20.00 MiB; retrying with a smaller batch",
        "WARNING: ConnectionError: Connection reset by peer; trying again",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "OSError: [Errno 28] No space left on device",
    ],
)
def test_a_line_of_the_log_is_a_hint_near_the_end_and_never_the_kind(line: str) -> None:
    ended = Outcome(ok=False, reason=Reason.USER_ERROR, code=5, message="exited with code 5", detail=f"{line}\nbye\n")
    cause = classify(ended)
    assert (cause.reason, cause.rule, cause.reports_lost_peer) == (Reason.USER_ERROR, "", False)
    assert evidence(outcome_of_cause(ended, cause)) == (
        "exit code 5",
        f"its log mentions: {line}",
        "last line: bye",
    )
    long_ago = evidence(Outcome(ok=False, reason=Reason.USER_ERROR, code=5, detail=f"{line}\n" + "step\n" * 20))
    assert long_ago == ("exit code 5", "last line: step")
    assert evidence(Outcome(ok=False, code=5, detail=line)) == ("exit code 5", f"last line: {line}")
    assert evidence(Outcome(ok=False, code=137, detail=f"{line}\nbye")) == ("exit code 137", "last line: bye")
    assert evidence(raised("KeyError", "'x'")) == ("exit code 1",)


@pytest.mark.parametrize("kind", ["ValueError", "AssertionError", "mine.Error2"])
def test_the_words_of_other_exceptions_decide_nothing(kind: str) -> None:
    for words in ("CUDA out of memory", "MemoryError", "Broken pipe", "[Errno 28]", "Name or service not known"):
        assert classify(raised(kind, words)).rule == ""


ROOT = "OSError: [Errno 28] No space left on device at b.py:9 in save"


@pytest.mark.parametrize(
    ("kind", "source", "rule"),
    [
        ("TrainingError", Source.CAUSE, "disk"),
        ("RuntimeError", Source.CAUSE, "disk"),
        ("RuntimeError", Source.HANDLED, "disk"),
        ("SystemExit", Source.HANDLED, "disk"),
        ("AttributeError", Source.HANDLED, ""),
    ],
)
def test_an_error_counts_as_the_one_that_it_was_raised_from(kind: str, source: Source, rule: str) -> None:
    assert classify(raised(kind, "see above", Clue(source, ROOT))).rule == rule


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        ("MemoryError at b.py:9 in load", "host-oom"),
        ("std::bad_alloc", "host-oom"),
        ("c10::DistBackendError: [PG 0 Rank 1] Process group watchdog thread terminated", "peer-gone"),
        ("DistNetworkError: failed to listen, code: -98, name: EADDRINUSE", "port-taken"),
        ("RuntimeError: tool: Connection reset by peer", ""),
    ],
)
def test_errors_of_libraries_have_their_rules(words: str, rule: str) -> None:
    kind, _, message = words.partition(": ")
    assert classify(raised("Error9", "x", Clue(Source.CAUSE, words))).rule == rule
    assert classify(raised(kind.partition(" ")[0], message)).rule == rule


@pytest.mark.parametrize(
    ("end", "reason", "secondary"),
    [
        ("within this machine, a pipe of 'cat'", Reason.USER_ERROR, False),
        ("within this machine, at 127.0.0.1:4242", Reason.USER_ERROR, False),
        ("not known", Reason.USER_ERROR, False),
        ("to another machine, 10.0.0.7:443", Reason.UNKNOWN, True),
    ],
)
def test_a_broken_connection_is_the_networks_only_between_machines(end: str, reason: Reason, secondary: bool) -> None:
    cause = classify(raised("ConnectionResetError", "[Errno 104] reset", Clue(Source.CONNECTION, end)))
    assert (cause.reason, cause.reports_lost_peer) == (reason, secondary)


LOST = "DataLoader worker (pid(s) 12, 13) exited unexpectedly (in run)"
KILLED_CHILD = Clue(Source.CAUSE, "RuntimeError: DataLoader worker (pid 12) is killed by signal: Killed.")


def test_a_lost_child_is_one_of_memory_if_the_kernel_says_so() -> None:
    kernel = Clue("kernel", "Memory cgroup out of memory: Killed process 12 (python)")
    assert child_pids(raised("RuntimeError", LOST, KILLED_CHILD)) == (12, 13)
    assert child_pids(raised("BrokenProcessPool", "A process in the process pool was terminated abruptly")) == ()
    assert child_pids(raised("RuntimeError", "exited")) is None
    assert classify(raised("RuntimeError", LOST)).rule == "child-lost"
    assert classify(raised("RuntimeError", LOST, KILLED_CHILD)).reason is Reason.KILLED
    assert classify(raised("RuntimeError", LOST, KILLED_CHILD, kernel)).reason is Reason.OOM_KILLED
    assert classify(raised("RuntimeError", LOST, Clue("cgroup", "oom_kill +1"))).reason is Reason.OOM_KILLED


def test_a_failure_is_told_with_what_it_follows_from() -> None:
    cause, handled = (
        Clue(Source.CAUSE, "KeyError: 1 at b.py:9 in g"),
        Clue(Source.HANDLED, "KeyError: 2 at b.py:9 in g"),
    )
    thread, at_exit = Clue(Source.EARLIER, "thread t raised E"), Clue(Source.EARLIER, "atexit function f raised E")
    told = describe_failure("w/0", raised("E", "x", cause, thread))
    assert told == (
        "w/0: UserError: E: x (at a.py:3 in f), caused by KeyError: 1 at b.py:9 in g; before that, thread t raised E, "
        "exit code 1"
    )
    assert ", while handling KeyError: 2 at b.py:9 in g, exit code 1" in describe_failure(
        "w/0", raised("E", "x", handled)
    )
    assert "handling" not in describe_failure("w/0", raised("E", "x", Clue(Source.HANDLED, "KeyError: 2")))
    assert "; at its end, atexit function f raised E, exit code 1" in describe_failure("w/0", raised("E", "x", at_exit))


def test_a_thread_that_a_limit_refuses_is_no_error_of_the_user():
    limit = "pids.max of /sys/fs/cgroup allows 40 processes and threads, 40 are in use, 1 more were refused: raise it"
    refused = raised("RuntimeError", f"can't start new thread (in run); {limit}")
    assert (classify(refused).reason, classify(refused).rule) == (Reason.PROCESS_LIMIT, "process-limit")
    assert classify(raised("BlockingIOError", f"[Errno 11] Resource temporarily unavailable; {limit}")).rule
    assert classify(raised("RuntimeError", "can't start new thread (in run)")).reason is Reason.USER_ERROR


@pytest.mark.parametrize(
    ("error_type", "words"),
    [
        ("RuntimeError", "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU"),
        ("AcceleratorError", "CUDA error: no kernel image is available for execution on the device"),
        ("RuntimeError", "cudaGetDeviceCount(): Error 804: forward compatibility was attempted on non supported HW"),
        ("NVMLError_LibRmVersionMismatch", "Driver/library version mismatch"),
    ],
)
def test_an_image_that_does_not_fit_the_driver_is_no_error_of_the_code(error_type: str, words: str) -> None:
    mismatch = raised(error_type, words)
    assert (classify(mismatch).reason, classify(mismatch).rule) == (Reason.DRIVER_MISMATCH, "driver-mismatch")
    assert of_fault("DriverMismatch", f"{error_type}: {words}", "driver-mismatch").kind is CauseKind.SPEC
    assert classify(raised("ValueError", words)).reason is Reason.USER_ERROR


def test_a_childs_exit_code_of_sigkill_and_a_bus_error_are_no_errors_of_the_user():
    assert classify(raised("RuntimeError", "loader is gone: exit code -9")).reason is Reason.KILLED
    bus = Outcome(ok=False, reason=Reason.USER_ERROR, code=135, message="ended by SIGBUS")
    assert (classify(bus).reason, classify(bus).rule) == (Reason.KILLED, "bus-error")
