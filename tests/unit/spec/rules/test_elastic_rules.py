"""What is said of bounds that no role or node group can have."""

from __future__ import annotations

from typing import Any

import pytest

from dljob.errors import SpecError
from dljob.spec.loading.load import parse

LOAD = {"autoscale": {"by": "calls", "target": 1}}


def job(role: dict[str, Any], **spec: Any) -> dict[str, Any]:
    e = {"name": "e", "type": "Elastic", "entrypoint": {"class": "a.B"}, "replicas": 4, **role}
    return {
        "apiVersion": "dljob.io/v1alpha1",
        "kind": "DLJob",
        "metadata": {"name": "j"},
        "spec": {"roles": [e], **spec},
    }


def said(data: dict[str, Any]) -> str:
    with pytest.raises(SpecError) as found:
        parse(data)
    return str(found.value)


@pytest.mark.parametrize(
    ("role", "words"),
    [
        ({"type": "Actor", "minReplicas": 1}, "e is a driver, whose ranks all have work to end"),
        (
            {
                "type": "Actor",
                "minReplicas": 1,
                "driver": False,
                "reserve": "Quota",
                "entrypoint": {"module": "a.py"},
            },
            "e leaves its machines to a framework",
        ),
        ({"minReplicas": 5}, "minReplicas is 5, replicas is 4"),
        ({"maxReplicas": 3}, "maxReplicas is 3, replicas is 4"),
        ({"replicasPerGroup": 2, "minReplicas": 3}, "3 ranks cannot form whole groups of 2"),
        ({"minReplicas": 2, **LOAD}, "minReplicas or maxReplicas: e is Elastic, and restarts for another size"),
        ({"type": "Actor", **LOAD}, "minReplicas or maxReplicas: e has a fixed number of ranks"),
        ({"autoscale": {"by": "queue", "target": 1}}, "calls has none: by is queue (name: the queue)"),
        ({"autoscale": {"by": "calls", "target": 1, "name": "q"}}, "calls has none: by is calls (take name out)"),
    ],
)
def test_wrong_bounds_of_a_role_are_refused(role: dict[str, Any], words: str) -> None:
    assert words in said(job(role))


@pytest.mark.parametrize(
    ("role", "group", "words"),
    [
        ({"minReplicas": 1}, {"minReplicas": 3}, "minReplicas is 3, replicas is 2"),
        ({"minReplicas": 1}, {"maxReplicas": 1}, "maxReplicas is 1, replicas is 2"),
        ({}, {"minReplicas": 1}, "are for roles that have bounds, and none lives there"),
        ({}, {"maxReplicas": 3}, "are for roles that have bounds, and none lives there"),
    ],
)
def test_wrong_bounds_of_a_node_group_are_refused(role: dict[str, Any], group: dict[str, Any], words: str) -> None:
    assert words in said(job(role, nodeGroups=[{"name": "g", "replicas": 2, "cpu": "8", **group}]))


def test_a_role_with_bounds_shares_no_host() -> None:
    data = job({"minReplicas": 2})
    data["spec"]["roles"].append({"name": "a", "entrypoint": {"class": "a.B"}, "replicas": 4})
    host = {"name": "c", "roles": ["e", "a", "x"], "level": "Host"}
    spec = {**data["spec"], "collocations": [host]}
    assert "e has minReplicas or maxReplicas, so it cannot share a host" in said({**data, "spec": spec})
    data["spec"]["collocations"] = [{"name": "c", "roles": ["e", "a"], "level": "Separate"}]
    assert parse(data).spec.collocations


def test_a_role_shrinks_before_the_job_would_fail_or_never() -> None:
    said_more = said(job({"minReplicas": 1}, faultTolerance={"elastic": {"shrinkAfterSeconds": 300}}))
    assert "the job fails after pendingTimeoutSeconds (300), before any role shrinks" in said_more
    policy = {"elastic": {"shrinkAfterSeconds": 299, "growAfterSeconds": 1}}
    assert (
        parse(job({"minReplicas": 1}, faultTolerance=policy)).spec.fault_tolerance.elastic.shrink_after_seconds == 299
    )
