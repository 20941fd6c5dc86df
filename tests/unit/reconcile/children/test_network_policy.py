"""Who reaches whom, by the rules of a NetworkPolicy: what one selects is closed but for what it lets in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from reconcile_kit import UID, World, dljob

from dljob.plan.serving import HIGHEST_PORT, LOWEST_PORT
from dljob.reconcile.state import names
from dljob.reconcile.state.model import Create

CLUSTER = names.cluster_name("hello", UID, 1)


def policy() -> dict[str, Any]:
    (made,) = (action.body for action in World(dljob(networkPolicy={"enabled": True})).look().actions if is_one(action))
    return dict(made)


def is_one(action: object) -> bool:
    return isinstance(action, Create) and action.kind == "NetworkPolicy"


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    assert selector.keys() == {"matchLabels"}
    return selector["matchLabels"].items() <= labels.items()


def reached(rules: dict[str, Any], to: dict[str, str], port: int, source: dict[str, str] | None) -> bool:
    """Whether a connection gets through; `source`: the labels of a pod of the namespace, None: from elsewhere."""
    if not selects(rules["podSelector"], to):
        return True
    for rule in rules["ingress"]:
        here = "from" not in rule or any(source is not None and selects(f["podSelector"], source) for f in rule["from"])
        if here and ("ports" not in rule or any((p["port"], p["protocol"]) == (port, "TCP") for p in rule["ports"])):
            return True
    return False


OURS = {"ray.io/cluster": CLUSTER, "dljob.io/name": "hello"}
OTHER = {"ray.io/cluster": "other", "dljob.io/name": "other"}


@pytest.mark.parametrize(
    ("to", "port", "source", "passes"),
    [
        (OURS, 6379, OURS, True),  # a worker to the GCS
        (OURS, 43211, OURS, True),  # a rank to another
        (OURS, 6379, OTHER, False),
        (OURS, 10001, None, False),  # Ray's client would run anything
        (OURS, 43211, None, False),
        (OURS, 8265, None, True),  # the operator submits
        (OURS, 8266, None, True),  # and asks the gateway; so does `dljob logs`, through the API server
        (OURS, 8080, None, True),  # Prometheus
        (OTHER, 6379, None, True),  # others are not our matter
    ],
)
def test_the_policy_admits_exactly_the_allowed_sources_and_ports(
    to: dict[str, str], port: int, source: dict[str, str] | None, passes: bool
) -> None:
    assert reached(policy()["spec"], to, port, source) == passes


def test_the_networkpolicy_belongs_to_the_job_and_comes_before_the_pods() -> None:
    made = policy()
    assert made["metadata"]["name"] == f"{CLUSTER}-network"
    assert made["metadata"]["ownerReferences"][0]["uid"] == UID
    kinds = [
        action.kind
        for action in World(dljob(networkPolicy={"enabled": True})).look().actions
        if isinstance(action, Create)
    ]
    assert kinds == ["ConfigMap", "NetworkPolicy", "RayCluster"]
    assert made["spec"]["policyTypes"] == ["Ingress"]


@pytest.mark.parametrize(
    ("ports", "service", "port", "passes"),
    [
        ([{"name": "http", "port": 8000}], True, 8000, True),
        ([{"name": "http", "port": 8000}], True, 8001, False),
        ([{"name": "http", "port": 8000}], False, 8000, False),
        ([{"name": "http"}], True, 23456, True),  # any that the rank may choose
        ([{"name": "http"}], True, 19999, False),  # Ray's workers
    ],
)
def test_ports_of_a_service_are_open_to_the_namespace(ports: Any, service: bool, port: int, passes: bool) -> None:
    job = dljob(networkPolicy={"enabled": True})
    job["spec"]["roles"][0] |= {"ports": ports, "service": service}
    made: Any = World(job).settle().maps[names.network_policy(CLUSTER)]
    rules = [rule for rule in made["spec"]["ingress"] if rule.get("from") == [{"podSelector": {}}]]
    spans = [(one["port"], one.get("endPort", one["port"])) for rule in rules for one in rule["ports"]]
    assert any(low <= port <= high for low, high in spans) == passes


@pytest.mark.parametrize("enabled", [True, False])
def test_the_next_attempt_deletes_the_networkpolicy_of_the_last(enabled: bool) -> None:
    """Else each attempt would leave one until the DLJob goes, and it may run for months."""
    world = World(dljob(networkPolicy={"enabled": True})).running()
    world.edit(networkPolicy={"enabled": enabled})
    assert names.network_policy(CLUSTER) in world.maps
    world.delete_cluster().settle()
    left = {name for name in world.maps if name.endswith("-network")}
    assert left == ({names.network_policy(names.cluster_name("hello", UID, 2))} if enabled else set())


def test_the_networkpolicy_stays_while_pods_of_an_ended_job_end() -> None:
    world = World(dljob(networkPolicy={"enabled": True})).running().master("Succeeded", reason="Completed").settle()
    assert world.clusters == {}
    assert names.network_policy(CLUSTER) in world.maps


def test_without_being_asked_for_there_is_no_networkpolicy() -> None:
    assert not any(is_one(action) for action in World().look().actions)


def test_the_networkpolicy_selects_the_pods_of_the_raycluster() -> None:
    """KubeRay puts this label on each pod of a RayCluster, and no template may say otherwise."""
    assert policy()["spec"]["podSelector"] == {"matchLabels": {"ray.io/cluster": CLUSTER}}


def test_the_page_on_security_names_the_ports_of_services() -> None:
    page = (Path(__file__).parents[4] / "docs/howto/security.md").read_text(encoding="utf-8")
    assert f"without a number all of {LOWEST_PORT} to {HIGHEST_PORT}" in " ".join(page.split())
