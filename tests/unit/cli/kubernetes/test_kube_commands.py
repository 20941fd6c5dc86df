"""status, logs, events, stack, restart and stop on a cluster, and which place a command means."""

from __future__ import annotations

import asyncio
import io
import json
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from fake_kube import CLUSTER, FakeKube, add_event, add_head, add_job, add_saved_logs, at_turns, logs_of

from dljob.api import registry
from dljob.api.kubernetes.handle import KubernetesJob
from dljob.api.kubernetes.timeline import EventFeed
from dljob.api.registry import RegistryEntry
from dljob.cli import main
from dljob.errors import JobFailedError, JobStoppedError
from dljob.kube.api import CONFIG_MAPS, DLJOBS, RAYCLUSTERS, SECRETS, ApiError, Response


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DLJOB_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    return tmp_path


# -- which place


@pytest.mark.parametrize("flags", [["-k"], ["-n", "team"], ["--context", "c"]])
@pytest.mark.parametrize("command", ["status", "logs", "events", "stack", "restart", "suspend", "resume", "stop"])
def test_each_flag_alone_means_the_cluster(command, flags, kube, dljob):
    code, _, err = dljob(command, "nope", *flags)
    assert code == 3
    assert "no job 'nope' in namespace team" in err
    assert kube.contexts == ["c" if flags[0] == "--context" else None]  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", ["status", "logs", "events", "stack", "restart", "stop"])
def test_without_a_flag_no_cluster_is_asked_but_named_when_there_is_one(command, kube, dljob, home):
    add_job(kube, phase="Running")
    code, _, err = dljob(command, "hello")
    assert code == 3
    assert "Kubernetes" not in err
    (home / ".kube").mkdir()
    (home / ".kube" / "config").write_text("{}")
    code, _, err = dljob(command, "hello")
    assert code == 3
    assert "no job 'hello' on this machine" in err
    assert f"on Kubernetes: dljob {command} hello --kubernetes" in err
    assert "on Kubernetes: dljob status --kubernetes" in dljob("status")[2]
    assert kube.contexts == []  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("words", "made"),
    [
        (["status"], ["status", "--kubernetes"]),
        (["logs", "j", "-f"], ["logs", "--kubernetes", "j", "-f"]),
        (["plan", "run"], ["plan", "run"]),
        (["--help"], ["--help"]),
        (["--debug", "stop", "j"], ["--debug", "stop", "--kubernetes", "j"]),
        ([], []),
    ],
)
def test_kubectl_dljob_is_about_the_cluster(words, made):
    assert main.on_kubernetes(words) == made


@pytest.mark.parametrize("command", main.LOCAL_ONLY)
def test_kubectl_dljob_refuses_a_command_about_this_machine(command, monkeypatch, capsys):
    called: list[object] = []
    monkeypatch.setattr(main, "_dispatch", lambda words: called.append(words) or 0)
    monkeypatch.setattr(sys, "argv", ["kubectl-dljob", command, "hello"])
    with pytest.raises(SystemExit) as ended:
        main.kubectl_main()
    err = capsys.readouterr().err
    assert (ended.value.code, called) == (2, [])
    assert "Traceback" not in err
    assert f"kubectl dljob {command} would act on this machine\n  {main.LOCAL_ONLY[command]}" in err
    assert main.run([command, "--help"], kubectl=True) == 0, "its help can be read all the same"


def test_kubectl_dljob_leaves_jobs_of_this_machine_alone():
    folder = registry.folder_of("hello", "1" * 32)
    registry.register(RegistryEntry(name="hello", uid="1" * 32, dir=str(folder)))
    (folder / "status.json").write_text('{"name": "hello", "phase": "Succeeded"}')
    assert main.run(["prune", "--older-than-days", "0"], kubectl=True) == 2
    assert main.run(["delete", "hello"], kubectl=True) == 2
    assert folder.is_dir()
    assert main.run(["delete", "hello"]) == 0
    assert not folder.exists()


def test_without_the_client_it_is_said_how_to_get_it():
    script = (
        "import sys; sys.modules['kubernetes'] = None; sys.modules['kubernetes.aio'] = None;"
        "from dljob.cli import main; sys.exit(main.run(['status', '-k']))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'dljob[kubernetes]'" in done.stderr


# -- status


def test_status_lists_the_dljobs_of_a_namespace_or_of_all(kube, dljob):
    assert dljob("status", "-k") == (0, "", "no jobs in namespace team\n")
    assert dljob("status", "-A") == (0, "", "no jobs in any namespace\n")
    assert json.loads(dljob("status", "-k", "-o", "json")[1]) == []
    add_job(kube, phase="Running", rolesReady="2/2", progress={"step": 3})
    add_job(kube, "other", "second")
    code, out, _ = dljob("status", "-k")
    assert code == 0
    assert [line.split()[:6] for line in out.splitlines()] == [
        ["NAME", "UID", "PHASE", "ROLES", "RESTARTS", "STEP"],
        ["hello", "00000001", "Running", "2/2", "0", "3"],
    ]
    _, out, _ = dljob("status", "-A")
    assert [line.split()[:2] for line in out.splitlines()] == [
        ["NAMESPACE", "NAME"],
        ["team", "hello"],
        ["second", "other"],
    ]
    assert [job["name"] for job in json.loads(dljob("status", "-A", "-o", "json")[1])] == ["hello", "other"]


def test_a_malformed_job_name_is_refused(kube, dljob):
    add_job(kube, phase="Running")
    for word in ("", "Hello", "%68ello", "."):
        code, _, err = dljob("status", word, "-k")
        assert (code, f"no job {word!r}" in err) == (3, True), err
    for path in ("hello/status", "../hello"):
        code, _, err = dljob("status", path, "-k")
        assert (code, f"{path} is a path on this machine" in err) == (2, True), err
    code, _, err = dljob("logs", "hello", "-k", "--tail=-3")
    assert (code, "--tail is a number of lines, not -3" in err) == (2, True)


def test_status_finds_a_job_by_name_or_uid_and_suggests_a_near_name(kube, dljob):
    job = add_job(kube, phase="Running", message="2 of 2", reason="Running")
    for word in ("hello", job["metadata"]["uid"], job["metadata"]["uid"].replace("-", ""), "00000001"):
        code, out, _ = dljob("status", word, "-k")
        assert (code, out.splitlines()[0]) == (0, "hello (00000001) in namespace team: Running")
    assert json.loads(dljob("status", "hello", "-k", "-o", "json")[1])["phase"] == "Running"
    code, _, err = dljob("status", "helo", "-k")
    assert (code, "did you mean 'hello'?" in err) == (3, True)


def test_a_cluster_without_the_crd_is_told(kube, dljob, monkeypatch):
    from dljob.kube.api import NotThereError

    async def nothing(*_: Any, **__: Any) -> Any:
        raise NotThereError(404, "NotFound", "the server could not find the requested resource")

    monkeypatch.setattr(kube, "list", nothing)
    for words in (["status", "-k"], ["status", "hello", "-k"]):
        code, _, err = dljob(*words)
        assert (code, "this cluster does not serve DLJobs" in err) == (4, True)


def test_watching_prints_a_row_for_every_change_and_ends_with_the_job(kube, dljob):
    add_job(kube, phase="Pending")
    loops: queue.SimpleQueue[asyncio.AbstractEventLoop] = queue.SimpleQueue()
    real = kube.watch

    def watch(*words: Any, **named: Any) -> Any:
        loops.put(asyncio.get_running_loop())
        return real(*words, **named)

    kube.watch = watch  # type: ignore[method-assign]

    def operate() -> None:
        loop = loops.get(timeout=60)
        for change in ({"phase": "Running"}, {"message": "says nothing new"}, {"phase": "Succeeded"}):
            threading.Event().wait(0.05)
            loop.call_soon_threadsafe(lambda c=change: kube.update("hello", **c))

    threading.Thread(target=operate).start()
    code, out, _ = dljob("status", "hello", "-k", "--watch")
    assert code == 0
    assert [line.split()[2] for line in out.splitlines()] == ["PHASE", "Pending", "Running", "Succeeded"]


# -- stack


def test_stacks_come_from_the_jobs_head_as_text_or_json(kube, dljob):
    add_job(kube, phase="Running")
    add_head(kube)
    texts = {"worker/0": "thread\n    f (a.py:1)\n", "worker/1": "no stack: why\n"}
    kube.head["stacks"] = lambda query: {
        "stacks": {name: text for name, text in texts.items() if query["target"] in (name, "worker", "job")}
    }
    code, out, _ = dljob("stack", "hello", "worker", "-k")
    assert (code, out) == (0, "== worker/0\nthread\n    f (a.py:1)\n== worker/1\nno stack: why\n")
    assert json.loads(dljob("stack", "hello", "-k", "-o", "json")[1])["worker/1"] == "no stack: why\n"
    assert KubernetesJob.named("hello").stacks("worker/1") == {"worker/1": "no stack: why\n"}
    assert dljob("stack", "hello", "-k", "-o", "yaml")[1].startswith('worker/0: "thread')


# -- record


def test_a_record_comes_from_the_jobs_head_with_new_events_about_the_job(kube):
    job = add_job(kube, phase="Running", submissionId="s", attempt=2)
    add_head(kube)
    add_event(kube, job, "Admitted", "it was admitted", "2026-01-01T00:00:01Z")
    kube.head["record"] = lambda query: {"files": {"events.jsonl": 9}, "parts": [], "asked": query["have"]}
    feed, handle = EventFeed(has_master_notes=False), KubernetesJob.named("hello")
    found = handle.record(feed, {"events.jsonl": 4, "status.json": 0})
    assert (found.attempt, found.overview.phase, found.silent) == (2, "Running", "")
    assert found.news == {"files": {"events.jsonl": 9}, "parts": [], "asked": "events.jsonl:4,status.json:0"}
    assert [event["reason"] for event in found.events] == ["Admitted"]
    assert not handle.record(feed, {}).events


def test_a_head_without_records_and_one_that_is_away_are_told_apart(kube):
    add_job(kube, phase="Pending")
    feed, handle = EventFeed(has_master_notes=False), KubernetesJob.named("hello")
    assert handle.record(feed, {})[3:] == (None, "")
    kube.update("hello", phase="Running", submissionId="s")
    assert "has no head pod now" in handle.record(feed, {}).silent
    add_head(kube)
    assert "does not answer" in handle.record(feed, {}).silent
    kube.head["record"] = lambda _query: Response(404, b'{"error": "Not Found"}')
    assert handle.record(feed, {})[3:] == (None, "")


# -- logs


def test_logs_of_a_living_job_come_from_its_head(kube, dljob):
    add_job(kube, phase="Running")
    add_head(kube)
    big = "x" * 700_000
    kube.head["logs"] = logs_of({("worker", 0): f"a\n{big}\n{big}\nb", ("worker", 1): "c\n"})
    code, out, _ = dljob("logs", "hello", "-k")
    assert code == 0
    assert out.splitlines() == [
        "[worker/0] a",
        f"[worker/0] {big}",
        f"[worker/0] {big}",
        "[worker/0] b",
        "[worker/1] c",
    ]
    assert dljob("logs", "hello", "-k", "--tail", "1")[1].splitlines() == ["[worker/0] b", "[worker/1] c"]
    assert dljob("logs", "hello", "-k", "--tail", "2", "--rank", "0")[1].splitlines()[0] == f"[worker/0] {big}"
    assert dljob("logs", "hello", "-k", "--tail", "0")[1] == ""
    assert dljob("logs", "hello", "-k", "--role", "worker", "--rank", "1")[1] == "[worker/1] c\n"


def end_with(kube: FakeKube, job: dict[str, Any], log: str) -> None:
    """The job ends, its head goes, and this log of rank 0 was saved."""
    kube.update("hello", phase="Succeeded")
    add_saved_logs(kube, job, worker_0=log)
    kube.head.clear()


def test_logs_since_a_moment_come_from_the_head(kube, dljob):
    job = add_job(kube, phase="Running")
    add_head(kube)
    asked: list[float] = []

    def since(moment: float) -> int:
        asked.append(time.time() - moment)
        return 2

    texts = {("worker", 0): "a\nb\nc\n"}
    kube.head["logs"] = logs_of(texts, since)
    assert dljob("logs", "hello", "-k", "--since", "10m") == (0, "[worker/0] b\n[worker/0] c\n", "")
    assert dljob("logs", "hello", "-k", "--since", "10m", "--tail", "1")[1] == "[worker/0] c\n"
    handle, out = KubernetesJob.named("hello"), io.StringIO()
    handle.logs(since=time.time() - 600, out=out)
    assert out.getvalue() == "[worker/0] b\n[worker/0] c\n"
    assert asked == pytest.approx([600, 600, 600], abs=30)
    kube.head["logs"] = logs_of(texts)
    untimed = "the output of worker/0 has no known times: its log is shown whole"
    code, shown, err = dljob("logs", "hello", "-k", "--since", "10m")
    assert (code, shown, untimed in err) == (0, "[worker/0] a\n[worker/0] b\n[worker/0] c\n", True)
    kube.head["logs"] = at_turns(logs_of(texts, since), {4: lambda: end_with(kube, job, "b\nc\nd\n")})
    lines = dljob("logs", "hello", "-k", "--since", "10m", "-f")[1].splitlines()
    assert lines == ["[worker/0] b", "[worker/0] c", "[worker/0] d"]
    code, shown, err = dljob("logs", "hello", "-k", "--since", "10m")
    assert (code, shown.splitlines()) == (0, lines)
    assert "the output of job hello has no known times: its log is shown whole" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--role", "wroker"], "did you mean 'worker'?"),
        (["--rank", "7"], "ranks are 0 to 1"),
        (["--rank=-1"], "ranks are 0 to 1"),
        (["--role", "worker", "--rank", "2", "-f"], "ranks are 0 to 1"),
    ],
)
def test_logs_refuses_a_target_that_is_not_there(words, said, kube, dljob):
    add_job(kube, phase="Running")
    code, _, err = dljob("logs", "hello", "-k", *words)
    assert (code, said in err) == (3, True), err


def test_logs_of_an_ended_job_come_from_what_was_kept(kube, dljob):
    job = add_job(kube, phase="Failed")
    code, _, err = dljob("logs", "hello", "-k")
    assert (code, "there is no ConfigMap hello-logs" in err) == (3, True)
    add_saved_logs(kube, job, worker_0="a\nb\n")
    assert dljob("logs", "hello", "-k") == (0, "[worker/0] a\n[worker/0] b\n", "")
    assert dljob("logs", "hello", "-k", "-f") == (0, "[worker/0] a\n[worker/0] b\n", "")
    code, _, err = dljob("logs", "hello", "-k", "--rank", "1")
    assert (code, "there is output of: worker" in err) == (3, True)


def test_a_config_map_of_somebody_else_is_no_kept_logs(kube, dljob):
    kube.put(CONFIG_MAPS, {"metadata": {"name": "hello-logs"}, "data": {"worker-0.log": "not of this job"}})
    add_job(kube, phase="Failed")
    code, out, _ = dljob("logs", "hello", "-k")
    assert (code, out) == (3, "")


def test_kept_logs_of_an_earlier_namesake_are_not_shown(kube, dljob):
    add_saved_logs(kube, {"metadata": {"name": "hello", "uid": "another"}}, worker_0="old\n")
    add_job(kube, phase="Failed")
    code, out, _ = dljob("logs", "hello", "-k")
    assert (code, out) == (3, "")


def test_the_reason_why_a_living_jobs_head_does_not_answer_is_shown(kube, dljob):
    waits = {"type": "ClusterReady", "status": "False", "reason": "Unschedulable", "message": "no nodes"}
    add_job(kube, phase="Provisioning", conditions=[waits])
    code, _, err = dljob("logs", "hello", "-k")
    words = "nothing of job hello in namespace team runs yet: Provisioning (Unschedulable: no nodes)"
    assert (code, words in err) == (3, True)
    kube.update("hello", phase="Recovering")
    code, _, err = dljob("logs", "hello", "-k")
    assert (code, "has no head pod now" in err) == (4, True)
    add_head(kube)
    code, _, err = dljob("logs", "hello", "-k")
    assert (code, "does not answer: error trying to reach service" in err) == (4, True)
    kube.head["logs"] = lambda _query: Response(503, b'{"error": "PrimeMaster is not running now"}')
    code, _, err = dljob("logs", "hello", "-k")
    assert (code, "answers 503" in err, "PrimeMaster is not running now" in err) == (4, True, True), err
    kube.forbidden.add("get secrets")
    code, _, err = dljob("logs", "hello", "-k")
    assert (code, "need the right to get secrets" in err) == (4, True)
    kube.forbidden.clear()
    del kube.objects["secrets", "team", "hello-1a2b3-token"]
    code, _, err = dljob("logs", "hello", "-k")
    assert (code, "hello-1a2b3-token with the token of the RayCluster is gone" in err) == (4, True)
    kube.put(SECRETS, {"metadata": {"name": "hello-1a2b3-token"}, "data": {}})
    assert "holds no token" in dljob("logs", "hello", "-k")[2]


def test_the_token_of_a_ray_cluster_that_was_there_is_the_one_it_names(kube, dljob):
    job = add_job(kube, phase="Running")
    kube.put(DLJOBS, {**job, "spec": {**job["spec"], "rayClusterRef": {"name": CLUSTER}}})
    add_head(kube)
    kube.head["logs"] = logs_of({("worker", 0): "hi\n"})
    assert "the RayCluster hello-1a2b3 of job hello in namespace team is gone" in dljob("logs", "hello", "-k")[2]
    secret = kube.objects.pop(("secrets", "team", f"{CLUSTER}-token"))
    kube.put(SECRETS, {**secret, "metadata": {"name": "named-by-it"}})
    auth = {"mode": "token", "secretName": "named-by-it"}
    kube.put(RAYCLUSTERS, {"metadata": {"name": CLUSTER}, "spec": {"authOptions": auth}})
    code, out, err = dljob("logs", "hello", "-k")
    assert (code, out) == (0, "[worker/0] hi\n"), err
    kube.forbidden.add("get rayclusters")
    code, _, err = dljob("logs", "hello", "-k")
    assert (code, "need the right to get rayclusters" in err) == (4, True)


def test_following_sees_each_line_once_through_a_head_that_is_away(kube, dljob):
    add_job(kube, phase="Running")
    add_head(kube)
    texts = {("worker", 0): "a\nb"}

    def end() -> None:
        texts["worker", 0] += "e\nend"
        kube.update("hello", phase="Succeeded")

    events = {
        4: lambda: texts.update({("worker", 0): "a\nbc\nd\n"}),
        8: ApiError(503, "ServiceUnavailable", "connection refused"),
        12: end,
    }
    kube.head["logs"] = at_turns(logs_of(texts), events)
    code, out, _ = dljob("logs", "hello", "-k", "-f")
    assert code == 0
    assert out.splitlines() == [f"[worker/0] {line}" for line in ("a", "bc", "d", "e", "end")]


def test_following_with_a_tail_begins_with_the_last_lines(kube, dljob):
    add_job(kube, phase="Succeeded")
    add_head(kube)
    kube.head["logs"] = logs_of({("worker", 0): "a\nb\nc\n"})
    assert dljob("logs", "hello", "-k", "-f", "--tail", "1")[1] == "[worker/0] c\n"


def test_thousands_of_ranks_are_not_followed(kube, dljob):
    kube.put(DLJOBS, {"metadata": {"name": "big"}, "spec": {"roles": [{"name": "a", "replicas": 3000}]}})
    code, _, err = dljob("logs", "big", "-k", "-f")
    assert (code, "take some with --role and --rank" in err) == (2, True)


def test_lines_that_nobody_saw_are_said_to_be_missing(kube, dljob):
    job = add_job(kube, phase="Running")
    add_head(kube)
    end = {3: lambda: end_with(kube, job, "much later\nend\n")}
    kube.head["logs"] = at_turns(logs_of({("worker", 0): "a\nb\nhalf"}), end)
    code, out, _ = dljob("logs", "hello", "-k", "-f")
    assert code == 0
    assert out.splitlines() == [
        f"[worker/0] {line}" for line in ("a", "b", "half", "[dljob] lines are missing here", "much later", "end")
    ]


GONE = Response(503, b'{"error": "the log on node n cannot be read: it is gone"}')


def test_why_a_followed_log_cannot_be_had_is_said_once_and_it_is_asked_for_again(kube, dljob):
    add_job(kube, phase="Running")
    add_head(kube)
    texts = {("worker", 0): "a\n", ("worker", 1): "b\n"}
    events = {
        **dict.fromkeys(range(7, 20), GONE),
        20: lambda: texts.update({("worker", 0): "a\nc\n"}),
        30: lambda: kube.update("hello", phase="Succeeded"),
    }
    kube.head["logs"] = at_turns(logs_of(texts), events)
    words = "[dljob] the log on node n cannot be read: it is gone; it is asked for again"
    lines = dljob("logs", "hello", "-k", "-f")[1].splitlines()
    assert sorted(lines[:2]) == ["[worker/0] a", "[worker/1] b"]
    assert [line.partition(" ")[2] for line in lines[2:]] == [words, "c"], "of two ranks on one node"


def test_lines_read_before_a_log_became_unreadable_are_not_lost(kube, dljob):
    add_job(kube, phase="Running")
    add_head(kube)
    events = {2: GONE, 6: lambda: kube.update("hello", phase="Succeeded")}  # first the second piece of a long log
    kube.head["logs"] = at_turns(logs_of({("worker", 0): "a\nb\n"}), events)
    lines = dljob("logs", "hello", "-k", "-f", "--rank", "0")[1].splitlines()
    assert lines == ["[worker/0] a", "[worker/0] b"], "once is nothing to speak of"


def test_the_log_of_a_job_that_is_over_is_not_said_to_be_asked_for_again(kube, dljob):
    """Its pods are taken away while its last lines are read."""
    add_job(kube, phase="Running")
    add_head(kube)

    def end() -> Response:
        kube.update("hello", phase="Succeeded")
        return GONE

    kube.head["logs"] = at_turns(logs_of({("worker", 0): "a\n"}), dict.fromkeys(range(2, 100), end))
    lines = dljob("logs", "hello", "-k", "-f", "--rank", "0")[1].splitlines()
    assert lines == ["[worker/0] a"]


def test_a_log_that_was_long_silent_is_looked_at_when_the_job_is_over(kube, dljob):
    add_job(kube, phase="Running")
    add_head(kube)
    texts = {("worker", 0): "a\n", ("worker", 1): "b\n"}
    looks = 0

    def head(query: dict[str, Any]) -> Any:
        nonlocal looks
        looks += query["rank"] == 0
        said = logs_of(texts)(query)
        if query["rank"] == 1 and not said["text"]:
            texts["worker", 1] += "b\n"  # never silent: looked at each turn
            if looks == 6:  # and the other one only now and then
                texts["worker", 0] += "end\n"
                kube.update("hello", phase="Succeeded")
        return said

    kube.head["logs"] = head
    lines = dljob("logs", "hello", "-k", "-f")[1].splitlines()
    assert [line for line in lines if line.startswith("[worker/0]")] == ["[worker/0] a", "[worker/0] end"]


def test_an_unreadable_log_does_not_hide_the_others(kube, dljob):
    add_job(kube, phase="Running")
    add_head(kube)
    asked = logs_of({("worker", 0): "a\n"})
    kube.head["logs"] = lambda query: GONE if query["rank"] == 1 else asked(query)
    for more in ((), ("--tail", "3")):
        code, out, _ = dljob("logs", "hello", "-k", *more)
        assert (code, out) == (0, "[worker/0] a\n[worker/1] [dljob] the log on node n cannot be read: it is gone\n")
    code, out, err = dljob("logs", "hello", "-k", "--rank", "1")
    assert (code, out, "answers 503" in err) == (4, "", True)
    kube.update("hello", phase="Failed")
    code, _, err = dljob("logs", "hello", "-k", "--rank", "1")
    assert (code, "it is gone" in err) == (4, True), "its head is there"


def test_quiet_logs_are_looked_at_less_often_and_all_of_them_at_the_end(kube, dljob):
    add_job(kube, phase="Running")
    add_head(kube)
    asked = {0: 0, 1: 0}
    texts = {("worker", 0): "", ("worker", 1): ""}

    def head(query: dict[str, Any]) -> Any:
        asked[query["rank"]] += 1
        if query["rank"] == 0 and asked[0] < 60:
            texts["worker", 0] += f"{asked[0]}\n"
        elif query["rank"] == 0:
            texts["worker", 1] = "late\n"
            kube.update("hello", phase="Succeeded")
        return logs_of(texts)(query)

    kube.head["logs"] = head
    _, out, _ = dljob("logs", "hello", "-k", "-f")
    assert asked[1] < asked[0] / 3
    assert out.splitlines()[-1] == "[worker/1] late"


# -- events


def test_events_and_notes_make_one_timeline(kube, dljob):
    job = add_job(kube, phase="Running")
    add_head(kube)
    add_event(kube, job, "PodsReady", "3 of 3", "2026-01-01T00:00:10.500000Z")
    add_event(kube, job, "Restarting", "worker/1: killed, level Process", "2026-01-01T00:00:40Z", type="Warning")
    add_event(kube, {"metadata": {"name": "other", "uid": "x"}}, "Foreign", "not ours", "2026-01-01T00:00:01Z")
    notes = [
        {"seq": 1, "time": 1767225620.0, "reason": "Admitted", "target": "job", "message": "2 units held"},
        {"seq": 2, "time": 1767225640.0, "reason": "Restarting", "target": "worker/1", "message": "killed"},
    ]  # fmt: skip
    kube.head["events"] = lambda query: {"events": [n for n in notes if n["seq"] > query["after"]][:1]}
    code, out, err = dljob("events", "hello", "-k")
    assert (code, err) == (0, "")
    assert [" ".join(line.split()) for line in out.splitlines()] == [
        "10.5s PodsReady job 3 of 3",
        "20.0s Admitted job 2 units held",
        "40.0s Restarting job Warning: worker/1: killed, level Process",
    ]
    shown = [json.loads(line) for line in dljob("events", "hello", "-k", "-o", "json")[1].splitlines()]
    assert [note["reason"] for note in shown] == ["PodsReady", "Admitted", "Restarting"]


def test_events_without_the_master_say_so(kube, dljob):
    add_job(kube, phase="Provisioning")
    code, out, err = dljob("events", "hello", "-k")
    assert (code, out) == (0, "")
    assert err == "no events; Kubernetes keeps them for an hour\n"
    kube.update("hello", phase="Running")
    _, _, err = dljob("events", "hello", "-k")
    assert "without PrimeMaster's own notes: job hello in namespace team has no head pod now" in err


def test_following_events_shows_each_once(kube, dljob, monkeypatch):
    job = add_job(kube, phase="Running")
    add_event(kube, job, "PodsReady", "3 of 3", "2026-01-01T00:00:10Z")
    looks = 0
    real = kube.get

    async def get(resource: Any, name: str, namespace: str | None = None) -> Any:
        nonlocal looks
        looks += resource is DLJOBS
        if looks == 3:
            series = {"count": 2, "lastObservedTime": "2026-01-01T00:00:20Z"}
            add_event(kube, job, "PodsReady", "3 of 3", "2026-01-01T00:00:10Z", series=series,
                      metadata={"name": "hello.podsready", "uid": "00000002-0000-0000-0000-000000000000"})  # fmt: skip
        if looks == 5:
            kube.update("hello", phase="Succeeded")
        return await real(resource, name, namespace)

    monkeypatch.setattr(kube, "get", get)
    code, out, _ = dljob("events", "hello", "-k", "-f")
    assert code == 0
    assert [" ".join(line.split()) for line in out.splitlines()] == [
        "10.0s PodsReady job 3 of 3",
        "20.0s PodsReady job 3 of 3 (x2)",
    ]


# -- orders


def operator(kube: FakeKube, state: str = "Sent", message: str = "PrimeMaster accepted it") -> None:
    """Answers every order at once."""

    def take(job: dict[str, Any]) -> None:
        notes, status = job["metadata"].get("annotations", {}), job.get("status") or {}
        known = status.get("lastCommands") or []
        for kind in ("restart", "stop"):
            at = notes.get(f"dljob.io/{kind}")
            if at and not any(one["at"] == at for one in known):
                entry = {"id": f"{kind}/{at}", "kind": kind, "at": at, "state": state, "message": message}
                kube.update(job["metadata"]["name"], lastCommands=[*known, entry])

    kube.on_patch = take


@pytest.mark.parametrize("target", ["job", "worker", "worker/1"])
def test_a_restart_is_an_annotation_that_the_operator_takes(target, kube, dljob):
    add_job(kube, phase="Running")
    operator(kube)
    code, out, err = dljob("restart", "hello", *([] if target == "job" else [target]), "-k")
    assert (code, out) == (0, "")
    assert "dljob events hello --follow -n team" in err
    notes = kube.one(DLJOBS, "hello")["metadata"]["annotations"]
    assert notes["dljob.io/restart-target"] == target
    at = notes["dljob.io/restart"]
    assert (len(at), at[-1]) == (27, "Z"), "RFC 3339 with microseconds"
    assert dljob("restart", "hello", "-k")[0] == 0
    assert kube.one(DLJOBS, "hello")["metadata"]["annotations"]["dljob.io/restart"] > at, "another one is another order"


@pytest.mark.parametrize(
    ("target", "hint"),
    [
        ("wroker", "did you mean 'worker'?"),
        ("worker/2", "worker/0 to worker/1"),
        ("worker/x", "worker/0 to worker/1"),
        ("worker/-1", "worker/0"),
        ("worker/", "worker/0 to worker/1"),
        ("", "known: job, worker"),
        ("node/n1", "known: job, worker"),
    ],
)
def test_an_unknown_target_is_refused_before_anything_is_sent(target, hint, kube, dljob):
    add_job(kube, phase="Running")
    code, _, err = dljob("restart", "hello", target, "-k")
    assert (code, hint in err) == (3, True), err
    assert "annotations" not in kube.one(DLJOBS, "hello")["metadata"]


@pytest.mark.parametrize("state", ["Refused", "Ignored"])
def test_an_order_that_is_not_carried_out_is_an_error(state, kube, dljob):
    add_job(kube, phase="Provisioning")
    operator(kube, state, "nothing of the job runs yet")
    code, _, err = dljob("restart", "hello", "worker", "-k")
    assert (code, f"restart of worker {state.lower()}: nothing of the job runs yet" in err) == (2, True)


def test_an_order_that_nobody_takes_times_out_and_stands(kube, dljob, monkeypatch):
    from dljob.api.kubernetes import orders

    add_job(kube, phase="Running")
    monkeypatch.setattr(orders.order, "__defaults__", ("job", 0.1))
    monkeypatch.setattr("dljob.api.kubernetes.orders.SILENCE_S", 0.02)
    code, _, err = dljob("restart", "hello", "-k")
    assert err.startswith("waiting for the operator to accept the restart, at most 60 s\n")
    assert (code, "has not accepted the restart" in err, "dljob doctor" in err) == (5, True, True)
    assert "dljob.io/restart" in kube.one(DLJOBS, "hello")["metadata"]["annotations"]


def test_stop_annotates_the_job_and_waits_for_its_end(kube, dljob):
    add_job(kube, phase="Running")
    operator(kube)
    code, _, err = dljob("stop", "hello", "-k")
    assert (code, "job hello in namespace team is being stopped; its logs: dljob logs hello -n team" in err) == (
        0,
        True,
    )
    kube.on_patch = lambda job: kube.update("hello", phase="Stopped", reason="StoppedByUser")
    code, _, err = dljob("stop", "hello", "-k", "--wait")
    assert (code, "job hello in namespace team stopped" in err) == (0, True)
    assert (len(kube.contexts), kube.closed) == (2, 2), "one connection for each command"  # type: ignore[attr-defined]
    code, _, err = dljob("stop", "hello", "-k")
    assert (code, "has ended: Stopped" in err) == (3, True)


@pytest.mark.parametrize(("phase", "kind"), [("Stopped", JobStoppedError), ("Failed", JobFailedError)])
def test_a_job_without_a_result_says_how_it_ended(phase, kind, kube):
    add_job(kube, phase=phase, reason="Because", message="of this")
    with pytest.raises(kind, match="Because: of this") as told:
        _ = KubernetesJob.named("hello", context="c").result
    assert type(told.value) is kind
    assert told.value.hint == (
        "see dljob status hello -n team --context c; its logs: dljob logs hello -n team --context c"
    )


def test_a_restart_that_the_jobs_end_overtakes(kube, dljob):
    add_job(kube, phase="Running")
    kube.on_patch = lambda job: kube.update("hello", phase="Succeeded")
    code, _, err = dljob("restart", "hello", "-k")
    assert (code, "ended before: Succeeded" in err) == (3, True)


# -- jobs that are replaced, servers that go away


def again(kube: FakeKube) -> None:
    """Somebody deletes the job and makes another of its name."""
    del kube.objects["dljobs", "team", "hello"]
    add_job(kube, phase="Running")


async def test_an_order_reaches_only_the_job_that_was_meant(kube):
    from dljob.api.kubernetes import orders

    meant = add_job(kube, phase="Running")
    again(kube)
    with pytest.raises(ApiError, match="precondition"):
        await orders.order(kube, meant, "stop")  # type: ignore[arg-type]
    assert "annotations" not in kube.one(DLJOBS, "hello")["metadata"]


async def test_waiting_ends_when_the_job_is_replaced_or_deleted(kube):
    from dljob.api.kubernetes import jobs
    from dljob.errors import NotFoundError

    for change in (again, lambda kube: kube.objects.clear()):
        meant = add_job(kube, phase="Running")
        waiting = asyncio.ensure_future(jobs.wait(kube, meant, 5))  # type: ignore[arg-type]
        await asyncio.sleep(0.02)
        change(kube)
        kube.changed.set()
        with pytest.raises(NotFoundError, match="was deleted"):
            await waiting


@pytest.mark.parametrize("change", [again, lambda kube: kube.objects.clear()])
def test_waiting_for_a_deleted_job_raises_not_found_error(kube, change):
    from dljob.errors import NotFoundError

    handle = KubernetesJob(add_job(kube, phase="Running"))
    change(kube)
    with pytest.raises(NotFoundError, match="was deleted"):
        handle.wait(5)


async def test_waiting_ends_for_a_job_that_goes_while_the_watch_begins_anew(kube, monkeypatch):
    from dljob.api.kubernetes import jobs
    from dljob.errors import NotFoundError

    meant, real, broken = add_job(kube, phase="Running"), kube.watch, [429, 500]

    async def watch(*words: Any, **more: Any) -> Any:
        async for told in real(*words, **more):
            yield told
            if broken:
                if len(broken) == 1:
                    kube.objects.clear()
                raise ApiError(broken.pop(), "", "busy")

    monkeypatch.setattr(kube, "watch", watch)
    with pytest.raises(NotFoundError, match="was deleted"):
        await jobs.wait(kube, meant, 5)  # type: ignore[arg-type]


def test_following_survives_a_server_that_is_away_for_a_while(kube, dljob, monkeypatch):
    from dljob.api.kubernetes import jobs

    add_job(kube, phase="Running")
    add_head(kube)
    kube.head["logs"] = logs_of({("worker", 0): "a\n"})
    answers: list[Any] = [None, None, ApiError(0, "Unreachable", "no answer"), ApiError(503, "", "busy"), None]
    real = kube.get

    async def get(resource: Any, name: str, namespace: str | None = None) -> Any:
        if resource is DLJOBS and answers:
            answer = answers.pop(0)
            if answer is not None:
                raise answer
            if not answers:
                kube.update("hello", phase="Succeeded")
        return await real(resource, name, namespace)

    monkeypatch.setattr(kube, "get", get)
    assert dljob("logs", "hello", "-k", "-f")[:2] == (0, "[worker/0] a\n")
    monkeypatch.setattr(jobs, "PATIENCE_S", 0.03)
    kube.update("hello", phase="Running")
    answers = [None, *[ApiError(0, "Unreachable", "no answer")] * 20]
    code, _, err = dljob("logs", "hello", "-k", "-f")
    assert (code, "no answer" in err) == (4, True)


def test_following_a_replaced_job_ends(kube, dljob, monkeypatch):
    add_job(kube, phase="Running")
    looks = 0
    real = kube.get

    async def get(resource: Any, name: str, namespace: str | None = None) -> Any:
        nonlocal looks
        looks += resource is DLJOBS
        if looks == 3:
            again(kube)
        return await real(resource, name, namespace)

    monkeypatch.setattr(kube, "get", get)
    code, _, err = dljob("logs", "hello", "-k", "-f")
    assert (code, "was deleted and created anew" in err) == (3, True)


def test_a_new_attempts_logs_begin_anew(kube, dljob):
    add_job(kube, phase="Running")
    add_head(kube)
    texts = {("worker", 0): "a long first attempt\n"}
    events = {
        6: lambda: texts.update({("worker", 0): "b\n"}),
        14: lambda: kube.update("hello", phase="Succeeded"),
    }
    kube.head["logs"] = at_turns(logs_of(texts), events)
    assert dljob("logs", "hello", "-k", "-f")[1] == "[worker/0] a long first attempt\n[worker/0] b\n"
