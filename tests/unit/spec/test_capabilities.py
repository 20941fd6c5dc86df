"""What a job asks of a backend that cannot do all that Ray can: each field by name, all of them at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args, get_origin

import pytest
from pydantic import BaseModel

from dljob.errors import SpecError
from dljob.spec.admission import admit, lacking
from dljob.spec.capabilities import ALL, Capability, Needs
from dljob.spec.model import DLJobManifest, DLJobSpec

PLAIN: dict[str, Any] = {"name": "w", "entrypoint": {"command": ["true"]}}


def job(role: dict[str, Any] | None = None, **spec: Any) -> DLJobManifest:
    roles = [{**PLAIN, **(role or {})}, {"name": "x", "entrypoint": {"module": "x.py"}, "driver": False}]
    return DLJobManifest.model_validate({"metadata": {"name": "a"}, "spec": {"roles": roles, **spec}})


POLICY = "faultTolerance"
ASKS: list[tuple[str, Capability, dict[str, Any], dict[str, Any]]] = [
    ("spec.roles[0].type", Capability.ELASTIC, {"type": "Elastic"}, {}),
    ("spec.roles[0].tf", Capability.ELASTIC, {"tf": {"task": "chief"}}, {}),
    ("spec.roles[0].entrypoint.class", Capability.CLASSES, {"entrypoint": {"class": "a.B"}}, {}),
    ("spec.roles[0].accelerator", Capability.DEVICES, {"accelerator": {"type": "NPU"}}, {}),
    ("spec.roles[0].resources.custom", Capability.DEVICES, {"resources": {"custom": {"disk": "1"}}}, {}),
    (
        "spec.roles[0].annotations",
        Capability.PLACEMENT,
        {"annotations": {"scheduling.dljob.io/strategy": "STRICT_PACK"}},
        {},
    ),
    ("spec.roles[0].reserve", Capability.DRIVERS, {"reserve": "Quota"}, {}),
    (
        "spec.roles[0].restartPolicy.level",
        Capability.IN_PROCESS,
        {"type": "Elastic", "entrypoint": {"class": "a.B"}, "restartPolicy": {"level": "InProcess"}},
        {},
    ),
    (
        "spec.roles[0].restartPolicy.outOfMemory",
        Capability.NODE_AGENTS,
        {"resources": {"memory": "1Gi"}, "restartPolicy": {"outOfMemory": {"maxMemory": "2Gi"}}},
        {},
    ),
    (
        "spec.roles[0].weights",
        Capability.WEIGHTS,
        {"weights": {"channels": ["policy"], "load": {"exec": {"command": ["load"]}}}},
        {},
    ),
    (
        "spec.collocations",
        Capability.PLACEMENT,
        {},
        {"collocations": [{"name": "c", "roles": ["w", "x"], "level": "Host"}]},
    ),
    ("spec.nodeGroups", Capability.SEVERAL_NODES, {}, {"nodeGroups": [{"name": "g", "replicas": 2, "cpu": "4"}]}),
    (
        "spec.nodeGroups[0].accelerator",
        Capability.DEVICES,
        {},
        {"nodeGroups": [{"name": "g", "cpu": "4", "accelerator": {"type": "GPU", "count": 1}}]},
    ),
    ("spec.checkpoint", Capability.CHECKPOINTS, {}, {"checkpoint": {"path": "/ckpt"}}),
    (
        "spec.collectives",
        Capability.COLLECTIVES,
        {},
        {"collectives": {"groups": [{"name": "g", "roles": ["w", "x"]}]}},
    ),
    (f"spec.{POLICY}.spares", Capability.SPARES, {}, {POLICY: {"spares": {"nodes": 1}}}),
    (f"spec.{POLICY}.node", Capability.NODE_AGENTS, {}, {POLICY: {"node": {"freezeSeconds": 9}}}),
    (f"spec.{POLICY}.hang", Capability.NODE_AGENTS, {}, {POLICY: {"hang": {"idleSeconds": 9}}}),
    (f"spec.{POLICY}.elastic", Capability.ELASTIC, {}, {POLICY: {"elastic": {"growAfterSeconds": 9}}}),
    (
        f"spec.{POLICY}.rules[0].action",
        Capability.NODE_AGENTS,
        {},
        {POLICY: {"rules": [{"name": "r", "action": "ReplaceNode"}]}},
    ),
    (
        f"spec.{POLICY}.rules[0].action",
        Capability.IN_PROCESS,
        {},
        {POLICY: {"rules": [{"name": "r", "action": "RestartInProcess"}]}},
    ),
    (
        f"spec.{POLICY}.rules[0].escalateTo",
        Capability.NODE_AGENTS,
        {},
        {POLICY: {"rules": [{"name": "r", "action": "RestartProcess", "maxAttempts": 1, "escalateTo": "ReplaceNode"}]}},
    ),
    ("spec.master.maxRestarts", Capability.MASTER_RESTARTS, {}, {"master": {"maxRestarts": 1}}),
    ("spec.master.standby", Capability.MASTER_RESTARTS, {}, {"master": {"standby": "Always"}}),
    ("spec.backend", Capability.JOBS, {}, {}),
]


@pytest.mark.parametrize(("path", "capability", "role", "spec"), ASKS)
def test_a_field_that_takes_what_is_lacking_is_refused_by_its_name(
    path: str, capability: Capability, role: dict[str, Any], spec: dict[str, Any]
) -> None:
    wanting = job(role, **spec)
    (problem,) = lacking(wanting, "yr", ALL - {capability})
    assert problem.path == path
    assert problem.message.startswith(f"the backend yr lacks {capability}: ")
    assert lacking(wanting, "yr", ALL) == ()


def test_each_capability_is_tried_by_a_case() -> None:
    def marks(model: type[BaseModel], path: str) -> Iterator[tuple[str, Capability]]:
        for field in model.model_fields.values():
            field_path = f"{path}.{field.alias}"
            yield from ((field_path, mark.capability) for mark in field.metadata if isinstance(mark, Needs))
            for item in (field.annotation, *get_args(field.annotation)):
                if isinstance(item, type) and issubclass(item, BaseModel):
                    yield from marks(item, f"{field_path}[0]" if get_origin(field.annotation) is tuple else field_path)

    assert sorted(marks(DLJobSpec, "spec")) == sorted((path, capability) for path, capability, _, _ in ASKS)


def test_a_plain_job_takes_nothing_but_to_be_run() -> None:
    said = job(
        {"replicas": 4, "env": [{"name": "A", "value": "b"}], "restartPolicy": {"level": "Role"}},
        nodeGroups=[{"name": "g", "cpu": "8"}],
        faultTolerance={"maxRestarts": 3, "rules": [{"name": "r", "action": "Fail", "escalateTo": "Fail"}]},
    )
    assert lacking(said, "yr", {Capability.JOBS}) == ()


def test_all_lacking_capabilities_are_told_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        admit(job({"type": "Elastic"}, checkpoint={"path": "/c"}), "yr", {Capability.JOBS}, hint="on Ray it runs")
    assert str(caught.value) == (
        "spec.roles[0].type: the backend yr lacks elastic: ranks that form one torch world\n"
        "spec.checkpoint: the backend yr lacks checkpoints: savers of checkpoints on each node\n"
        "  on Ray it runs"
    )


def test_a_job_whose_needs_are_met_is_admitted() -> None:
    assert lacking(job(), "yr", {Capability.JOBS}) == ()
    admit(job(), "yr", {Capability.JOBS})  # raises SpecError where something is lacking
