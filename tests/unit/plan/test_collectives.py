"""Which backend a group has, and what the processes of a job are told of its collectives."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dljob.plan.collectives import chosen
from dljob.plan.env import COLLECTIVES
from dljob.plan.plan import plan
from dljob.spec.model import DLJobManifest

ONE = {"count": 1}
NPU = {"type": "NPU", "count": 1}


def made(*devices: dict[str, Any] | None, **collectives: Any) -> Any:
    """(group w, roles) of a job whose roles r0, r1, ... hold these."""
    roles = [
        {"name": f"r{i}", "entrypoint": {"class": "a.B"}, **({"accelerator": own} if own else {})}
        for i, own in enumerate(devices)
    ]
    group = {"name": "w", "roles": [role["name"] for role in roles], **collectives.pop("group", {})}
    spec = {"roles": roles, "collectives": {"groups": [group], **collectives}}
    manifest = DLJobManifest.model_validate({"metadata": {"name": "j"}, "spec": spec})
    return manifest.spec.collectives.groups[0], plan(manifest).roles


@pytest.mark.parametrize(
    ("devices", "backend"),
    [
        ([ONE, {"count": 2}], "nccl"),
        ([NPU], "hccl"),
        ([None, None], "gloo"),
        ([ONE, None], "gloo"),
        ([ONE, NPU], "gloo"),
        ([{"count": "0.5"}, ONE], "gloo"),
        ([{"type": "TPU", "count": 1}], "gloo"),
    ],
    ids=["gpus", "npus", "none", "some", "mixed", "shared", "others"],
)
def test_the_auto_backend_fits_the_devices_when_each_rank_has_its_own(devices: list[Any], backend: str) -> None:
    assert chosen(*made(*devices)) == backend
    assert chosen(*made(*devices, group={"backend": "MYCCL"})) == "MYCCL"


def test_group_settings_reach_every_role_and_none_without_groups() -> None:
    backends = [{"name": "MyCcl", "class": "acme.Group"}]
    _, roles = made(None, None, group={"backend": "myccl", "timeoutSeconds": 9, "onRestart": "Fail"}, backends=backends)
    for role in roles.values():
        assert json.loads(dict(role.env)[COLLECTIVES]) == {
            "backends": {"MYCCL": "acme.Group"},
            "groups": {"w": {"backend": "MYCCL", "roles": ["r0", "r1"], "timeout_s": 9, "recreate": False}},
        }
    silent = {"metadata": {"name": "j"}, "spec": {"roles": [{"name": "a", "entrypoint": {"class": "a.B"}}]}}
    assert COLLECTIVES not in dict(plan(DLJobManifest.model_validate(silent)).roles["a"].env)
