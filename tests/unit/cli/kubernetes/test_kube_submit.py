"""submit and run on a cluster: what is made there, what is printed, and what is undone when the server refuses."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import signal
import zipfile
from pathlib import Path
from typing import Any

import pytest
from fake_kube import FakeKube, add_event, add_head, add_job, add_saved_logs, logs_of
from hello_job import JOB

from dljob.cli import main, output
from dljob.kube.api import CONFIG_MAPS, DLJOBS, ApiError
from dljob.reconcile.state import names


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "hello.py").write_text("def main(): ...\n")
    made = tmp_path / "dljob.yaml"
    made.write_text(JOB)
    return made


def only(kube: FakeKube, plural: str) -> dict[str, Any]:
    (found,) = [o for (kind, _, _), o in kube.objects.items() if kind == plural]
    return found


def test_submit_makes_the_code_and_the_job_that_owns_it(kube, file, capsys):
    assert main.run(["submit", str(file), "-k"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "hello\n"
    job, code = only(kube, "dljobs"), only(kube, "configmaps")
    assert job["spec"]["code"] == {"configMap": code["metadata"]["name"]}
    assert "replicasPerGroup" not in job["spec"]["roles"][0], "defaults are left to the server"
    assert code["metadata"]["name"].startswith("hello-code-")
    assert code["immutable"] is True
    (owner,) = code["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("DLJob", job["metadata"]["uid"])
    with zipfile.ZipFile(io.BytesIO(base64.b64decode(code["binaryData"]["dljob-code.zip"]))) as archive:
        assert sorted(archive.namelist()) == ["dljob.yaml", "hello.py"]
    assert "code: 2 files, " in printed.err
    assert "dljob logs hello --follow -n team" in printed.err
    assert kube.contexts == [None]  # type: ignore[attr-defined]
    assert kube.closed == 1


@pytest.mark.parametrize(
    ("environment", "flags", "written"),
    [("YuanRong", [], {"name": "yr"}), ("yr", ["--backend", "ray"], {}), (" ", [], None)],
)
def test_the_backend_that_the_environment_asks_for_goes_along(kube, file, monkeypatch, *, environment, flags, written):
    """`{}` is ray, by the server's default."""
    monkeypatch.setenv("DISTRIBUTED_BACKEND", environment)
    assert main.run(["submit", str(file), "-k", *flags]) == 0
    assert only(kube, "dljobs")["spec"].get("backend") == written


def test_submit_takes_namespace_context_name_and_output_form_from_flags(kube, file, capsys):
    words = [
        "submit",
        str(file),
        "-n",
        "other",
        "--context",
        "prod",
        "--name",
        "again",
        "--backend",
        "ray",
        "-o",
        "json",
    ]
    assert main.run(words) == 0
    printed = capsys.readouterr()
    shown = json.loads(printed.out)
    assert (shown["metadata"]["name"], shown["metadata"]["namespace"]) == ("again", "other")
    assert shown["spec"]["backend"] == {}, "named, though by its default"
    assert kube.contexts == ["prod"]  # type: ignore[attr-defined]
    assert "dljob status again -n other --context prod" in printed.err


def test_the_files_namespace_counts_and_must_not_be_contradicted(kube, file, capsys):
    file.write_text(JOB.replace("{name: hello}", "{name: hello, namespace: filed}"))
    assert main.run(["submit", str(file), "-n", "other"]) == 2
    assert "the file says metadata.namespace filed, the command says other" in capsys.readouterr().err
    assert kube.objects == {}
    assert main.run(["submit", str(file), "-k"]) == 0
    assert only(kube, "dljobs")["metadata"]["namespace"] == "filed"


def test_submit_uploads_nothing_when_the_image_has_the_code(kube, file):
    assert main.run(["submit", str(file), "-k", "--no-upload"]) == 0
    assert [kind for kind, _, _ in kube.objects] == ["dljobs"]
    assert "code" not in only(kube, "dljobs")["spec"]


def test_a_config_map_that_the_spec_names_counts_when_it_is_there(kube, file, capsys):
    other = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: mine}\ndata: {}\n"
    file.write_text(JOB + "  code: {configMap: mine}\n" + other)

    def code(*flags: str) -> tuple[str, str]:
        assert main.run(["submit", str(file), "-k", *flags]) == 0
        made = kube.objects.pop(("dljobs", "team", "hello"))
        return made["spec"]["code"]["configMap"], capsys.readouterr().err

    sent, said = code()
    assert sent.startswith("hello-code-")
    assert "in place of ConfigMap mine, which is not there" in said
    assert code("--no-upload") == ("mine", code("--no-upload")[1])
    kube.put(CONFIG_MAPS, {"metadata": {"name": "mine"}, "data": {}})
    sent, said = code()
    assert sent == "mine"
    assert "code: ConfigMap mine, as spec.code.configMap says; --upload sends" in said
    assert code("--upload")[0].startswith("hello-code-")
    kube.forbidden.add("get configmaps")
    assert code()[0] == "mine"


def test_the_code_of_a_runtime_environment_counts(kube, file):
    file.write_text(JOB + "  runtimeEnv: {working_dir: 'https://example.test/code.zip'}\n")
    assert main.run(["submit", str(file), "-k"]) == 0
    assert [kind for kind, _, _ in kube.objects] == ["dljobs"]


def test_submit_uploads_nothing_to_an_existing_raycluster(kube, file, capsys):
    file.write_text(JOB + "  rayClusterRef: {name: shared}\n")
    assert main.run(["submit", str(file), "-k"]) == 0
    assert [kind for kind, _, _ in kube.objects] == ["dljobs"]
    assert "code: that of RayCluster shared" in "".join(capsys.readouterr())


def test_a_working_dir_is_what_is_sent_and_is_not_named_on_the_cluster(kube, file):
    (file.parent / "src").mkdir()
    (file.parent / "src" / "a.py").write_text("")
    file.write_text(JOB + "  code: {workingDir: src}\n")
    assert main.run(["submit", str(file), "-k"]) == 0
    with zipfile.ZipFile(
        io.BytesIO(base64.b64decode(only(kube, "configmaps")["binaryData"]["dljob-code.zip"]))
    ) as made:
        assert made.namelist() == ["a.py"]
    assert list(only(kube, "dljobs")["spec"]["code"]) == ["configMap"]


def test_a_name_that_is_taken_changes_nothing(kube, file, capsys):
    add_job(kube, phase="Running")
    before = dict(kube.objects)
    assert main.run(["submit", str(file), "-k"]) == 2
    printed = capsys.readouterr()
    assert "there is a job hello in namespace team, Running" in printed.err
    assert "kubectl delete dljob hello -n team" in printed.err
    assert kube.objects == before


def refused(
    kube: FakeKube, file: Path, capsys: pytest.CaptureFixture[str], status: int, answer: dict[str, Any]
) -> tuple[int, str]:
    kube.refuse = (status, answer)
    code = main.run(["submit", str(file), "-k"])
    assert kube.objects == {}, "the ConfigMap of a refused job is taken back"
    return code, capsys.readouterr().err


def test_a_refusal_of_the_server_is_shown_in_its_words_with_the_line_of_the_file(kube, file, capsys):
    causes = [
        {"message": 'Invalid value: "object": at least one role must be a driver', "field": "spec"},
        {"message": "Invalid value: 2: must be odd", "field": "spec.roles[0].replicas"},
        {"message": "somewhere else", "field": "<nil>"},
    ]
    answer = {"reason": "Invalid", "message": "...", "details": {"causes": causes}}
    code, said = refused(kube, file, capsys, 422, answer)
    assert code == 2
    assert said.splitlines()[-3:] == [
        "error: somewhere else",
        f"{file}:5:3: spec: at least one role must be a driver",
        f"{file}:7:15: spec.roles[0].replicas: Invalid value: 2: must be odd",
    ]


def test_fields_unknown_to_the_server_are_refused_with_their_paths(kube, file, capsys):
    message = 'cannot be handled as a DLJob: strict decoding error: unknown field "spec.roles[0].replicas"'
    code, said = refused(kube, file, capsys, 400, {"reason": "BadRequest", "message": message})
    assert code == 2
    assert f"{file}:7:15: spec.roles[0].replicas: unknown to the API server" in said
    assert "dljob doctor" in said


OTHERS: list[tuple[int, str, int, str]] = [
    (404, "the server could not find the requested resource", 4, "does not serve DLJobs"),
    (404, "", 4, "does not serve DLJobs"),
    (404, 'namespaces "team" not found', 3, 'namespaces "team" not found'),
    (403, "forbidden: exceeded quota: q, requested: count/dljobs=1", 4, "kubectl describe quota -n team"),
    (403, 'User "u" cannot create resource "dljobs"', 4, "auth can-i"),
    (403, 'admission webhook "p" denied the request: no', 2, "a policy of this cluster"),
    (409, "already exists", 2, "there is a job hello in namespace team"),
    (500, "etcd is away", 4, "etcd is away"),
]


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: other[1][:20])
def test_other_refusals_of_the_server_become_exit_codes_and_words(other, kube, file, capsys):
    status, message, code, words = other
    left, said = refused(kube, file, capsys, status, {"message": message} if message else {})
    assert (left, words in said) == (code, True), said


def test_code_that_was_left_by_an_earlier_job_is_taken_over_or_made_anew(kube, file, monkeypatch):
    assert main.run(["submit", str(file), "-k"]) == 0
    code = only(kube, "configmaps")
    del kube.objects["dljobs", "team", "hello"]
    assert main.run(["submit", str(file), "-k"]) == 0
    assert only(kube, "configmaps")["metadata"]["ownerReferences"][0]["uid"] == only(kube, "dljobs")["metadata"]["uid"]
    del kube.objects["dljobs", "team", "hello"]

    real = kube.put

    def collected(resource: Any, body: Any, namespace: str = "team") -> Any:
        if resource is DLJOBS:  # the garbage collector comes between
            kube.objects.pop(("configmaps", "team", code["metadata"]["name"]), None)
        return real(resource, body, namespace)

    monkeypatch.setattr(kube, "put", collected)
    assert main.run(["submit", str(file), "-k"]) == 0
    assert only(kube, "configmaps")["metadata"]["ownerReferences"][0]["uid"] == only(kube, "dljobs")["metadata"]["uid"]


def test_code_that_another_submit_took_meanwhile_is_left_to_it(kube, file, monkeypatch):
    real = kube.create

    async def create(resource: Any, body: Any, namespace: str | None = None) -> Any:
        owner = {"metadata": {**body["metadata"], "ownerReferences": [{"uid": "the other's"}]}}
        return await real(resource, {**body, **owner}, namespace)

    monkeypatch.setattr(kube, "create", create)
    kube.refuse = (409, {"message": "already exists"})
    assert main.run(["submit", str(file), "-k"]) == 2
    assert only(kube, "configmaps")


def test_a_spec_that_is_wrong_is_refused_before_any_cluster(kube, file, capsys):
    file.write_text(JOB.replace("replicas", "replcas"))
    assert main.run(["submit", str(file), "-k"]) == 2
    assert "did you mean" in capsys.readouterr().err
    assert kube.contexts == []  # type: ignore[attr-defined]


# -- run


def play(kube: FakeKube, monkeypatch: pytest.MonkeyPatch, *acts: Any) -> None:
    """Let each look at the job be followed by the next act of the operator."""
    real, left = kube.get, list(acts)

    async def get(resource: Any, name: str, namespace: str | None = None) -> Any:
        if resource is DLJOBS and (resource.plural, namespace, name) in kube.objects and left:
            left.pop(0)()
        return await real(resource, name, namespace)

    monkeypatch.setattr(kube, "get", get)


def test_run_follows_a_job_to_its_end(kube, file, monkeypatch, capsys):
    texts = {("worker", 0): "a\nb"}
    kube.head["logs"] = logs_of(texts)

    def event() -> None:
        add_event(
            kube, only(kube, "dljobs"), "HeadPending", "the head pod is pulled", "2026-01-01T00:00:01Z", type="Warning"
        )

    def running() -> None:
        kube.update("hello", phase="Running", progress={"step": 1, "metrics": [{"name": "loss", "value": "0.5"}]})
        add_head(kube)

    def end() -> None:
        texts["worker", 0] += "c\n"
        kube.update("hello", phase="Succeeded", startTime="2026-01-01T00:00:00Z", completionTime="2026-01-01T00:00:09Z",
                    restarts={"process": 1})  # fmt: skip
        add_saved_logs(kube, only(kube, "dljobs"), worker_0="a\nbc\nlast", worker_1="never seen\n")
        kube.head.clear()

    play(kube, monkeypatch, event, running, lambda: None, end)
    assert main.run(["run", str(file), "-k"]) == 0
    printed = capsys.readouterr()
    (last,) = printed.out.splitlines()
    assert json.loads(last) == {
        "name": "hello", "namespace": "team", "phase": "Succeeded", "step": 1, "metrics": {"loss": 0.5},
        "seconds": 9.0, "restarts": {"process": 1},
    }  # fmt: skip
    lines = [line.split("] ", 1)[-1] if line.startswith("[ ") else line for line in printed.err.splitlines()]
    assert [line for line in lines if not line.startswith("code:")] == [
        "Pending",
        "HeadPending: the head pod is pulled",
        "Running",
        "step 1  loss 0.5  avg5 0.5  ▁",
        "[worker/0] a",
        "[worker/0] bc",
        "[worker/0] last",
        "[worker/1] never seen",
        "Succeeded after 9.0 s; restarts: 1 process",
        "its kept logs: dljob logs hello -n team",
    ]


def test_a_torchrun_line_is_run_there_with_the_folder_that_it_is_given_in(kube, file, monkeypatch, capsys):
    monkeypatch.chdir(file.parent)
    line = ["--nnodes=2:4", "--nproc-per-node=8", "--accelerator", "GPU", "--image", "train:1", "hello.py", "--lr", "3"]

    def end() -> None:
        kube.update("hello", phase="Succeeded", progress={"step": 4})

    play(kube, monkeypatch, end)
    assert main.run(["torchrun", "--to", "kubernetes", "--namespace", "team", *line]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["phase"] == "Succeeded"
    job, code = only(kube, "dljobs"), only(kube, "configmaps")
    assert (job["metadata"]["name"], job["spec"]["image"]) == ("hello", "train:1")
    (role,) = job["spec"]["roles"]
    assert (role["replicas"], role["minReplicas"], role["args"]) == (32, 16, ["--lr", "3"])
    assert role["entrypoint"] == {"module": "hello.py"}
    assert job["spec"]["code"] == {"configMap": code["metadata"]["name"]}
    monkeypatch.undo()


def test_run_of_a_job_that_fails_or_is_deleted(kube, file, monkeypatch, capsys):
    play(
        kube,
        monkeypatch,
        lambda: kube.update("hello", phase="Failed", reason="DeadlineExceeded", message="60 s passed"),
    )
    assert main.run(["run", str(file), "-k"]) == 5
    printed = capsys.readouterr()
    assert "error: job hello failed: DeadlineExceeded: 60 s passed" in printed.err
    assert json.loads(printed.out)["reason"] == "DeadlineExceeded"
    kube.objects.clear()
    play(kube, monkeypatch, lambda: kube.objects.pop(("dljobs", "team", "hello")))
    assert main.run(["run", str(file), "-k"]) == 3
    assert "job hello in namespace team was deleted" in capsys.readouterr().err


def test_run_of_a_job_that_a_rank_fails_ends_with_that_rank(kube, file, monkeypatch, capsys):
    fault = {"level": "Process", "target": "worker/1", "rank": "worker/1", "incarnation": 2}
    mark = "[dljob] 10:00:00 worker/1 starts, incarnation {}\n"

    def end() -> None:
        kube.update("hello", phase="Failed", reason="UserErrorRepeats", message="bad", lastFault=fault)
        log = f"{mark.format(1)}first life\n{mark.format(2)}Traceback (most recent call last):\nValueError: bad\n"
        add_saved_logs(kube, only(kube, "dljobs"), worker_1=log)

    play(kube, monkeypatch, end)
    assert main.run(["run", str(file), "-k", "--quiet"]) == 1
    assert capsys.readouterr().err.splitlines()[-6:] == [
        "error: job hello failed: UserErrorRepeats: bad",
        "worker/1 failed first, in its incarnation 2. The end of its log:",
        "  Traceback (most recent call last):",
        "  ValueError: bad",
        "all of it: dljob logs hello --role worker --rank 1 -n team",
        "its kept logs: dljob logs hello -n team",
    ]
    kube.objects.clear()
    play(kube, monkeypatch, lambda: kube.update("hello", phase="Failed", reason="JobFailed", lastFault=fault))
    assert main.run(["run", str(file), "-k", "--quiet"]) == 1
    assert (
        "worker/1 failed first, in its incarnation 2; its log, if there is one: "
        "dljob logs hello --role worker --rank 1 -n team"
    ) in capsys.readouterr().err


def press(monkeypatch: pytest.MonkeyPatch, *upon: tuple[str, signal.Signals]) -> None:
    """Each signal comes once these words were said, one after the other."""
    say, left = output.say, list(upon)

    def heard(line: str) -> None:
        say(line)
        if left and left[0][0] in line:
            os.kill(os.getpid(), left.pop(0)[1])

    monkeypatch.setattr(output, "say", heard)


def accept(kube: FakeKube) -> None:
    """The operator takes every order at once."""

    def take(job: dict[str, Any]) -> None:
        for kind in ("restart", "stop"):
            at = job["metadata"].get("annotations", {}).get(f"dljob.io/{kind}")
            done = (job.get("status") or {}).get("lastCommands") or []
            if at and not any(one["at"] == at for one in done):
                kube.update(
                    job["metadata"]["name"],
                    job["metadata"]["namespace"],
                    lastCommands=[*done, {"kind": kind, "at": at}],
                )

    kube.on_patch = take


def test_run_says_when_no_operator_is_there(kube, file, monkeypatch, capsys):
    monkeypatch.setattr("dljob.cli.kubernetes.run.UNSEEN_S", 0.05)
    press(monkeypatch, ("no operator has seen", signal.SIGTERM))
    assert main.run(["run", str(file), "-k"]) == 130
    assert capsys.readouterr().err.count("no operator has seen job hello yet") == 1


def test_ctrl_c_leaves_the_job_and_a_second_one_stops_it(kube, file, monkeypatch, capsys):
    from dljob.cli.kubernetes import run

    accept(kube)
    monkeypatch.setattr(run, "SECOND_THOUGHTS_S", 0.2)
    press(monkeypatch, ("Pending", signal.SIGINT))
    assert main.run(["run", str(file), "-k"]) == 130
    said = capsys.readouterr().err
    assert "job hello goes on; once more within 0.2 s stops it" in said
    assert "dljob logs hello --follow -n team" in said
    assert "annotations" not in only(kube, "dljobs")["metadata"]

    kube.objects.clear()
    monkeypatch.setattr(run, "SECOND_THOUGHTS_S", 20.0)
    press(monkeypatch, ("Pending", signal.SIGINT), ("once more within", signal.SIGINT))
    assert main.run(["run", str(file), "-k"]) == 130
    assert "job hello is being stopped" in capsys.readouterr().err
    assert "dljob.io/stop" in only(kube, "dljobs")["metadata"]["annotations"]


def test_an_interrupt_or_sigterm_stops_the_job_when_asked_for(kube, file, monkeypatch, capsys):
    accept(kube)
    press(monkeypatch, ("Pending", signal.SIGTERM))
    assert main.run(["run", str(file), "-k"]) == 130
    assert "job hello goes on" in capsys.readouterr().err
    assert "annotations" not in only(kube, "dljobs")["metadata"]
    kube.objects.clear()
    press(monkeypatch, ("Pending", signal.SIGINT))
    assert main.run(["run", str(file), "-k", "--stop-on-interrupt"]) == 130
    assert "dljob.io/stop" in only(kube, "dljobs")["metadata"]["annotations"]


@pytest.mark.parametrize("soon", [True, False], ids=["before the signal is heard", "after it"])
@pytest.mark.parametrize("flags", [["--stop-on-interrupt"], []], ids=["at the first", "at the second"])
def test_an_interrupt_stops_the_job_though_it_ended_the_reader_of_the_output(kube, file, monkeypatch, soon, flags):
    """`| tee log` dies of the same Ctrl-C."""
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if line.endswith("Pending") or "once more within" in line:
            os.kill(os.getpid(), signal.SIGINT)
            if not soon:
                return
        if any(each.endswith("Pending") for each in said):
            raise BrokenPipeError

    accept(kube)
    monkeypatch.setattr(output, "say", say)
    assert main.run(["run", str(file), "-k", *flags]) == 130
    assert "dljob.io/stop" in only(kube, "dljobs")["metadata"]["annotations"]
    assert any("is being stopped" in line for line in said)


def test_the_end_of_a_pipe_alone_leaves_the_job(kube, file, monkeypatch):
    def say(line: str) -> None:
        if line.endswith("Pending"):
            raise BrokenPipeError

    monkeypatch.setattr(output, "say", say)
    assert main.run(["run", str(file), "-k", "--stop-on-interrupt"]) == 141
    assert "annotations" not in only(kube, "dljobs")["metadata"]


def test_a_job_built_in_python_is_submitted_to_kubernetes(kube, tmp_path, monkeypatch):
    from dljob import DLJobBuilder
    from dljob.api.kubernetes.handle import KubernetesJob
    from dljob.errors import DeadlineError, UsageError

    (tmp_path / "ppo.py").write_text("")
    monkeypatch.setattr(
        "sys.modules", {**__import__("sys").modules, "__main__": type("M", (), {"__file__": str(tmp_path / "x.py")})}
    )
    job = DLJobBuilder().role("worker").run("ppo.Policy").total(2).end().build()
    job.metadata["namespace"] = "other"
    handle = job.submit("ppo", to="kubernetes", blocking=False)
    assert isinstance(handle, KubernetesJob)
    assert (handle.name, handle.namespace) == ("ppo", "other")
    assert kube.one(CONFIG_MAPS, kube.one(DLJOBS, "ppo", "other")["spec"]["code"]["configMap"], "other")
    with pytest.raises(DeadlineError, match="not over after"):
        handle.wait(0.05)
    accept(kube)
    handle.restart("worker/1")
    assert kube.one(DLJOBS, "ppo", "other")["metadata"]["annotations"]["dljob.io/restart-target"] == "worker/1"
    kube.update("ppo", "other", phase="Succeeded")
    assert handle.wait_code() == 0
    assert handle.status()["phase"] == "Succeeded"
    with pytest.raises(UsageError, match="address"):
        job.submit("two", to="kubernetes", address="h:1")
    with pytest.raises(UsageError, match="slurm"):
        job.submit("two", to="slurm")  # type: ignore[arg-type]


def resumes(kube: FakeKube) -> None:
    """The operator takes an order to resume, and the job ends at once."""

    def take(job: dict[str, Any]) -> None:
        at = job["metadata"].get("annotations", {}).get(names.RESUME)
        entry = {"kind": "resume", "at": at}
        if at and job["status"].get("lastCommands") != [entry]:
            kube.update(job["metadata"]["name"], lastCommands=[entry], attempt=2, phase="Succeeded")

    kube.on_patch = take


@pytest.mark.parametrize("uid", ["", "=0000"])
def test_run_with_resume_goes_on_with_the_file_s_spec_and_code(kube, file, capsys, uid):
    job = add_job(kube, phase="Failed")
    old = {**job["spec"], "priorityClassName": "gone", "code": {"configMap": "old", "workingDir": "x"}}
    kube.put(DLJOBS, {**job, "spec": old})
    resumes(kube)
    assert main.run(["run", str(file), "-k", f"--resume{uid}"]) == 0
    assert "attempt 2 of job hello in namespace team goes on from its last checkpoint" in capsys.readouterr().err
    made, code = only(kube, "dljobs"), only(kube, "configmaps")
    assert made["metadata"]["uid"] == job["metadata"]["uid"]
    assert made["spec"]["code"] == {"configMap": code["metadata"]["name"]}
    assert "priorityClassName" not in made["spec"]
    assert code["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]


@pytest.mark.parametrize(
    ("phase", "flags", "words"),
    [
        ("Running", ["--resume"], "has not ended: Running"),
        ("Succeeded", ["--resume"], "has succeeded"),
        ("Failed", ["--resume=ffff"], "no job 'ffff': job hello in namespace team has uid"),
        ("Failed", ["--resume", "--replace"], "--replace deletes the job that --resume goes on with"),
        ("Failed", [], "go on with it (--resume, or resume=True)"),
        (None, ["--resume"], "no job 'hello' in namespace team"),
    ],
)
def test_a_job_that_cannot_go_on_is_refused_before_anything_is_sent(kube, file, capsys, *, phase, flags, words):
    before = {} if phase is None else add_job(kube, phase=phase)
    assert main.run(["run", str(file), "-k", *flags]) in (2, 3)
    assert words in capsys.readouterr().err
    assert [(kind, body) for (kind, _, _), body in kube.objects.items()] == ([("dljobs", before)] if before else [])


def test_a_change_that_the_server_refuses_is_told_with_its_words(kube, file, capsys):
    add_job(kube, phase="Failed")

    def refuse(_job: dict[str, Any]) -> None:
        raise ApiError(422, "Invalid", "spec: roles cannot change while the job runs; suspend it first")

    kube.on_patch = refuse
    assert main.run(["run", str(file), "-k", "--resume"]) == 2
    said = capsys.readouterr().err
    assert "cannot go on with this file: spec: roles cannot change" in said
    assert "--replace" in said


def test_a_job_built_in_python_goes_on(kube, tmp_path):
    from dljob import DLJobBuilder

    add_job(kube, phase="Stopped")
    resumes(kube)
    job = DLJobBuilder().role("worker").run("hello.main").total(2).end().build()
    job.spec["runtimeEnv"] = {"working_dir": "https://example.test/code.zip"}
    assert job.submit("hello", to="kubernetes", resume=True) == 0
    assert only(kube, "dljobs")["status"]["attempt"] == 2


async def test_a_script_may_ask_from_inside_an_event_loop(kube):
    from dljob.api.kubernetes.handle import KubernetesJob

    body = add_job(kube, phase="Running")
    await asyncio.sleep(0)
    assert KubernetesJob(body).status()["phase"] == "Running"
