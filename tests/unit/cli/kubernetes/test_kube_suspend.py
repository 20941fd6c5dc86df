"""suspend and resume on a cluster, by command and by handle, and what a laptop says to them."""

from __future__ import annotations

from typing import Any

import pytest
from fake_kube import FakeKube, add_job, add_saved_logs

from dljob.errors import NotFoundError
from dljob.kube.api import CONFIG_MAPS, DLJOBS
from dljob.reconcile.state import names


def say(kube: FakeKube, *phases: str, **more: Any) -> None:
    """The operator says these, one after each change of the spec."""
    left = list(phases)

    def took(job: dict[str, Any]) -> None:
        if left:
            kube.update("hello", phase=left.pop(0), observedGeneration=job["metadata"].get("generation", 0), **more)

    kube.on_patch = took


def wanted(kube: FakeKube) -> object:
    return kube.one(DLJOBS, "hello")["spec"].get("suspend")


def test_suspend_and_resume_are_a_field_of_the_spec(kube, dljob):
    add_job(kube, phase="Running")
    code, out, err = dljob("suspend", "hello", "-k")
    said = "job hello in namespace team is being suspended; it goes on with dljob resume hello -n team\n"
    assert (code, out, err, wanted(kube)) == (0, "", said, True)
    assert "is being suspended already" in dljob("suspend", "hello", "-k")[2]
    kube.update("hello", phase="Suspended")
    assert "hello in namespace team is suspended;" in dljob("suspend", "hello", "-k")[2]
    code, out, err = dljob("resume", "hello", "-n", "team")
    said = "job hello in namespace team is resumed; see dljob status hello -n team\n"
    assert (code, out, err, wanted(kube)) == (0, "", said, False)
    kube.update("hello", phase="Running")
    code, _, err = dljob("resume", "hello", "-k")
    assert (code, "was not suspended: Running" in err) == (0, True)


def test_suspend_and_resume_wait_until_the_job_is_suspended_or_running(kube, dljob):
    add_job(kube, phase="Running")
    say(kube, "Suspended")
    code, _, err = dljob("suspend", "hello", "-k", "--wait")
    assert (code, "is suspended; it goes on with" in err) == (0, True)
    say(kube, "Running")
    code, _, err = dljob("resume", "hello", "-k", "--wait")
    assert (code, "job hello in namespace team runs" in err) == (0, True)


@pytest.mark.parametrize(("end", "code"), [("Succeeded", 0), ("Failed", 1), ("Stopped", 6)])
def test_resume_tells_the_end_of_a_job_that_ends_meanwhile(end, code, kube, dljob):
    add_job(kube, phase="Suspended")
    say(kube, end, reason="Because", message="of this")
    found, _, err = dljob("resume", "hello", "-k", "--wait")
    assert (found, f"has ended: {end} (Because) of this" in err) == (code, True)


def test_suspend_and_resume_tell_of_an_end_that_came_first(kube, dljob):
    add_job(kube, phase="Running")
    say(kube, "Succeeded")
    code, _, err = dljob("suspend", "hello", "-k", "--wait")
    assert (code, "ended before: Succeeded" in err) == (3, True)
    for verb in ("suspend", "resume"):
        code, _, err = dljob(verb, "hello", "-k")
        assert (code, "has ended: Succeeded" in err) == (3, True)


def test_suspend_and_resume_tell_that_another_user_ordered_the_opposite(kube, dljob):
    def other(job: dict[str, Any]) -> None:
        kube.put(DLJOBS, {**job, "spec": {**job["spec"], "suspend": not job["spec"]["suspend"]}})

    kube.on_patch = other
    for verb, other_way in (("suspend", "resumed"), ("resume", "suspended")):
        add_job(kube, phase="Running")
        code, _, err = dljob(verb, "hello", "-k", "--wait")
        assert (code, f"has been {other_way} meanwhile" in err) == (2, True)


def test_suspend_is_refused_for_unknown_jobs_and_existing_rayclusters(kube, dljob):
    add_job(kube, phase="Running")
    code, _, err = dljob("suspend", "helo", "-k")
    assert (code, "no job 'helo' in namespace team" in err, "hello" in err) == (3, True, True)
    kube.one(DLJOBS, "hello")["spec"]["rayClusterRef"] = {"name": "shared"}
    code, _, err = dljob("suspend", "hello", "-k")
    assert (code, "runs on RayCluster shared, not made for it" in err) == (2, True)
    assert "dljob stop hello -n team ends the job" in err
    assert wanted(kube) is None


def test_an_older_crd_that_drops_the_field_is_told_of(kube, dljob):
    add_job(kube, phase="Running")
    patch = kube.patch

    async def pruned(*args: Any, **more: Any) -> Any:
        made = await patch(*args, **more)
        made["spec"].pop("suspend")
        return made

    kube.patch = pruned  # type: ignore[method-assign]
    code, _, err = dljob("suspend", "hello", "-k")
    assert (code, "knows no spec.suspend" in err, "dljob doctor" in err) == (4, True, True)


@pytest.mark.parametrize(
    ("verb", "said", "here"),
    [("suspend", "suspended", "dljob stop hello"), ("resume", "resumed", "dljob run FILE --resume")],
)
def test_a_laptop_has_nothing_to_give_back(verb, said, here, kube, dljob):
    code, _, err = dljob(verb, "hello")
    assert (code, f"a job of this machine cannot be {said}" in err) == (2, True)
    assert f"on Kubernetes: dljob {verb} hello --kubernetes, or -n NAMESPACE; here: {here}" in err
    assert kube.contexts == []  # type: ignore[attr-defined]


def test_a_laptop_runs_no_job_that_is_suspended(dljob, tmp_path):
    (tmp_path / "hello.py").touch()
    file = tmp_path / "job.yaml"
    file.write_text(
        "apiVersion: dljob.io/v1alpha1\nkind: DLJob\nmetadata: {name: hello}\nspec:\n  suspend: true\n"
        "  roles: [{name: worker, entrypoint: {module: hello.py}}]\n"
    )
    for command in (("run", str(file)), ("submit", str(file), "--address", "127.0.0.1:1")):
        code, _, err = dljob(*command)
        assert (code, "job hello is suspended (spec.suspend), and only Kubernetes can suspend a job" in err) == (
            2,
            True,
        )
        assert "leave spec.suspend out to run it here" in err


def test_a_handle_suspends_and_resumes_as_the_command_does(kube):
    from dljob.api.kubernetes.handle import KubernetesJob

    handle = KubernetesJob(add_job(kube, phase="Running"))
    handle.suspend()
    assert wanted(kube) is True
    handle.resume()
    assert wanted(kube) is False
    say(kube, "Suspended", "Running")
    handle.suspend(wait=True)
    handle.resume(wait=True)
    assert handle.status()["phase"] == "Running"
    kube.update("hello", phase="Failed")
    with pytest.raises(NotFoundError):
        handle.suspend()


def test_logs_of_a_suspended_attempt_are_not_taken_for_those_of_the_next(kube, dljob):
    job = add_job(kube, phase="Suspended", attempt=2)
    add_saved_logs(kube, job, worker_0="step 120\n")
    kube.one(CONFIG_MAPS, names.logs_map("hello"))["metadata"]["labels"] = {names.ATTEMPT: "1"}
    assert "step 120" in dljob("logs", "hello", "-k")[1]
    kube.update("hello", phase="Running", submissionId="hello-2")
    code, out, _ = dljob("logs", "hello", "-k")
    assert (code != 0, "step 120" in out) == (True, False)
    kube.one(CONFIG_MAPS, names.logs_map("hello"))["metadata"]["labels"] = {names.ATTEMPT: "2"}
    assert "step 120" in dljob("logs", "hello", "-k")[1]


def operator_resumes(kube: FakeKube, state: str = "Sent", message: str = "", phase: str = "Running") -> None:
    """Answer orders to resume as the operator does."""

    def answer(job: dict[str, Any]) -> None:
        at = job["metadata"].get("annotations", {}).get(names.RESUME)
        entry = {"kind": "resume", "at": at, "state": state, "message": message}
        if at and job["status"].get("lastCommands") != [entry]:
            changes = {"phase": phase, "attempt": 2} if state == "Sent" else {}
            kube.update(job["metadata"]["name"], lastCommands=[entry], **changes)

    kube.on_patch = answer


@pytest.mark.parametrize("phase", ["Stopped", "Failed"])
def test_resume_goes_on_with_a_job_that_was_stopped_or_failed(phase, kube, dljob):
    job = add_job(kube, phase=phase)
    kube.put(DLJOBS, {**job, "metadata": {**job["metadata"], "annotations": {names.STOP: "then", "mine": "1"}}})
    operator_resumes(kube)
    code, _, err = dljob("resume", "hello", "-k", "--wait")
    assert (code, "job hello in namespace team runs" in err) == (0, True)
    annotations = kube.one(DLJOBS, "hello")["metadata"]["annotations"]
    assert annotations.keys() == {names.RESUME, "mine"}, "the order that stopped it would stop it again"


def test_resume_tells_what_the_operator_refuses(kube, dljob):
    add_job(kube, phase="Failed")
    operator_resumes(kube, "Refused", "it has no complete checkpoint")
    code, _, err = dljob("resume", "hello", "-k")
    assert (code, "resume refused: it has no complete checkpoint" in err) == (2, True)
