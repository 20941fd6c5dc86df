"""No value of a place where secrets stand is on a page; their names are."""

from __future__ import annotations

from typing import Any

from dljob.spec.redaction import LEFT_OUT, without_values

SECRET = "hunter2"
SPEC: dict[str, Any] = {
    "env": [
        {"name": "WANDB_API_KEY", "value": SECRET},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": SECRET}},
        SECRET,
    ],
    "envFrom": [{"secretRef": {"name": SECRET}}],
    "runtimeEnv": {"pip": [SECRET], "env_vars": {"A": SECRET}},
    "config": {"lr": SECRET},
    "roles": [
        {"name": "b", "entrypoint": {"command": ["serve", "--token", SECRET]}},
        {"name": "c", "livenessProbe": {"httpGet": {"port": 80, "httpHeaders": [{"name": "X-Key", "value": SECRET}]}}},
        {"name": "a", "args": ["--key", SECRET], "config": {"deep": {"key": SECRET}}, "env": None, "replicas": 2},
    ],
    "head": {"template": {"spec": {"containers": [{"name": "c", "env": [{"name": "B", "value": SECRET}]}]}}},
}


def test_values_are_gone_at_any_depth_and_names_stay() -> None:
    found = without_values(SPEC)
    assert SECRET not in str(found)
    assert found["env"][:2] == [{"name": name, "value": LEFT_OUT} for name in ("WANDB_API_KEY", "TOKEN")]
    assert found["runtimeEnv"] == {"pip": LEFT_OUT, "env_vars": LEFT_OUT}
    assert found["head"]["template"]["spec"]["containers"][0]["env"] == [{"name": "B", "value": LEFT_OUT}]
    assert found["roles"][0]["entrypoint"] == {"command": ["serve", LEFT_OUT, LEFT_OUT]}
    headers = [{"name": "X-Key", "value": LEFT_OUT}]
    assert found["roles"][1]["livenessProbe"]["httpGet"] == {"port": 80, "httpHeaders": headers}
    assert found["roles"][2]["replicas"] == 2
    assert found["roles"][2]["args"] == [LEFT_OUT, LEFT_OUT]
    assert found["roles"][2]["env"] is None


def test_command_args_and_config_are_kept_on_request_and_nothing_else() -> None:
    found = without_values(SPEC, with_values=True)
    assert found["roles"][2]["args"] == ["--key", SECRET]
    assert found["roles"][0]["entrypoint"]["command"] == ["serve", "--token", SECRET]
    assert SECRET not in str(found["roles"][1])
    assert found["config"] == {"lr": SECRET}
    for key in ("env", "envFrom", "runtimeEnv", "head"):
        assert SECRET not in str(found[key])


def test_a_value_that_is_no_list_and_no_object_is_left_out() -> None:
    assert without_values({"config": SECRET}) == {"config": LEFT_OUT}
    assert without_values({"command": SECRET}) == {"command": LEFT_OUT}
    assert without_values({"command": []}) == {"command": []}
