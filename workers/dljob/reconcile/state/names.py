"""Names of a job's children.

All derive from the uid and the attempt, which never change: after a crash between two API calls the same names are
found again, and nothing is created twice.
"""

from __future__ import annotations

import hashlib

from dljob.raycluster.survival import ANNOTATION

MANAGER = "dljob-operator"
"""The field manager of what the operator writes."""
CONTROLLER = "dljob.io/operator"
"""The value of spec.managedBy that means this operator; also the reporting controller of Events."""

LABEL_NAME = "dljob.io/name"
LABEL_UID = "dljob.io/uid"
LABEL_MANAGED = "app.kubernetes.io/managed-by"

PLAN = "dljob.io/placement-plan"
PLAN_HASH = "dljob.io/placement-plan-hash"
SPEC_HASH = "dljob.io/spec-hash"
"""On a RayCluster: the digest of the spec that its attempt runs, as in `status.attemptSpecHash`."""
MADE_HASH = "dljob.io/made-hash"
"""On a RayCluster: the digest of its own spec at creation, by which later edits are found."""
SURVIVES = ANNOTATION
"""On a RayCluster whose Ray state survives the head: where it is kept (spec.gcsFaultTolerance.backend)."""
MADE_BY = "dljob.io/made-by"
"""On a RayCluster: the version of the operator that made it, which is the dljob version of its pods."""
EXCLUDED = "dljob.io/excluded-nodes"
"""On a RayCluster: the Kubernetes nodes that the operator keeps its new pods away from."""
EXCLUDE_NODES = "dljob.io/exclude-nodes"
"""On a DLJob: Kubernetes nodes that its pods must leave and avoid, "a,b"."""
RESTART = "dljob.io/restart"
RESTART_TARGET = "dljob.io/restart-target"
CHECKPOINT_NOW = "dljob.io/checkpoint-now"
STOP = "dljob.io/stop"
RESUME = "dljob.io/resume"
"""On a DLJob that was stopped or that failed: go on with it; each new value is an order."""
PAUSE = "dljob.io/pause-reconcile"
FINALIZER = "dljob.io/stop-first"
"""On a DLJob that runs on an existing RayCluster: the job is stopped before the DLJob goes."""
RAY_NODE = "dljob.io/ray-node-id"
ATTEMPT = "dljob.io/attempt"
ON_POD = ("dljob.io/units", "dljob.io/roles", "dljob.io/ranks", RAY_NODE, ATTEMPT)
TOLD = "dljob.io/told-end"
"""On a pod: the digest of the pod's end that PrimeMaster has received."""


def job_uid(uid: str) -> str:
    """Return the job's uid as Ray's side uses it: Kubernetes' uid without dashes, 32 hex digits."""
    return uid.replace("-", "")


def cluster_name(job: str, uid: str, attempt: int) -> str:
    """Return the name of an attempt's RayCluster.

    At most 53 characters, KubeRay's limit, for a job name of up to 47.
    """
    digits = hashlib.sha256(f"{uid}/{attempt}".encode()).hexdigest()[:5]
    return f"{job}-{digits}"


def token_secret(cluster: str) -> str:
    """Return the name of the Secret with a RayCluster's token."""
    return f"{cluster}-token"


def spec_map(cluster: str) -> str:
    """Return the name of the immutable ConfigMap with the spec that a RayCluster runs."""
    return f"{cluster}-spec"


def network_policy(cluster: str) -> str:
    """Return the name of the NetworkPolicy for a RayCluster's pods."""
    return f"{cluster}-network"


def service(job: str, role: str) -> str:
    """Return the name of a role's Service: `<job>-<role>`, cut to the 63 characters of a DNS label."""
    name = f"{job}-{role}"
    return name if len(name) <= 63 else f"{name[:57]}-{hashlib.sha256(name.encode()).hexdigest()[:5]}"


def logs_map(job: str) -> str:
    """Return the name of the ConfigMap with the last log lines of the job, which outlives the RayCluster."""
    return f"{job}-logs"


RESOURCE_USE = "dljob-resource-use"
"""The ConfigMap of a namespace with what ranks of ended jobs used: a key for each name of a job (`resources.auto`)."""

MASTER_LOG = "master.log"
"""The key of PrimeMaster's log in that ConfigMap; keys of ranks are `<role>-<rank>.log`."""
LAST_STATUS = "status.json"
"""The key of PrimeMaster's last status there, without ranks."""


def submission_id(job: str, uid: str, attempt: int, again: int = 0) -> str:
    """Return the id of an attempt at Ray's Job API.

    Ray refuses a second POST of it, which the operator takes for success.

    Args:
        job: The name of the job.
        uid: The uid of the job.
        attempt: Counted from 1.
        again: Number of times that the launcher was lost with a head whose Ray state survived.
    """
    return f"{job}-{job_uid(uid)[:8]}-{attempt}" + (f"-r{again}" if again else "")
