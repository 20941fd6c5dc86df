"""Small specs for the tests of plans, and Hypothesis strategies for generating specs."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from dljob.plan.plan import plan
from dljob.raycluster.render import preview_raycluster
from dljob.spec.model import DLJobManifest

SHARES = ("0.1", "0.2", "0.25", "0.3333", "0.5", "0.6", "0.9999")


def role(name: str, replicas: int = 1, group: int = 1, gpu: str | int | None = None, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": name,
        "entrypoint": {"class": "pkg.Thing"},
        "replicas": replicas,
        "replicasPerGroup": group,
        **more,
    }
    if gpu is not None:
        found["accelerator"] = {"count": str(gpu)}
    return found


def job(*roles: dict[str, Any], **spec: Any) -> DLJobManifest:
    return DLJobManifest.model_validate({"metadata": {"name": "job"}, "spec": {"roles": list(roles), **spec}})


def ray_cluster(manifest: DLJobManifest) -> dict[str, Any]:
    """Return the RayCluster of a job."""
    return preview_raycluster(plan(manifest), manifest)


def together(name: str, level: str, *roles: str) -> dict[str, Any]:
    return {"name": name, "level": level, "roles": list(roles)}


def machines(name: str, replicas: int = 1, cpu: str = "32", gpus: int = 0, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "replicas": replicas, "cpu": cpu, **more}
    if gpus:
        found["accelerator"] = {"type": "GPU", "count": gpus}
    return found


@st.composite
def layouts(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Draw roles and collocations that can be planned on derived machines."""
    roles: list[dict[str, Any]] = []
    collocations: list[dict[str, Any]] = []
    for index in range(draw(st.integers(0, 2))):
        level = draw(st.sampled_from(["Device", "Host", "Separate"]))
        members = draw(st.integers(2, 4))
        for member in range(members):
            groups = 2 ** draw(st.integers(0, 3))
            group = draw(st.integers(1, 4))
            share = {"Device": "0.25", "Host": "1", "Separate": "0.5"}[level]
            gpu = draw(st.sampled_from([None, share]))
            roles.append(role(f"c{index}-{member}", groups * group, group, gpu))
        collocations.append(together(f"k{index}", level, *(f"c{index}-{m}" for m in range(members))))
    for index in range(draw(st.integers(0 if roles else 1, 3))):
        group = draw(st.integers(1, 6))
        gpu = draw(st.sampled_from([None, 1, 2, 3, *SHARES]))
        cpu = draw(st.sampled_from(["0", "500m", "1", "7", "40"]))
        roles.append(role(f"r{index}", group * draw(st.integers(1, 9)), group, gpu, resources={"cpu": cpu}))
    return roles, collocations
