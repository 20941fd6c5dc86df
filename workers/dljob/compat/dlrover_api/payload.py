"""What travels from DLRover's builder to the ranks beside the spec: names as the user wrote them, and the workloads."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from typing import Any

from dljob.compat.dlrover_api.models import (
    ACCELERATOR_TYPE,
    DLConfig,
    ElasticWorkloadDesc,
    ResourceDesc,
    SimpleWorkloadDesc,
    WorkloadDesc,
)
from dljob.spec.variables import DLROVER


def role_name(given_name: str) -> str:
    """Return a role's name in dljob, a DNS label: `actor_rollout` and `ACTOR_ROLLOUT` are `actor-rollout`."""
    return re.sub(r"[^a-z0-9]+", "-", given_name.lower()).strip("-")


@dataclass(frozen=True)
class Payload:
    """The job in DLRover's terms."""

    job_name: str = ""
    accelerator_type: str = ACCELERATOR_TYPE.GPU.value
    workloads: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """Role as the user named it -> its fields, without the environment, which may hold secrets."""

    def given_name(self, role: str) -> str:
        """Return a role's name as the user wrote it."""
        return next((name for name in self.workloads if role_name(name) == role), role)

    def workload(self, role: str) -> WorkloadDesc:
        """Return a role's workload by its name in dljob; one that only names the role where no builder made the job."""
        fields = self.workloads.get(self.given_name(role))
        if fields is None:
            return SimpleWorkloadDesc(entry_point=f"{role.replace('-', '_')}.py", resource=ResourceDesc(cpu=1))
        kind = ElasticWorkloadDesc if fields["backend"] == "elastic" else SimpleWorkloadDesc
        return kind.model_validate(fields)


def payload_of(job: DLConfig, name: str) -> Payload:
    """Return what a job's ranks are to know."""
    fields = {role: workload.model_dump(mode="json", exclude={"envs"}) for role, workload in job.workloads.items()}
    return Payload(name, job.accelerator_type.value, fields)


def encoded(payload: Payload) -> str:
    """Return the variable's value."""
    return json.dumps(vars(payload), separators=(",", ":"))


def own_payload() -> Payload:
    """Return the payload of this process's job."""
    return Payload(**json.loads(os.environ.get(DLROVER) or "{}"))
