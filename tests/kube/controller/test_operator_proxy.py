"""The operator on a real API server that fails: whatever it does, a job's life comes to the same end.

Each fault is there from before the job is made until it has met it; the process must live through all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster.handle import Cluster
from job_life import Life
from kube_proxy import EVER, Proxy
from operator_kit import Operator, namespaced, until


@pytest.fixture
def namespace(plane: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.node.name.replace("[", "-").rstrip("]")[-38:]
    yield from namespaced(plane, name.replace("_", "-").strip("-"))


@pytest.fixture
def proxy(plane: Cluster, tmp_path: Path) -> Iterator[Proxy]:
    with Proxy(plane.kubeconfig, tmp_path / "proxy" / "config") as made:
        yield made


@pytest.fixture
def operator(plane: Cluster, namespace: str, proxy: Proxy, tmp_path: Path) -> Iterator[Operator]:
    elect = ["--leader-elect", "--leader-elect-lease-duration=3s", "--leader-elect-retry-period=1s"]
    flags = [f"--namespace={namespace}", *elect, f"--leader-elect-resource-namespace={namespace}"]
    made = Operator(plane, tmp_path / "operator", flags, kubeconfig=proxy.kubeconfig)
    try:
        made.start()
        until(lambda: made.health().get("role") == "leader", "it acts")
        yield made
    finally:
        made.stop()


def hides(kind: str) -> Callable[[dict[str, Any]], bool]:
    return lambda event: event["type"] == kind


WATCH, CALL = "watch=true", "^(?!.*watch=true)"
BUSY = {"status": 429, "headers": {"Retry-After": "1"}}
FAULTS: dict[str, list[tuple[str, str, dict[str, Any]]]] = {
    "busy-then-broken": [
        (".*", CALL, {**BUSY, "times": 8}),
        ("POST|PATCH|DELETE|PUT", "", {"status": 500, "times": 8}),
    ],
    "lost-then-silent": [("POST|PATCH|DELETE", "", {"lost": True, "times": 6}), (".*", CALL, {"times": 8})],
    "conflicts-and-slow": [("PATCH|PUT", "", {"status": 409, "times": 8}), (".*", CALL, {"delay": 0.4, "times": EVER})],
    "torn-old-gone-watches": [
        ("GET", WATCH, {"cut": 700, "times": 6}),
        ("GET", WATCH, {"error": 410, "times": 4}),
        ("GET", WATCH, {"status": 410, "times": 2}),
    ],
    "broken-busy-forgetful-watches": [
        ("GET", WATCH, {"status": 500, "times": 4}),
        ("GET", WATCH, {**BUSY, "times": 3}),
        ("GET", WATCH, {"hide": hides("DELETED"), "times": EVER}),
    ],
    "refused": [("GET", "", {"status": 401, "times": 2})],
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_job_lives_and_ends_beside_api_faults(
    plane: Cluster, namespace: str, proxy: Proxy, operator: Operator, name: str
) -> None:
    faults = [proxy.fault(method, path, **knobs) for method, path, knobs in FAULTS[name]]
    proxy.cut()  # so that watches begin anew, and meet it
    with Life(plane, namespace) as life:
        life.run()
        life.succeed()
        life.vanish()
    assert all(fault.hit for fault in faults), "the fault was met"
    assert operator.process is not None
    assert operator.process.poll() is None
    assert operator.health()


def test_a_job_lives_through_an_api_server_outage(
    plane: Cluster, namespace: str, proxy: Proxy, operator: Operator
) -> None:
    """The API server is away for longer than the Lease lasts, while the job runs."""
    with Life(plane, namespace) as life:
        life.run()
        proxy.down()
        until(lambda: operator.health().get("role") == "standby", "it stops acting")
        assert operator.ready(), "its caches are as good as they were"
        proxy.up()
        until(lambda: operator.health().get("role") == "leader", "it acts again")
        life.succeed()
    log = operator.log.read_text()
    assert "could not be renewed" in log
    assert "Traceback" not in log


def test_an_operator_that_starts_in_an_outage_lives_and_waits(
    plane: Cluster, namespace: str, proxy: Proxy, tmp_path: Path
) -> None:
    proxy.down()
    operator = Operator(plane, tmp_path / "operator", [f"--namespace={namespace}"], kubeconfig=proxy.kubeconfig)
    try:
        operator.start(wait=False)
        until(operator.health, "its probe answers")
        assert not operator.ready()
        proxy.up()
        until(operator.ready, "it is ready")
        with Life(plane, namespace) as life:
            life.run()
    finally:
        operator.stop()
