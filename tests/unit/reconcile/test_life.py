"""A job's life from apply to the end, and what the operator does at each station."""

from __future__ import annotations

from reconcile_kit import NOW, UID, World

from dljob.reconcile.state import names
from dljob.reconcile.state.model import Create, CreateToken, Submit

CLUSTER = names.cluster_name("hello", UID, 1)


def test_a_fresh_job_gets_its_children_the_cluster_last():
    world = World()
    outcome = world.look()
    spec, token, cluster = outcome.actions
    assert isinstance(spec, Create)
    assert spec.body["immutable"] is True
    assert isinstance(token, CreateToken)
    assert (token.name, token.cluster, token.owner) == (f"{CLUSTER}-token", CLUSTER, f"{CLUSTER}-spec")
    assert isinstance(cluster, Create)
    assert cluster.kind == "RayCluster"
    assert cluster.body["metadata"]["name"] == CLUSTER
    assert outcome.status is not None
    assert outcome.status["phase"] == "Pending"
    assert outcome.watch is None


def test_the_submission_is_written_before_it_is_made():
    world = World().settle().head_ready()
    first = world.step()
    assert first.actions == ()
    assert world.status["submissionId"] == f"hello-{UID[:8]}-1"
    assert first.watch is None
    second = world.step()
    assert second.watch is not None
    assert second.watch.address == "10.0.0.1"
    (submit,) = second.actions
    assert isinstance(submit, Submit)
    assert submit.id == world.status["submissionId"]
    assert submit.argv[:5] == ("python", "-m", "dljob.runtime.launcher", "--spec", "/etc/dljob/spec/spec.json")
    assert submit.argv[5:] == (
        *("--uid", UID.replace("-", ""), "--attempt", "1", "--ray", "2.60.0", "--version", "0.1.0"),
    )


def test_a_job_goes_from_apply_to_its_end():
    world = World().settle()
    assert world.phase == "Provisioning"
    world.head_ready().settle()
    assert world.phase == "Scheduling"
    assert world.submissions == [(f"hello-{UID[:8]}-1", "session-1")]
    world.workers_ready().master("Running").settle()
    assert world.phase == "Running"
    assert world.cond("RolesReady") == ("True", "RolesReady")
    world.later(60).master("Succeeded", completionTime="2027-01-15T08:00:59.500Z", message="all drivers ended well")
    world.settle()
    assert world.phase == "Succeeded"
    assert world.cond("Complete") == ("True", "Completed")
    assert world.status["completionTime"] == "2027-01-15T08:00:59Z"
    assert names.logs_map("hello") in world.maps
    assert world.clusters == {}
    assert world.cond("ClusterReady") == ("False", "ClusterDeleted")
    assert world.log.index("SaveLogs") < world.log.index("Delete RayCluster")
    assert world.log.count("Create RayCluster") == 1
    assert world.now == NOW + 60
