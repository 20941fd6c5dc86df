"""scale on a cluster, by command and by handle: an edit of one role's replicas, which the operator hands on."""

from __future__ import annotations

from typing import Any

import pytest
from fake_kube import FakeKube, add_job

from dljob.api.kubernetes.handle import KubernetesJob
from dljob.errors import NotFoundError, UsageError
from dljob.kube.api import DLJOBS

BOUNDS = {"type": "Elastic", "replicas": 4, "replicasPerGroup": 2, "minReplicas": 2, "maxReplicas": 6}


def running(kube: FakeKube, **bounds: Any) -> dict[str, Any]:
    job = add_job(kube, phase="Running")
    job["spec"]["roles"] = [{"name": "other"}, {"name": "t", **(bounds or BOUNDS)}]
    kube.put(DLJOBS, job)
    return job


def replicas(kube: FakeKube) -> list[object]:
    return [role.get("replicas") for role in kube.one(DLJOBS, "hello")["spec"]["roles"]]


def test_scale_changes_the_replicas_of_a_role_and_nothing_else(kube, dljob):
    running(kube)
    code, _, err = dljob("scale", "hello", "t=2", "-k")
    assert (code, replicas(kube)) == (0, [None, 2])
    assert err == "t of job hello in namespace team is to have 2 ranks; see dljob events hello --follow -n team\n"
    KubernetesJob(kube.one(DLJOBS, "hello")).scale("t", 6)
    assert replicas(kube) == [None, 6]


def test_several_roles_are_scaled_by_one_command(kube, dljob):
    job = running(kube)
    job["spec"]["roles"][0] = {"name": "other", **BOUNDS}
    kube.put(DLJOBS, job)
    code, _, err = dljob("scale", "hello", "t=2", "other=6", "-k")
    assert (code, replicas(kube)) == (0, [6, 2])
    assert [line.split()[0] for line in err.splitlines()] == ["t", "other"]
    # Nothing is sent where one of the sizes cannot be read, or a role has two.
    for words, told in (("t=x", "'t=x' is not a role"), ("t=6", "role t has 2 sizes")):
        code, _, err = dljob("scale", "hello", "t=4", words, "-k")
        assert (code, told in err, replicas(kube)) == (2, True, [6, 2])


@pytest.mark.parametrize(
    ("size", "words"),
    [
        ("t=8", "t has 2 to 6 ranks in whole groups of 2, not 8"),
        ("t=3", "not 3"),
        ("t=0", "not 0"),
        ("other=2", "other has a fixed number of ranks, 1"),
    ],
)
def test_a_number_that_a_role_cannot_have_is_refused_before_anything_is_sent(size, words, kube, dljob):
    running(kube)
    code, _, err = dljob("scale", "hello", size, "-k")
    assert (code, words in err, replicas(kube)) == (2, True, [None, 4])


def test_a_role_with_one_bound_is_scaled_within_it(kube):
    handle = KubernetesJob(running(kube, replicas=3, minReplicas=1))
    with pytest.raises(UsageError, match="t has 1 to 3 ranks, not 4"):
        handle.scale("t", 4)
    handle.scale("t", 1)
    assert replicas(kube) == [None, 1]


def test_scale_refuses_an_unknown_role_and_an_ended_job(kube):
    handle = KubernetesJob(running(kube))
    with pytest.raises(NotFoundError, match="has no role 'tt'") as told:
        handle.scale("tt", 2)
    assert "did you mean 't'?" in (told.value.hint or "")
    kube.update("hello", phase="Succeeded")
    with pytest.raises(NotFoundError, match="has ended"):
        handle.scale("t", 2)
