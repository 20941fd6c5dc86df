"""What is refused of ports and probes, and with which words."""

from __future__ import annotations

from typing import Any

import pytest

from dljob.errors import SpecError
from dljob.spec.loading.load import parse
from dljob.spec.rules.serving import port_warnings

RUNS_A_CLASS = "drain is for a module or command: r runs a class, whose shutdown() can wait for its requests"
LIVENESS = "spec.roles[0].livenessProbe"
ELSEWHERE = "a probe goes to the rank itself: take host out"


def problems(**role: Any) -> list[str]:
    own = {"name": "r", "entrypoint": {"module": "serve.py"}, **role}
    document = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "j"}}
    try:
        parse({**document, "spec": {"roles": [own]}})
    except SpecError as error:
        return [f"{one.path}: {one.message}; {one.hint}" for one in error.problems]
    return []


def http(**more: Any) -> dict[str, Any]:
    return {"readinessProbe": {"httpGet": {"port": "http", **more}}}


def test_a_port_that_ray_takes_in_every_pod_is_warned_of() -> None:
    ports = [{"name": "free"}, {"name": "http", "port": 8080}, {"name": "agent", "port": 52365}]
    role = {"name": "r", "entrypoint": {"module": "serve.py"}, "ports": ports}
    document = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "j"}}
    first, second = port_warnings(parse({**document, "spec": {"roles": [role]}}).spec)
    assert (first.loc[-3:], second.loc[-3:]) == (("ports", 1, "port"), ("ports", 2, "port"))
    assert first.message == "on Kubernetes Ray takes port 8080 of every pod for its metrics"


def test_a_probe_may_name_a_port_or_its_number() -> None:
    assert problems(ports=[{"name": "http"}], **http()) == []
    assert problems(readinessProbe={"tcpSocket": {"port": 8000}}) == []


@pytest.mark.parametrize(
    ("role", "said"),
    [
        (
            {"entrypoint": {"class": "m.C"}, "drain": {}},
            f"spec.roles[0].drain: {RUNS_A_CLASS}; take drain out",
        ),
        (
            {"drain": {"httpPost": {"port": "http"}}},
            "spec.roles[0].drain.httpPost.port: r has no port http; give the role ports",
        ),
        ({"service": True}, "spec.roles[0].service: service needs ports; give the role ports, such as {name: http}"),
        (http(), "spec.roles[0].readinessProbe.httpGet.port: r has no port http; give the role ports"),
        (
            {"ports": [{"name": "rpc"}], **http()},
            "spec.roles[0].readinessProbe.httpGet.port: r has no port http; there is rpc",
        ),
        (
            {"readinessProbe": {"tcpSocket": {"port": 70000}}},
            "spec.roles[0].readinessProbe.tcpSocket.port: a port is at most 65535; ",
        ),
        (
            {"ports": [{"name": "http"}], **http(host="example.com")},
            "spec.roles[0].readinessProbe.httpGet.host: unknown field; a probe goes to the rank itself: take host out",
        ),
        (
            {"readinessProbe": {"tcpSocket": {"port": 1, "host": "example.com"}}},
            "spec.roles[0].readinessProbe.tcpSocket.host: unknown field; " + ELSEWHERE,
        ),
        (
            {"ports": [{"name": "a"}, {"name": "a"}]},
            "spec.roles[0].ports[1].name: two ports of one name: a; the first is spec.roles[0].ports[0]",
        ),
        (
            {"ports": [{"name": "a", "port": 80}, {"name": "b", "port": 80}]},
            "spec.roles[0].ports[1].port: 80 is the number of a already; port: 0 takes a free one",
        ),
        (
            {"livenessProbe": {"exec": {"command": ["true"]}, "successThreshold": 2}},
            f"{LIVENESS}.successThreshold: a livenessProbe succeeds at once; leave successThreshold out",
        ),
        (
            {"readinessProbe": {}},
            "spec.roles[0].readinessProbe: exactly one of httpGet, tcpSocket, exec, grpc; here none; ",
        ),
        (
            {"readinessProbe": {"httpGet": {"port": 1}, "tcpSocket": {"port": 1}}},
            "spec.roles[0].readinessProbe: exactly one of httpGet, tcpSocket, exec, grpc; here httpGet and tcpSocket; ",
        ),
    ],
)
def test_what_is_wrong_with_ports_and_probes_is_told(role: dict[str, Any], said: str) -> None:
    assert problems(**role) == [said]


REFERS = "{{roles.s.endpoints}}"
SERVER = {"name": "s", "entrypoint": {"module": "s.py"}, "ports": [{"name": "http"}]}


def referring(*others: dict[str, Any], spec: dict[str, Any] | None = None, **role: Any) -> list[str]:
    own = {"name": "r", "entrypoint": {"module": "r.py"}, **role}
    document = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "j"}}
    try:
        parse({**document, "spec": {"roles": [own, *others], **(spec or {})}})
    except SpecError as error:
        return [f"{one.path}: {one.message}; {one.hint}" for one in error.problems]
    return []


@pytest.mark.parametrize(
    "place",
    [
        {"entrypoint": {"command": ["run", REFERS]}},
        {"args": [REFERS]},
        {"env": [{"name": "A", "value": f"x{REFERS}"}]},
        {"config": {"a": [REFERS]}},
    ],
)
def test_who_refers_to_endpoints_must_wait_for_them(place: dict[str, Any]) -> None:
    (key,) = place
    assert referring(SERVER, dependsOn=[{"role": "s"}], **place) == []
    words = "refers to the endpoints of s, for which r does not wait; add dependsOn: [{role: s}]"
    assert referring(SERVER, **place) == [f"spec.roles[0].{key}: {words}"]
    assert referring(SERVER, dependsOn=[{"role": "s", "condition": "Complete"}], **place) != []
    nowhere = "refers to the endpoints of s, which is no role with ports"
    assert referring(**place) == [f"spec.roles[0].{key}: {nowhere}; give that role ports"]


def test_roles_that_refer_to_each_other_are_refused() -> None:
    cycle = {**SERVER, "args": ["{{roles.r.endpoints}}"], "dependsOn": [{"role": "r"}]}
    (said,) = referring(cycle, ports=[{"name": "http"}], args=[REFERS], dependsOn=[{"role": "s"}])
    assert "roles wait for each other" in said
    (own,) = referring(ports=[{"name": "http"}], args=["{{roles.r.endpoints}}"])
    assert "for which r does not wait" in own


def test_what_all_roles_share_refers_to_none() -> None:
    (said,) = referring(SERVER, spec={"config": {"a": REFERS}})
    assert said.startswith("spec.config: refers to the endpoints of s, for which the roles must wait")
