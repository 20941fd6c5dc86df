"""What is refused, and warned of, in the weights of a role."""

from __future__ import annotations

from typing import Any

import pytest

from dljob.errors import SpecError
from dljob.plan.plan import plan
from dljob.plan.serving import ProbePlan, WeightsPlan
from dljob.spec.loading.load import parse
from dljob.spec.rules.weights import weight_warnings

LOAD = {"httpPost": {"port": "http", "path": "/load"}}
W = "spec.roles[0].weights"


def problems(**role: Any) -> list[str]:
    try:
        spec(**{"entrypoint": {"module": "serve.py"}, **role})
    except SpecError as error:
        return [f"{one.path}: {one.message}; {one.hint}" for one in error.problems]
    return []


def weights(**more: Any) -> dict[str, Any]:
    return {"ports": [{"name": "http"}], "weights": {"channels": ["policy"], "load": LOAD, **more}}


@pytest.mark.parametrize(
    ("role", "said"),
    [
        (weights(), None),
        (weights(verify={"httpGet": {"port": "http"}}), None),
        ({**weights(load={"method": "load"}), "entrypoint": {"class": "m.C"}}, None),
        (weights(load={}), f"{W}.load: exactly one of httpPost, exec, method; here none; "),
        (
            weights(verify={"method": "m", "exec": {"command": ["ls"]}}),
            f"{W}.verify: exactly one of httpGet, exec, method; here exec and method; ",
        ),
        (
            weights(load={"method": "load"}),
            f"{W}.load.method: a method is for a class: r runs a module or command; take httpPost or exec",
        ),
        (
            weights(load={"httpPost": {"port": "rpc"}}),
            f"{W}.load.httpPost.port: r has no port rpc; there is http",
        ),
        (
            weights(verify={"httpGet": {"port": "rpc"}}),
            f"{W}.verify.httpGet.port: r has no port rpc; there is http",
        ),
        (weights(channels=["a", "b", "a"]), f"{W}.channels[2]: a is there already, at 0; name each channel once"),
    ],
)
def test_hooks_channels_and_ports_must_fit_the_role(role: dict[str, Any], said: str | None) -> None:
    assert problems(**role) == ([said] if said else [])


def spec(**role: Any) -> Any:
    own = {"name": "r", "entrypoint": {"class": "m.C"}, "replicas": 2, **role}
    head = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "j"}}
    return parse({**head, "spec": {"roles": [own]}})


@pytest.mark.parametrize(
    ("role", "said"),
    [
        ({}, None),
        (weights(), None),
        (weights(maxLag=0), "with maxLag 0 no rank of r is ready from each new version until it has loaded"),
        (weights(maxLag=0, minReady=0), None),
        (weights(minReady=2), "no rank of r may load before it is stale: minReady is 2, of 2"),
        ({**weights(), "replicas": 1}, "no rank of r may load before it is stale: minReady is 1, of 1"),
    ],
)
def test_settings_with_which_min_ready_cannot_hold_are_warned_of(role: dict[str, Any], said: str | None) -> None:
    assert [one.message for one in weight_warnings(spec(**role).spec)] == ([said] if said else [])


def test_the_plan_has_the_hooks_of_each_kind() -> None:
    def planned(**more: Any) -> WeightsPlan | None:
        return plan(spec(**weights(**more))).roles["r"].weights

    get = {"port": "http", "path": "/sum", "scheme": "HTTPS", "httpHeaders": [{"name": "A", "value": "b"}]}
    assert planned(verify={"httpGet": get}, maxLag=2, minReady=3) == WeightsPlan(
        ("policy",),
        2,
        3,
        ProbePlan("post", port="http", path="/load", timeout_s=300),
        ProbePlan("http", port="http", path="/sum", tls=True, headers=(("A", "b"),), timeout_s=300),
    )
    ran = ProbePlan("exec", command=("ls",), timeout_s=5)
    exec_ = {"exec": {"command": ["ls"]}}
    assert planned(load={**exec_, "timeoutSeconds": 5}, verify=exec_) == WeightsPlan(("policy",), 1, 1, ran, ran)
    load, verify = (ProbePlan("method", path=name, timeout_s=300) for name in ("load", "verify"))
    methods = planned(load={"method": "load"}, verify={"method": "verify"})
    assert methods == WeightsPlan(("policy",), 1, 1, load, verify)
