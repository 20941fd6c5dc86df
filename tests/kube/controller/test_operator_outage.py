"""Two operators with one Lease, and an API server that is away for longer than the Lease lasts, while a job runs.

DLJOB_OUTAGE_S=60 lets it be away for a minute, with the Lease as it is shipped (`make soak`).
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cluster.handle import Cluster
from job_life import Life
from kube_proxy import EVER, Proxy
from operator_kit import Operator, found, job, namespaced, until

WHOLE = "DLJOB_OUTAGE_S" in os.environ
SECONDS = float(os.environ.get("DLJOB_OUTAGE_S", "10"))
LEASE = 8.0 if WHOLE else 3.0
PACE = () if WHOLE else (f"--leader-elect-lease-duration={LEASE:g}s", "--leader-elect-retry-period=1s")
OURS = "/apis/|/api/"
SERVED_SECONDS = 120.0
"""After an answer that never came, a watch is given up by its own limits."""


@pytest.fixture
def namespace(plane: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    yield from namespaced(plane, request.node.name.replace("[", "-").rstrip("]")[-38:])


@pytest.fixture
def proxy(plane: Cluster, tmp_path: Path) -> Iterator[Proxy]:
    with Proxy(plane.kubeconfig, tmp_path / "proxy" / "config") as made:
        yield made


@pytest.fixture
def pair(plane: Cluster, namespace: str, proxy: Proxy, tmp_path: Path) -> Iterator[list[Operator]]:
    """The one that acts, and the one that waits."""
    flags = [f"--namespace={namespace}", "--leader-elect", *PACE, f"--leader-elect-resource-namespace={namespace}"]
    both = [Operator(plane, tmp_path / name, flags, kubeconfig=proxy.kubeconfig) for name in ("first", "second")]
    try:
        for operator in both:  # the first is to be the one
            operator.start()
            until(lambda: leaders(both[:1]), "the first acts")
        yield both
    finally:
        for operator in both:
            operator.stop()


def leaders(both: list[Operator]) -> list[Operator]:
    return [operator for operator in both if operator.health().get("role") == "leader"]


@dataclass
class Seen:
    """What the probes of both said, asked again and again."""

    both: list[Operator]
    asked: int = 0
    wrong: Counter[str] = field(default_factory=Counter[str])
    acted: float = 0.0
    """When somebody was last seen to act."""

    def look(self) -> list[Operator]:
        """Ask them once; a process that has ended is an AssertionError."""
        for operator in self.both:
            self.asked += 1
            self.wrong["healthz"] += not operator.health()
            self.wrong["readyz"] += not operator.ready()
        acting = leaders(self.both)
        self.wrong["two at once"] += len(acting) > 1
        if acting:
            self.acted = time.monotonic()
        return acting


def leave(proxy: Proxy, how: str) -> None:
    """The API server is away: connections are refused, or taken and never answered."""
    if how == "refused":
        proxy.down()
        return
    proxy.fault(".*", OURS, stall=True, times=EVER)
    proxy.cut()


def come(proxy: Proxy, how: str) -> None:
    """It is back; what was asked meanwhile is never answered."""
    if how == "refused":
        proxy.up()
    proxy.clear()


@pytest.mark.parametrize("how", ["refused", "silent"])
@pytest.mark.timeout(600)
def test_an_api_server_outage_disturbs_no_running_job(
    plane: Cluster, namespace: str, proxy: Proxy, pair: list[Operator], how: str
) -> None:
    pids = [operator.process.pid for operator in pair if operator.process]
    seen = Seen(pair)
    with Life(plane, namespace) as life:
        life.run()
        leave(proxy, how)
        away = seen.acted = time.monotonic()
        plane.apply({**job("late"), "metadata": {"name": "late", "namespace": namespace}})
        life.say("Recovering", ready=1, running=1, restarts=1)
        while time.monotonic() < away + SECONDS:
            seen.look()
            time.sleep(0.25)
        stopped = seen.acted - away
        assert not seen.look(), "nobody acts"
        back = time.monotonic()
        come(proxy, how)
        until(seen.look, "one acts", SERVED_SECONDS)
        led = time.monotonic() - back
        life.say("Running", ready=2, running=2, restarts=1)
        until(lambda: seen.look() and restarts(life) == 1, "what was said meanwhile is told", SERVED_SECONDS)
        until(lambda: seen.look() and cluster(plane, namespace), "what was made meanwhile is served", SERVED_SECONDS)
        served = time.monotonic() - back
        assert len(plane.get("rayclusters", "-n", namespace)["items"]) == 2, "one for each job"
        plane.kubectl("delete", "dljob", "late", "-n", namespace, "--timeout=60s")
        life.succeed()
    assert len(seen.look()) == 1
    assert not +seen.wrong, seen.wrong
    assert stopped < LEASE + 1.0
    assert [operator.process.pid for operator in pair if operator.process] == pids
    logs = [operator.log.read_text() for operator in pair]
    for log in logs:
        assert "Traceback" not in log, log[-3000:]
        assert "restarting the process" not in log, log[-3000:]
    print(
        f"\n{how} for {SECONDS:g} s: no process ended, {seen.asked} looks at probes and none failed;"
        f" nobody acted from {stopped:.1f} s on; back: one acts after {led:.1f} s, all is served after {served:.1f} s"
    )


def restarts(life: Life) -> int:
    roles = life.status.get("roles", [{}])
    return roles[0].get("restarts", 0) if life.status.get("phase") == "Running" else 0


def cluster(plane: Cluster, namespace: str) -> str:
    return found(plane, "dljob", "late", namespace).get("status", {}).get("rayCluster", {}).get("uid", "")
