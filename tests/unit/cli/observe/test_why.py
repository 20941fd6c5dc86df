"""why: the first cause of a failure, from the status in a job's folder."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest
from fake_kube import add_head, add_job
from hypothesis import given
from hypothesis import strategies as st

from dljob.api import registry
from dljob.api.local import views
from dljob.api.local.final_status import AbruptEnd, with_end
from dljob.api.shown_job import Overview
from dljob.cli import description, diagnosis, main
from dljob.cli.diagnosis import diagnose
from dljob.kube.api import CONFIG_MAPS
from dljob.master.state.views import Reason
from dljob.reconcile.state import hints
from dljob.reconcile.state import reasons as operators
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
    found = diagnose(job, "ppo", " -n team")
    assert len(found.lines) <= 20
    return found.kind, list(found.lines)


def test_a_failed_job_is_explained_by_the_fault_that_ended_it():
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
            "next: correct the code at a.py:1 in m; then run the job again",
            "      dljob logs ppo --role actor --rank 0 -n team",
        ],
    )


@pytest.mark.parametrize("fault", [RAISED, {**LOST, "level": "Fail", "recoveredAt": None}])
def test_a_job_without_restarts_left_is_told_how_it_gets_more(fault):
    _kind, lines = explained(status("Failed", reasons.BUDGET_EXHAUSTED, "default may not restart", (fault,)))
    assert lines[-1].startswith("      or allow more restarts: --max-restarts=N")
    _kind, lines = explained(status("Running", "", "", (fault,)))
    assert "max-restarts" not in lines[-1]


def test_the_kind_is_that_of_the_first_cause_and_not_of_its_echo():
    kind, lines = explained(status("Running", faults=(LOST,)))
    assert kind is CauseKind.MEMORY
    assert lines[2:6] == [
        "  evidence: exit code 137",
        "  evidence: kernel: Killed process 41 (python)",
        "  after it: trainer/0: Network: RuntimeError: Connection closed by peer",
        "done: trainer restarted at level Role; recovered in 1.0 s, 12 steps lost",
    ]


MASTER: dict[str, Any] = {
    "level": "Master", "reason": "MasterRestarted", "target": "master",
    "firstCause": "PrimeMaster restarted: it (pid 7) was ended by SIGKILL from outside",
    "detectedAt": "2026-01-01T00:05:00.500Z", "recoveredAt": "2026-01-01T00:05:00.500Z", "seconds": 0.0,
}  # fmt: skip


@pytest.mark.parametrize("over", [None, "2026-01-01T00:05:01.000Z"])
def test_a_restart_of_prime_master_during_a_recovery_is_not_what_failed(over):
    lost = {**LOST, "detectedAt": "2026-01-01T00:05:00.000Z", "recoveredAt": over}
    kind, lines = explained(status("Running", faults=(RAISED, lost, MASTER)))
    assert kind is CauseKind.MEMORY
    moments = f"at 2026-01-01T00:05:00.000Z{f', recovered at {over}' if over else ''}"
    assert lines[1].startswith(f"last failure: trainer/2, incarnation 3, {moments}: ")
    assert lines[5] == f"  after it: {MASTER['firstCause']}"
    earlier = f"earlier: {RAISED['detectedAt']} actor/0: UserError: ValueError: bad (at a.py:1 in m)"
    assert [line for line in lines if line.startswith("earlier")] == [earlier]


@pytest.mark.parametrize(
    ("phase", "recovered_at", "title"),
    [
        ("Failed", None, "first cause"),
        ("Lost", None, "first cause"),
        ("Failed", "2026-01-01T00:05:01Z", "last failure"),
        ("Recovering", None, "last failure"),
        ("Running", "2026-01-01T00:05:01Z", "last failure"),
    ],
)
def test_only_what_ended_the_job_is_its_first_cause(phase, recovered_at, title):
    _kind, lines = explained(status(phase, faults=({**LOST, "recoveredAt": recovered_at},)))
    assert lines[1].startswith(f"{title}: trainer/2")
    assert (f", recovered at {recovered_at}: " in lines[1]) is (recovered_at is not None)


@pytest.mark.parametrize("before", [(), (MASTER,), ({**LOST, "recoveredAt": "2026-01-01T00:05:00.100Z"},)])
def test_a_restart_of_prime_master_after_a_recovery_is_a_failure_of_its_own(before):
    again = {**MASTER, "detectedAt": "2026-01-01T00:06:00.000Z", "recoveredAt": "2026-01-01T00:06:00.000Z"}
    _kind, lines = explained(status("Running", faults=(*before, again)))
    moment = "2026-01-01T00:06:00.000Z"
    assert lines[1] == f"last failure: master, at {moment}, recovered at {moment}: {MASTER['firstCause']}"


def test_the_kubernetes_node_of_an_excluded_pod_is_told():
    fault = {**LOST, "firstCause": "trainer/2: NodeFrozen: pod ppo-x7k2 has not answered for 30.0 s", "evidence": []}
    out = [
        {"name": "c0ffee", "reason": "NodeFrozen", "pod": "ppo-x7k2", "kubernetesNode": "gpu-17"},
        {"name": "c0ffed", "reason": "NodeFrozen", "pod": "ppo-x7k2", "kubernetesNode": "gpu-17"},
        {"name": "c0ffef", "reason": "NodeFrozen", "pod": "ppo-other", "kubernetesNode": "gpu-18"},
        {"name": "gpu-19", "reason": "Requested", "kubernetesNode": "gpu-19"},
        {"name": "c0fff0", "reason": "NodeFrozen"},
    ]
    _kind, lines = explained(status("Running", faults=(fault,), nodes={"excluded": out}))
    assert [line for line in lines if "evidence" in line] == ["  evidence: pod ppo-x7k2 is on Kubernetes node gpu-17"]


def test_a_pod_that_somebody_removed_by_force_is_no_matter_of_its_node():
    fault = {**LOST, "reason": "NodeLost", "rule": "pod-removed", "firstCause": "trainer/2: NodeLost: pod a is gone"}
    kind, lines = explained(status("Running", faults=(fault,)))
    assert (kind, "see who deletes its pods by force" in "".join(lines)) == (CauseKind.NODE, True)


def test_a_verdict_is_not_blamed_on_a_fault_that_the_job_recovered_from():
    kind, lines = explained(status("Failed", reasons.DEADLINE_EXCEEDED, "after 60 s", (LOST,)))
    assert kind is CauseKind.SPEC
    assert lines[1].startswith("earlier: 2026-01-01T00:05:00Z trainer/2: OOMKilled")
    assert not any(line.startswith("first cause") for line in lines)


def test_a_fault_still_open_is_the_cause_of_an_exhausted_deadline():
    kind, lines = explained(status("Failed", reasons.DEADLINE_EXCEEDED, "after 60 s", (RAISED,)))
    assert (kind, lines[1].split(":")[0]) == (CauseKind.USER_CODE, "first cause")


BACKING_OFF: dict[str, Any] = {**RAISED, "level": "Process"}
CAUSE = "ValueError: bad (at a.py:1 in m)"


@pytest.mark.parametrize(
    ("phase", "reason", "kind"),
    [
        ("Stopping", reasons.STOPPED, CauseKind.STOPPED),
        ("Stopped", reasons.STOPPED, CauseKind.STOPPED),
        ("Suspended", reasons.SUSPENDED, CauseKind.STOPPED),
        ("Failed", reasons.DEADLINE_EXCEEDED, CauseKind.SPEC),
        ("Failed", reasons.PRE_RUNNING_DEADLINE, CauseKind.SPEC),
        ("Lost", reasons.RUNNER_KILLED, CauseKind.STOPPED),
        ("Lost", reasons.MACHINE_RESTARTED, CauseKind.NODE),
    ],
)
def test_an_end_during_a_backoff_is_not_blamed_on_the_failure_before_it(
    phase: str, reason: str, kind: CauseKind
) -> None:
    exit_kind, lines = explained(status(phase, reason, "by ann", (LOST, BACKING_OFF)))
    assert (exit_kind, lines[:3]) == (
        kind,
        [
            f"ppo (a7efe1a7): {phase}: {reason}: by ann",
            f"last failure: actor/0, incarnation 2, at {BACKING_OFF['detectedAt']}: UserError: {CAUSE}",
            "earlier: 2026-01-01T00:05:00Z trainer/2: OOMKilled: ended by SIGKILL, exit code 137",
        ],
    )
    assert [line for line in lines[3:] if not line.startswith("next: ")] == []


def test_a_runner_that_was_killed_during_a_backoff_ended_the_job_itself() -> None:
    end = AbruptEnd("Lost", reasons.RUNNER_KILLED, "it was killed")
    kind, lines = explained(with_end(status("Recovering", faults=(BACKING_OFF,)), end))
    assert kind is CauseKind.STOPPED
    assert lines[1] == "first cause: job: RunnerKilled: it was killed"
    assert "earlier: 2026-01-01T00:09:00Z actor/0: UserError: ValueError: bad (at a.py:1 in m)" in lines


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
def test_jobs_without_a_fault_have_a_kind_too(said, kind):
    assert explained(said)[0] is kind


@pytest.mark.parametrize(
    ("job", "advice"),
    [
        ({"attempt": 1}, "run it again, from its start"),
        ({"attempt": 1, "progress": {"lastCheckpointStep": None}}, "run it again, from its start"),
        ({"attempt": 1, "progress": {"lastCheckpointStep": 0}}, "dljob run with --resume"),
        ({"conditions": [], "progress": {"lastCheckpointStep": 4}}, "dljob resume goes on"),
        ({"conditions": []}, "run it again, from its start"),
    ],
)
def test_a_stopped_job_goes_on_only_from_a_checkpoint_that_there_is(job, advice):
    _, lines = explained(status("Stopped", reasons.STOPPED, "by ann", **job))
    assert lines[-1].startswith("next: ")
    assert advice in lines[-1]


def test_a_job_that_succeeded_has_healed_failures_and_no_advice():
    kind, lines = explained(status("Succeeded", "Succeeded", faults=(RAISED, LOST), restarts={"role": 1}))
    assert (kind, lines[0]) == (CauseKind.NOTHING, "ppo (a7efe1a7): Succeeded")
    assert lines[1].startswith("nothing failed")
    assert [line.partition(":")[0] for line in lines[2:]] == ["restarts", "earlier", "earlier"]


PULL = """Back-off pulling image "reg.io/train:v9": ErrImagePull: failed to pull and unpack image "reg.io/train:v9":
failed to resolve reference "reg.io/train:v9": failed to do request: Head "https://reg.io/v2/train/manifests/v9":
dial tcp: lookup reg.io: no such host"""


@pytest.mark.parametrize(
    ("reason", "message", "words"),
    [
        (
            "ImagePullBackOff",
            "pod a: ImagePullBackOff: container ray-head: " + PULL,
            ("reg.io/train:v9", "no such host"),
        ),
        ("Unschedulable", f"pod a: 0/9 nodes are available: {'1 node(s) had a taint, ' * 20}9 few cpu", ("few cpu",)),
        ("CreationRefused", f"RayCluster a: admission {'webhook x denied the request: ' * 12}no quota", ("no quota",)),
    ],
)
def test_a_long_message_of_kubernetes_keeps_its_end(reason, message, words):
    kind, lines = explained(status("Provisioning", reason, message))
    assert kind is CauseKind.SPEC
    assert "pod a" in lines[0] or "RayCluster a" in lines[0]
    assert all(word in lines[0] for word in words)
    assert len(lines[0]) <= 2 * diagnosis.WIDTH


@pytest.mark.parametrize("reason", ["CrashLoopBackOff", "RunContainerError", "UnexpectedAdmissionError"])
def test_a_pod_that_cannot_start_is_no_nothing(reason):
    kind, lines = explained(status("Provisioning", reason, f"pod a: {reason}: container ray-head"))
    assert kind is CauseKind.UNKNOWN
    assert "kubectl describe pod" in lines[-1]
    assert explained(status("Provisioning", "HeadPending", "there is no head pod yet"))[0] is CauseKind.NOTHING


def test_a_phase_is_no_reason_of_itself():
    assert explained(status("Running", "Running"))[1] == ["ppo (a7efe1a7): Running", "nothing failed"]


@pytest.mark.parametrize(
    ("words", "rule", "kind", "place"),
    [
        ("OutOfMemoryError: CUDA out of memory (at a.py:3 in f)", "cuda-oom", CauseKind.MEMORY, ""),
        ("MemoryError: (at a.py:3 in f)", "host-oom", CauseKind.MEMORY, ""),
        ("ValueError: CUDA out of memory? (at a.py:3 in f)", "", CauseKind.USER_CODE, "at a.py:3 in f;"),
        (
            "RuntimeError: x (at a.py:3 in f), caused by KeyError: 1 at b.py:4 in g",
            "",
            CauseKind.USER_CODE,
            "at b.py:4",
        ),
        ("KeyError: x (at a.py:3 in f), while handling E: 1 at b.py:4 in g", "", CauseKind.USER_CODE, "at a.py:3"),
        ("E: x (at a.py:3 in f), caused by KeyError: 1", "", CauseKind.USER_CODE, "at a.py:3 in f;"),
        (
            "Empty (at a.py:3 in f); before that, thread t raised E: 1 at b.py:4 in g",
            "",
            10,
            "look first at b.py:4 in g",
        ),
        ("exited with code 3; before that, thread t raised E: 1 at b.py:4 in g", "", 10, "the code at b.py:4 in g;"),
        ("Empty (at a.py:3 in f); before that, B.__del__ raised E: 1 at b.py:4 in g", "", 10, "at a.py:3 in f;"),
        ("exited with code 3; at its end, atexit function f raised E: 1 at b.py:4 in g", "", 10, "no line"),
        ("ended by SIGSEGV", "", CauseKind.USER_CODE, "no line of the code is named"),
        ("E: mismatch (at a.py:3 in f)", "collective-mismatch", CauseKind.USER_CODE, "what each calls at a.py:3 in f;"),
        ("E: mismatch", "collective-mismatch", CauseKind.USER_CODE, "what each calls;"),
        (
            "CheckpointError: w/0 cannot load: rank-0.part is torn",
            "checkpoint-unloaded",
            CauseKind.NODE,
            "checkpoint ls",
        ),
        ("CheckpointError: format 99 is newer than this dljob's", "checkpoint-newer", CauseKind.SPEC, "wrote the"),
    ],
)
def test_the_rule_of_evidence_gives_the_kind_and_the_error_the_place(words, rule, kind, place):
    remedy = of_fault("UserError", words, rule)
    assert remedy.kind == kind
    assert place in remedy.advice


def test_what_stands_in_the_way_is_said_while_the_job_runs_after_its_end_and_beside_a_fault():
    problem = {"reason": reasons.CHECKPOINT_NOT_SAVED, "target": "w/0", "since": "2026-01-01T00:01:00Z"}
    problem["message"] = "w/0: step 3 is not on disk: No space left on device (/data)"
    line = f"problem since 2026-01-01T00:01:00Z: CheckpointNotSaved: {problem['message']}"
    advice = VERDICTS[reasons.CHECKPOINT_NOT_SAVED].advice
    running = status("Running", reasons.CHECKPOINT_NOT_SAVED, problem["message"])
    for said in (running, status("Succeeded", "Completed", "all driver roles ended well")):
        kind, lines = explained({**said, "problems": [problem]})
        assert (kind, lines[1:]) == (CauseKind.NODE, [line, f"next: {advice}"])
    kind, lines = explained({**status("Running", faults=(LOST,)), "problems": [problem]})
    assert kind is CauseKind.MEMORY
    assert lines[lines.index(line) + 1].startswith("next: ")


def test_problems_of_many_events_name_the_command_that_shows_all_and_those_left_out_are_counted():
    row = {
        "reason": reasons.ITEM_SET_ASIDE,
        "since": "2026-01-01T00:01:00Z",
        "message": "3 times" + "x" * 600,
        "count": 3,
    }
    shown = status("Running", reasons.ITEM_SET_ASIDE, "3 times")
    _, lines = explained({**shown, "problems": [row] * 4, "problemCount": 9})
    assert [line.endswith("...; all: dljob events ppo -n team") for line in lines if line.startswith("problem")] == [
        True
    ] * 3
    assert "and 6 more problems: dljob status ppo -n team" in lines
    shown_lines = description.detail(
        Overview("train", "Running", {"problems": [row], "problemCount": 3}, {}), 0.0, "all"
    )
    assert any(line.endswith("xx; all: all") for line in shown_lines)
    assert "  and 2 more problems" in shown_lines


def test_every_reason_of_a_process_has_a_remedy():
    assert set(FAULTS) == set(Reason)
    assert all(remedy.advice for remedy in (*FAULTS.values(), *VERDICTS.values()))
    assert of_fault("NewReason", "").kind is CauseKind.UNKNOWN


def test_every_end_that_the_operator_decides_has_a_remedy():
    own = (
        *(operators.IMAGE_WITHOUT_DLJOB, operators.PYTHON_MISMATCH, operators.RAY_MISMATCH, operators.DLJOB_MISMATCH),
        *(operators.JOB_FAILED, operators.CLUSTER_RESTARTS_EXHAUSTED, operators.DEADLINE_EXCEEDED, operators.STOPPED),
        *(operators.KUBERAY_MISSING, operators.KUBERAY_TOO_OLD, operators.KUBERAY_SILENT, operators.NAME_TAKEN),
    )
    assert set(own) <= VERDICTS.keys()
    # What the operator itself advises about is no silence for `why`, either: the rest are reasons of pods.
    assert set(hints.BY_REASON) - {"CrashLoopBackOff", "CreateContainerError", "Error"} <= VERDICTS.keys()
    kind, lines = explained(status("Failed", operators.PYTHON_MISMATCH, "node group w has Python 3.12"))
    assert kind is CauseKind.SPEC
    assert lines[-1].startswith("next: correct the image")


def test_many_lines_of_evidence_are_cut_and_counted():
    _, lines = explained(status("Running", faults=({**LOST, "evidence": [f"line {n}" for n in range(9)]},) * 9))
    assert [line for line in lines if "evidence" in line][-1] == "  evidence: ... 6 more"


def test_a_folder_that_was_copied_explains_itself(tmp_path, capsys):
    (tmp_path / "status.json").write_text(json.dumps(status("Failed", "UserErrorRepeats", "bad", (RAISED,))))
    assert main.run(["why", f"{tmp_path}/"]) == CauseKind.USER_CODE
    assert "first cause: actor/0, incarnation 2" in capsys.readouterr().out


@pytest.mark.parametrize("content", [None, "{", "[]", '{"phase": "Failed"}'])
def test_a_folder_without_a_job_is_refused(content, tmp_path, capsys):
    if content is not None:
        (tmp_path / "status.json").write_text(content)
    assert main.run(["why", f"{tmp_path}/"]) == 3
    assert f"{tmp_path}/status.json: no status of a job" in capsys.readouterr().err


def test_a_folder_and_a_cluster_exclude_each_other(tmp_path, capsys):
    assert main.run(["why", f"{tmp_path}/", "-n", "team"]) == 2
    assert "is a path on this machine" in capsys.readouterr().err


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_folder_here_is_named_with_or_without_a_slash(slash, home, tmp_path, capsys, monkeypatch):
    folder = tmp_path / "copy"
    folder.mkdir()
    (folder / "status.json").write_text(json.dumps(status("Failed", "UserErrorRepeats", "bad", (RAISED,))))
    monkeypatch.chdir(tmp_path)
    assert main.run(["why", f"copy{slash}"]) == CauseKind.USER_CODE
    assert capsys.readouterr().out.endswith("\n      the log of actor/0 is in copy/logs\n")


def test_a_name_that_nothing_has_is_not_found(home, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main.run(["why", "nothing"]) == 3
    assert "no job 'nothing'" in capsys.readouterr().err


def test_a_job_that_never_started_says_so(tmp_path, capsys):
    (tmp_path / "job.json").write_text(json.dumps({"name": "ppo", "uid": UID}))
    assert main.run(["why", f"{tmp_path}/"]) == CauseKind.UNKNOWN
    assert "ppo (a7efe1a7): Pending\n  it never started: its folder has no status" in capsys.readouterr().out
    assert main.run(["ledger", f"{tmp_path}/"]) == 0
    assert "no rank has begun" in capsys.readouterr().out
    (tmp_path / "job.json").write_text("[]")
    assert main.run(["why", f"{tmp_path}/"]) == 3


def test_the_loss_of_primemaster_leads_to_its_own_log():
    lost = {"level": "Master", "reason": "Unknown", "target": "master", "firstCause": "PrimeMaster restarted: gone"}
    kind, lines = explained(status("Running", faults=(lost,)))
    assert kind is CauseKind.UNKNOWN
    assert lines[-2:] == [
        "next: see why PrimeMaster ended: dljob logs --master",
        "      dljob logs ppo --master -n team",
    ]


def test_the_loss_of_a_sub_master_leads_to_the_log_of_primemaster():
    lost = {"level": "Fail", "reason": "UserError", "rank": "t/0", "firstCause": "t/store: UserError: KeyError: 'r'"}
    assert explained(status("Running", faults=(lost,)))[1][-1] == "      dljob logs ppo --master -n team"


def test_a_program_is_told_the_kind_and_the_fault(tmp_path, capsys):
    (tmp_path / "status.json").write_text(json.dumps(status("Running", faults=(LOST,), restarts={"role": 1})))
    assert main.run(["why", f"{tmp_path}/", "-o", "json"]) == CauseKind.MEMORY
    said = json.loads(capsys.readouterr().out)
    assert (said["kind"], said["exitCode"], said["fault"], said["restarts"]) == ("memory", 11, LOST, {"role": 1})
    assert said["lines"][0] == "ppo (a7efe1a7): Running"
    assert said["advice"].startswith("raise resources.memory")


def config_map(text: str) -> str:
    return json.dumps({"kind": "ConfigMap", "metadata": {"name": "ppo-logs"}, "data": {"status.json": text}})


def test_a_config_map_in_a_file_explains_its_job(tmp_path, capsys):
    file = tmp_path / "kept.yaml"
    file.write_text(config_map(json.dumps(status("Failed", "UserErrorRepeats", "bad", (RAISED,)))))
    assert main.run(["why", str(file)]) == CauseKind.USER_CODE
    assert "first cause: actor/0, incarnation 2" in capsys.readouterr().out


def test_a_dljob_in_a_file_explains_itself(tmp_path, capsys):
    file = tmp_path / "dljob.yaml"
    meta = {"name": "ppo", "namespace": "team", "uid": UID}
    body = {"kind": "DLJob", "metadata": meta, "spec": {}, "status": {"phase": "Failed", "recentFaults": [RAISED]}}
    file.write_text(json.dumps(body))
    assert main.run(["why", str(file)]) == CauseKind.USER_CODE
    said = capsys.readouterr().out
    assert "ppo (a7efe1a7) in namespace team: Failed" in said
    assert said.splitlines()[-1].strip() == "dljob logs ppo --role actor --rank 0 -n team"


def test_the_advice_about_a_dljob_in_a_file_can_be_followed_while_the_object_exists(tmp_path, kube, capsys):
    job = add_job(kube, "ppo", phase="Failed", recentFaults=[{**LOST, "recoveredAt": None, "rank": ""}])
    file = tmp_path / "lost job.yaml"
    file.write_text(json.dumps(job))
    main.run(["why", str(file)])
    program, *advised_command = shlex.split(capsys.readouterr().out.splitlines()[-1])
    assert (program, advised_command) == ("dljob", ["events", "ppo", "-n", job["metadata"]["namespace"]])
    assert main.run(advised_command) == 0


def test_the_advice_about_a_folder_can_be_followed_whatever_its_path(tmp_path, capsys, monkeypatch):
    folder = tmp_path / "a copy"
    folder.mkdir()
    (folder / "status.json").write_text(json.dumps(status("Failed", "Unforeseen", "gone")))
    (tmp_path / "beside").mkdir()
    monkeypatch.chdir(tmp_path / "beside")
    main.run(["why", "../a copy"])
    _, _, *advised_command = shlex.split(capsys.readouterr().out.splitlines()[-1])
    assert advised_command == ["events", "../a copy/"]
    assert main.run(advised_command) == 0


@pytest.mark.parametrize(
    "command",
    [
        "events",
        "logs",
        "stop",
        "replay",
        "report -o page.html",
        "trace -o t.json",
        "advise",
        "delete",
        "suspend",
        "resume",
    ],
)
def test_a_file_in_the_place_of_a_job_is_called_a_file(command, home, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job 1.yaml").write_text(config_map(json.dumps(status("Running"))))
    verb, *flags = command.split()
    assert main.run([verb, "job 1.yaml", *flags]) == 3
    first_line, hint = capsys.readouterr().err.splitlines()
    assert first_line.startswith(f"error: job 1.yaml is a file: dljob {verb} takes a job's name")
    _, *advised_command = shlex.split(hint)[:3]
    assert main.run(advised_command) == 0


@pytest.mark.parametrize("verb", ["logs", "stop", "suspend", "resume", "restart"])
def test_the_folder_of_a_job_in_the_place_of_its_name_is_called_a_folder(verb, home, capsys):
    entry = registry.register(
        registry.RegistryEntry("mine", "ab12" * 8, str(home / "jobs" / "mine-ab12ab12"), started=1.0)
    )
    assert main.run([verb, f"{entry.folder}/"]) == 3
    first_line, hint = capsys.readouterr().err.splitlines()
    assert first_line == f"error: {entry.folder}/ is a folder: dljob {verb} takes a job's name"
    assert hint == f"  the job of this folder: dljob {verb} ab12ab12"
    assert registry.find("ab12ab12").name == "mine"
    assert main.run([verb, f"{home}/nothing"]) == 3
    assert (
        capsys.readouterr().err.splitlines()[0] == f"error: {home}/nothing is a path: dljob {verb} takes a job's name"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "no job: ParserError: while parsing"),
        ("[]", "neither a DLJob nor a ConfigMap"),
        ('{"kind": "Pod"}', "neither a DLJob nor a ConfigMap"),
        ('{"kind": "ConfigMap", "data": {"a.log": ""}}', "neither a DLJob nor a ConfigMap"),
        ('{"kind": "ConfigMap"}', "no job: KeyError"),
        (config_map("{"), "no job: JSONDecodeError"),
        ('{"kind": "DLJob", "metadata": {"name": "ppo"}}', "is a job file, and no record of a job\n  dljob validate "),
        ('{"kind": "DLJob"}', "is a job file, and no record of a job"),
        ('{"kind": "DLJob", "metadata": null}', "no job: TypeError"),
    ],
)
def test_a_file_about_no_job_is_refused(text, said, tmp_path, capsys):
    (tmp_path / "some").write_text(text)
    assert main.run(["why", f"{tmp_path}/some"]) == 3
    assert said in capsys.readouterr().err


TEXT = st.text(st.characters(codec="utf-8"), max_size=400) | st.just("a\nb\x1b[2J\u202eevil\x9b1m")
VALUE = st.none() | st.integers() | st.floats(allow_nan=False) | TEXT | st.lists(TEXT, max_size=30)
FAULT = st.fixed_dictionaries({}, optional=dict.fromkeys((*LOST, "more"), VALUE))


@given(st.lists(FAULT, max_size=12) | VALUE, TEXT, TEXT, st.sampled_from(["Failed", "Lost", "Running"]))
def test_whatever_a_status_holds_is_told_in_twenty_plain_lines(faults, reason, message, phase):
    _, lines = explained(status(phase, reason, message, faults))
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]", "".join(lines))


def test_on_a_cluster_the_evidence_comes_from_primemaster(kube, dljob):
    bare = {key: LOST[key] for key in ("level", "reason", "target", "rank", "firstCause", "detectedAt")}
    add_job(kube, phase="Running", recentFaults=[bare])
    code, out, _ = dljob("why", "hello", "-n", "team")
    assert (code, "evidence" in out) == (CauseKind.MEMORY, False)
    add_head(kube)
    kube.head["status"] = lambda _query: status("Running", faults=(RAISED, LOST))
    code, out, _ = dljob("why", "hello", "-n", "team")
    assert (code, "  evidence: kernel: Killed process 41 (python)" in out) == (CauseKind.MEMORY, True)


@pytest.mark.parametrize(
    ("kept", "told"), [(json.dumps(status("Failed", faults=(RAISED | {"evidence": ["it said"]},))), True), ("[", False),
                       ("[]", False)]
)  # fmt: skip
def test_when_the_cluster_is_gone_the_evidence_comes_from_its_config_map(kept, told, kube, dljob):
    job = add_job(kube, phase="Failed", completionTime="2026-01-01T00:10:00Z", recentFaults=[RAISED])
    owner = {"kind": "DLJob", "uid": job["metadata"]["uid"]}
    meta = {"name": "hello-logs", "ownerReferences": [owner]}
    kube.put(CONFIG_MAPS, {"metadata": meta, "data": {"status.json": kept}})
    code, out, _ = dljob("why", "hello", "-n", "team")
    assert (code, "  evidence: it said" in out) == (CauseKind.USER_CODE, told)


def test_a_job_on_a_cluster_without_failures_asks_nobody_for_evidence(kube, dljob):
    add_job(kube, phase="Running")
    add_head(kube)
    kube.head["status"] = lambda _query: pytest.fail("asked")
    assert dljob("why", "hello", "-n", "team")[0] == 0


def test_faults_that_cannot_be_read_are_not_called_none():
    kind, lines = explained(status("Failed", faults={"a": 1}))  # type: ignore[arg-type]
    assert (kind, lines[1:]) == (
        CauseKind.UNKNOWN,
        ["first cause: unreadable: the status is damaged, or of another version", "next: dljob events ppo -n team"],
    )


STALL = {
    "name": "reward/0@4", "sentence": "trainer/0 has waited 1m01s for reward/0.score, which runs at h.py:9 in score",
    "since": "2026-01-01T00:05:00Z", "seconds": 61.0, "root": "reward/0", "hung": False,
    "ranks": ["trainer/0", "reward/0"], "rankCount": 2,
}  # fmt: skip


def test_of_a_stopped_job_where_it_stood_still_has_a_line_of_its_own():
    sentence = f"{'a' * 150} has waited since 2026-01-01T00:05:00Z for {'b' * 150}, which runs at h.py:9 in score"
    words = f"stopped by pid 7, which received SIGINT; it stood still: {sentence}"
    _, lines = explained(status("Stopped", "StoppedByUser", words))
    assert lines[:2] == [
        "ppo (a7efe1a7): Stopped: StoppedByUser: stopped by pid 7, which received SIGINT",
        f"  it stood still: {sentence}",
    ]


def test_of_a_running_job_what_stands_still_now_is_told_first():
    circle = {
        **STALL, "root": None, "rootState": "circle", "sentence": "a/0 -> b/0 -> a/0", "rankCount": 9, "hung": True,
    }  # fmt: skip
    said = status("Running", "StallFound", "since then", (LOST,), stalls=[STALL, circle])
    assert explained(said) == (
        CauseKind.UNKNOWN,
        [
            "ppo (a7efe1a7): Running",
            "stands still: reward/0: trainer/0 has waited 1m01s for reward/0.score, which runs at h.py:9 in score",
            "also: Hang: a/0 -> b/0 -> a/0",
            "  evidence: 8 other ranks stand still with it, since 2026-01-01T00:05:00Z",
            f"next: {diagnosis.MAY_GO_ON_ADVICE}",
            "      dljob stack ppo -n team",
            "      dljob restart ppo reward/0 -n team",
            "earlier: 2026-01-01T00:05:00Z trainer/2: OOMKilled: ended by SIGKILL, exit code 137",
        ],
    )
    for stall, advice in (
        (circle, diagnosis.STALL_ADVICE["circle"]),
        ({**STALL, "hung": True}, diagnosis.STANDS_ADVICE),
        ({**STALL, "rootState": "stopped"}, diagnosis.STALL_ADVICE["stopped"]),
        ({**STALL, "rootState": "ended"}, diagnosis.STALL_ADVICE["ended"]),
        ({**STALL, "rootState": "elsewhere"}, diagnosis.STALL_ADVICE["elsewhere"]),
        ({**STALL, "sentence": "t/0 has waited for an item of queue ended with code 0"}, diagnosis.MAY_GO_ON_ADVICE),
        ({**STALL, "root": None}, diagnosis.NOBODY_ADVICE),
    ):
        _, lines = explained({**said, "stalls": [stall]})
        assert f"next: {advice}" in lines
        assert ("      dljob restart ppo reward/0 -n team" in lines) is (
            advice in (diagnosis.STANDS_ADVICE, diagnosis.STALL_ADVICE["stopped"])
        )
    # A job that has ended stands still no more, whatever is left in its status.
    assert explained({**said, "phase": "Succeeded", "recentFaults": []})[0] is CauseKind.NOTHING
