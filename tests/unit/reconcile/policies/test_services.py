"""Services of roles: what leads where, while ranks become ready, pods go, attempts change and jobs end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from reconcile_kit import World, dljob

from dljob.plan.serving import offered
from dljob.reconcile.state import names
from dljob.reconcile.state.model import Object, Serve, Trouble, label
from dljob.reconcile.state.snapshot import MAX_SERVERS, served

PORTS = [{"name": "http"}, {"name": "rpc", "port": 9000}]
SERVICE = "Service/hello-worker"


def slice_of(at: int = 0) -> str:
    return f"EndpointSlice/hello-worker-{at}"


def rank(number: int, ip: str = "10.0.1.0", http: int = 20000) -> Object:
    return {"rank": number, "ip": ip, "ports": {"http": http, "rpc": 9000}}


def world(*rows: Object, pods: int = 3) -> World:
    """A job that runs, whose ready ranks are `rows`; its pods have the addresses 10.0.1.0 and so on."""
    job = dljob()
    job["spec"]["roles"][0] |= {"ports": PORTS, "service": True}
    made = World(job)
    made.settle()
    made.head_ready().settle()
    made.workers_ready(pods, pods)
    made.pods[made.name] = [
        pod if pod.head else replace(pod, ip=f"10.0.1.{at}", node="node-b")
        for at, pod in enumerate(made.pods[made.name], -1)
    ]
    return told(made, *rows)


def told(made: World, *rows: Object) -> World:
    """PrimeMaster says who is ready."""
    made.master("Running")
    assert made.view is not None
    made.view = replace(made.view, endpoints={"worker": rows})
    return made.settle()


def addresses(made: World) -> list[list[str]]:
    """The addresses of each slice."""
    found = [made.services[slice_of(at)] for at in range(len(made.services) - 1)]
    return [[one["addresses"][0] for one in body["endpoints"]] for body in found]


def test_a_service_leads_to_the_ranks_that_are_ready() -> None:
    made = world(rank(0), rank(1, "10.0.1.1"))
    service, ready = made.services[SERVICE], made.services[slice_of()]
    assert service["spec"] == {
        "type": "ClusterIP",
        "ports": [{"name": "http", "port": 80, "protocol": "TCP"}, {"name": "rpc", "port": 9000, "protocol": "TCP"}],
    }
    assert [port["port"] for port in ready["ports"]] == [20000, 9000]
    assert ready["metadata"]["labels"]["kubernetes.io/service-name"] == "hello-worker"
    assert ready["endpoints"][1] == {
        "addresses": ["10.0.1.1"],
        "conditions": {"ready": True, "serving": True, "terminating": False},
        "targetRef": {"kind": "Pod", "name": f"{made.name}-w1", "uid": "worker-1"},
        "nodeName": "node-b",
    }
    assert all(body["metadata"]["ownerReferences"][0]["kind"] == "DLJob" for body in (service, ready))
    assert made.status["services"] == [{"role": "worker", "name": "hello-worker", "slices": 1}]
    # Nothing has changed: nothing is written.
    assert not made.look().actions


def test_an_unready_rank_leaves_the_slice_and_the_slice_stays() -> None:
    made = world(rank(0), rank(1, "10.0.1.1"))
    assert addresses(told(made, rank(1, "10.0.1.1"))) == [["10.0.1.1"]]
    assert addresses(told(made)) == [[]]


def test_an_address_that_is_no_pod_of_the_job_is_left_out() -> None:
    made = world(rank(0), rank(1, "169.254.169.254"))
    assert addresses(made) == [["10.0.1.0"]]
    # Nor is a pod that leaves.
    made.pods[made.name] = [replace(pod, leaving=not pod.head) for pod in made.pods[made.name]]
    assert addresses(made.settle()) == [[]]


def test_ranks_with_other_numbers_have_slices_of_their_own() -> None:
    made = world(rank(0), rank(1, http=20001), rank(2, "10.0.1.1"))
    assert addresses(made) == [["10.0.1.0", "10.0.1.1"], ["10.0.1.0"]]
    assert [made.services[slice_of(at)]["ports"][0]["port"] for at in (0, 1)] == [20000, 20001]


def test_a_thousand_servers_take_ten_slices_and_a_line_of_status() -> None:
    made = world(pods=1)
    made.pods[made.name] += [
        replace(made.pods[made.name][1], name=f"w{at}", uid=f"u{at}", ip=f"10.1.{at // 256}.{at % 256}")
        for at in range(1000)
    ]
    found = addresses(told(made, *(rank(at, f"10.1.{at // 256}.{at % 256}") for at in range(1000))))
    assert [len(one) for one in found] == [100] * 10
    assert made.status["services"] == [{"role": "worker", "name": "hello-worker", "slices": 10}]


def test_addresses_of_the_other_family_have_slices_of_that_type() -> None:
    made = world()
    made.pods[made.name] = [replace(pod, ip="" if pod.head else "fd00::1", node="") for pod in made.pods[made.name]]
    body = told(made, rank(0, "fd00::1")).services[slice_of()]
    assert (body["addressType"], "nodeName" in body["endpoints"][0]) == ("IPv6", False)


def test_an_operator_that_restarts_leaves_everything_until_it_has_heard() -> None:
    made = world(rank(0))
    made.served.clear()
    made.view = None
    assert not made.look().actions
    assert made.status["services"]
    # The first answer names nobody yet.
    made.master("Running")
    assert not made.look().actions
    assert addresses(told(made)) == [[]]


def test_a_lost_attempt_has_no_endpoints_before_the_next_one_begins() -> None:
    made = world(rank(0))
    made.delete_cluster(made.name)
    for _ in range(4):
        made.step()
        if made.log[-1].startswith("Serve"):
            break
    assert addresses(made) == [[]]
    assert made.status["attempt"] == 2
    assert "RayCluster" not in made.log[-1]


def test_the_services_go_with_the_end_of_the_job() -> None:
    made = world(rank(0))
    made.master("Succeeded").settle()
    assert (made.services, made.status.get("services")) == ({}, None)
    # A later operator deletes nothing again.
    made.served.clear()
    assert not made.look().actions


def test_a_suspension_takes_the_services_away_before_it_stops_anything() -> None:
    made = world(rank(0))
    made.edit(suspend=True)
    while not made.commands:
        made.step()
    assert made.services == {}


def test_a_role_that_is_a_service_no_longer_loses_its_objects() -> None:
    made = world(rank(0))
    assert made.job is not None
    made.job["spec"]["roles"][0]["service"] = False
    made.step()
    assert made.services == {}
    assert "services" not in made.settle().status


def test_a_refused_edit_changes_no_service() -> None:
    made = world(rank(0))
    assert made.job is not None
    made.job["spec"]["roles"][0]["dependsOn"] = [{"role": "nobody"}]
    made.settle()
    assert addresses(made) == [["10.0.1.0"]]


@pytest.mark.parametrize("count", [2, 3])
def test_a_refused_service_yields_to_everything_else_after_three_tries(count: int) -> None:
    made = world()
    made.served.clear()
    made.troubles = (Trouble(f"Serve {SERVICE}", 403, "forbidden", count, made.now),)
    assert [type(action).__name__ for action in made.look().actions] == ["Serve"]
    assert made.job is not None
    made.job["metadata"]["annotations"][names.RESTART] = "1"
    kinds = {type(action).__name__ for action in made.look().actions}
    assert kinds == ({"Serve"} if count < 3 else {"Command"})
    # The end of the job waits for them no more than for three tries.
    made.master("Succeeded").step()
    assert made.phase == "Succeeded"
    assert ("Serve" in {type(action).__name__ for action in made.look().actions}) == (count < 3)


def test_free_ports_are_offered_under_numbers_that_no_other_port_has() -> None:
    assert offered([("a", 0), ("b", 80), ("c", 0), ("d", 8000)]) == {"a": 81, "b": 80, "c": 82, "d": 8000}


@pytest.mark.parametrize(
    ("row", "kept"),
    [
        ({"rank": 1, "addresses": {"http": "10.0.0.1:80"}}, {"rank": 1, "ip": "10.0.0.1", "ports": {"http": 80}}),
        ({"rank": 1, "addresses": {"http": "[fd00::1]:80"}}, {"rank": 1, "ip": "fd00::1", "ports": {"http": 80}}),
        ({"rank": 1, "addresses": {}}, None),
        ({"rank": 1, "addresses": {"http": "api.example.org:80"}}, None),
        ({"rank": 1, "addresses": {"http": "10.0.0.1:0"}}, None),
        ({"rank": 1, "addresses": {"http": "10.0.0.1:99999"}}, None),
        ({"rank": 1, "addresses": {"http": ["10.0.0.1", 80]}}, None),
    ],
)
def test_of_what_a_head_tells_only_addresses_are_kept(row: Any, kept: Object | None) -> None:
    assert served({"worker": [row]}) == {"worker": (kept,) if kept else ()}


def test_a_head_cannot_fill_the_memory_with_endpoints() -> None:
    row = {"rank": 1, "addresses": {"http": "10.0.0.1:80"}}
    assert len(served({"worker": [row] * (MAX_SERVERS + 1)})["worker"]) == MAX_SERVERS
    assert len(served({f"r{at}": [] for at in range(99)})) == 32
    assert served("no table") == {}  # type: ignore[arg-type] - a head may answer anything


def test_the_name_of_a_service_is_a_label_of_dns() -> None:
    long = names.service("j" * 47, "r" * 24)
    assert (len(long), long[:57], names.service("a", "b")) == (63, f"{'j' * 47}-{'r' * 9}", "a-b")
    assert long != names.service("j" * 47, "r" * 23)


def test_a_failed_slice_is_told_apart_from_the_others() -> None:
    assert label(Serve("EndpointSlice", "a-b-1", None)) == "Serve EndpointSlice/a-b-1"
