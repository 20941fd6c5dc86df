"""Names of a job's children, derived from what never changes: a crash between any two calls repeats nothing."""

from __future__ import annotations

import hashlib

from dljob.raycluster.survival import ANNOTATION

MANAGER = "dljob-operator"
"""Of the fields that the operator writes."""
CONTROLLER = "dljob.io/operator"
"""The value of spec.managedBy that means us, and the controller of Events."""

LABEL_NAME = "dljob.io/name"
LABEL_UID = "dljob.io/uid"
LABEL_MANAGED = "app.kubernetes.io/managed-by"

PLAN = "dljob.io/placement-plan"
PLAN_HASH = "dljob.io/placement-plan-hash"
SPEC_HASH = "dljob.io/spec-hash"
"""On a RayCluster: what its attempt is made of, as `status.attemptSpecHash` says."""
MADE_HASH = "dljob.io/made-hash"
"""On a RayCluster: digest of its spec as it was made, before anybody else touched it."""
SURVIVES = ANNOTATION
"""On a RayCluster whose Ray keeps what its head knows: where it does (spec.gcsFaultTolerance.backend)."""
MADE_BY = "dljob.io/made-by"
"""On a RayCluster: the version of the operator that made it, whose dljob its pods have."""
EXCLUDED = "dljob.io/excluded-nodes"
"""On a RayCluster: the Kubernetes nodes that its new pods keep away from by our word."""
EXCLUDE_NODES = "dljob.io/exclude-nodes"
"""On a DLJob: Kubernetes nodes that its pods are to leave and keep away from, "a,b"."""
RESTART = "dljob.io/restart"
RESTART_TARGET = "dljob.io/restart-target"
STOP = "dljob.io/stop"
PAUSE = "dljob.io/pause-reconcile"
FINALIZER = "dljob.io/stop-first"
"""On a DLJob whose job runs on a RayCluster that is not its own: it is stopped before the DLJob goes."""
RAY_NODE = "dljob.io/ray-node-id"
ATTEMPT = "dljob.io/attempt"
ON_POD = ("dljob.io/units", "dljob.io/roles", "dljob.io/ranks", RAY_NODE, ATTEMPT)
TOLD = "dljob.io/told-end"
"""On a pod: digest of what PrimeMaster was told of its end."""


def job_uid(uid: str) -> str:
    """The job's uid as Ray's side knows it: Kubernetes' without the dashes, 32 hex digits."""
    return uid.replace("-", "")


def cluster_name(job: str, uid: str, attempt: int) -> str:
    """The RayCluster that an attempt makes: at most 53 characters, KubeRay's limit, for a job of 47."""
    digits = hashlib.sha256(f"{uid}/{attempt}".encode()).hexdigest()[:5]
    return f"{job}-{digits}"


def token_secret(cluster: str) -> str:
    """The Secret with the token of a RayCluster."""
    return f"{cluster}-token"


def spec_map(cluster: str) -> str:
    """The immutable ConfigMap with the spec that a RayCluster runs."""
    return f"{cluster}-spec"


def network_policy(cluster: str) -> str:
    """The NetworkPolicy of the pods of a RayCluster."""
    return f"{cluster}-network"


def logs_map(job: str) -> str:
    """The ConfigMap with the last lines of the ranks' logs and of PrimeMaster's, which outlives the RayCluster."""
    return f"{job}-logs"


MASTER_LOG = "master.log"
"""PrimeMaster's log there; those of ranks are `<role>-<rank>.log`."""


def submission_id(job: str, uid: str, attempt: int, again: int = 0) -> str:
    """The id of an attempt at Ray's Job API: a second POST of the same id is refused there, and adopted here.

    Args:
        job: Its name.
        uid: Its uid.
        attempt: Counts from 1.
        again: How often its launcher was lost with a head that Ray's memory outlived.
    """
    return f"{job}-{job_uid(uid)[:8]}-{attempt}" + (f"-r{again}" if again else "")
